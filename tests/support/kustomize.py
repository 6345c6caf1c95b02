"""As much of kustomize as deploy/ uses, for machines without kubectl: what `kubectl apply -k` would send.

Names of generated ConfigMaps and Secrets get no hash here.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import yaml

UNDERSTOOD = {
    "apiVersion", "kind", "namespace", "resources", "configMapGenerator", "secretGenerator", "labels", "images",
    "patches",
}  # fmt: skip


def rendered(folder: Path) -> list[dict[str, Any]]:
    """Every document, in no particular order. AssertionError for what is not understood."""
    plan = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert plan.keys() <= UNDERSTOOD, plan.keys() - UNDERSTOOD
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for name in plan["resources"]:
        place = folder / name
        documents = rendered(place.resolve()) if place.is_dir() else yaml.safe_load_all(place.read_text())
        for one in documents:
            assert _key(one) not in found, _key(one)
            found[_key(one)] = one
    for kind, entry in [("ConfigMap", one) for one in plan.get("configMapGenerator", [])] + [
        ("Secret", one) for one in plan.get("secretGenerator", [])
    ]:
        made = _generated(folder, kind, entry)
        assert (_key(made) in found) == (entry.get("behavior") == "replace"), _key(made)
        found[_key(made)] = {**made, "metadata": found.get(_key(made), made)["metadata"]}
    for patch in plan.get("patches", []):
        change = yaml.safe_load((folder / patch["path"]).read_text())
        _merge(found[_key(change)], change)
    for one in found.values():
        if one["kind"] != "Namespace":
            one["metadata"]["namespace"] = plan["namespace"]
        for label in plan.get("labels", []):
            one["metadata"].setdefault("labels", {}).update(label["pairs"])
        if one["kind"] == "RoleBinding":
            for subject in one["subjects"]:
                subject["namespace"] = plan["namespace"]
        for container in containers(one):
            tags = [image["newTag"] for image in plan.get("images", []) if image["name"] == container["image"]]
            container["image"] = ":".join([container["image"], *tags])
    return list(found.values())


def containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a workload; else none."""
    found: list[dict[str, Any]] = document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])
    return found


def _key(document: dict[str, Any]) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def _generated(folder: Path, kind: str, entry: dict[str, Any]) -> dict[str, Any]:
    data = {name: (folder / name).read_text() for name in entry.get("files", [])}
    data |= dict(text.split("=", 1) for text in entry.get("literals", []))
    made: dict[str, Any] = {"apiVersion": "v1", "kind": kind, "metadata": {"name": entry["name"]}, "data": data}
    if kind == "Secret":
        made["type"] = "Opaque"
        made["data"] = {name: base64.b64encode(text.encode()).decode() for name, text in data.items()}
    return made


def _merge(into: dict[str, Any], change: dict[str, Any]) -> None:
    """Maps alone: of lists kustomize knows by which key their elements are told, which this does not."""
    for name, value in change.items():
        if isinstance(value, dict):
            _merge(into.setdefault(name, {}), value)
        else:
            assert not isinstance(value, list), f"a patch of the list {name}"
            into[name] = value
