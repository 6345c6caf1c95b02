"""deploy/kubernetes: valid by the API's schemas, and of one piece."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.servers import ROOT

FOLDER = ROOT / "deploy/kubernetes"
VERSIONS = ("1.29", "1.33")


def documents() -> list[dict[str, Any]]:
    """What the resource files hold, before kustomize."""
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    return [one for name in listed for one in yaml.safe_load_all((FOLDER / name).read_text())]


def one(kind: str, name: str) -> dict[str, Any]:
    (found,) = [d for d in documents() if d["kind"] == kind and d["metadata"]["name"] == name]
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_every_resource_fits_the_schema_of_the_api(version: str) -> None:
    for document in documents():
        kubernetes_validate.validate(document, version, strict=True)


def test_a_field_that_does_not_exist_is_found() -> None:
    broken = one("StatefulSet", "pump")
    broken["spec"]["template"]["spec"]["terminationGracePeriod"] = 90
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


@pytest.mark.parametrize(("kind", "name"), [("StatefulSet", "pump"), ("Deployment", "drainer")])
def test_pods_are_what_services_and_budgets_select(kind: str, name: str) -> None:
    workload, service = one(kind, name), one("Service", name)
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["publishNotReadyAddresses"], "writers and drainers choose by the registry"
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    served = {port["containerPort"] for port in container["ports"]}
    assert served <= {port["port"] for port in service["spec"]["ports"]}
    names = {port["name"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe].get("httpGet") or container[probe]["tcpSocket"]
        assert asked["port"] in names


def test_pumps_keep_their_data_and_stop_cleanly_one_at_a_time() -> None:
    pump = one("StatefulSet", "pump")
    assert pump["spec"]["replicas"] >= 2 and pump["spec"]["serviceName"] == "pump"
    assert pump["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] == "data"
    (container,) = pump["spec"]["template"]["spec"]["containers"]
    assert "pause-pump" in container["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert pump["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= 60
    assert one("PodDisruptionBudget", "pump")["spec"]["maxUnavailable"] == 1


def test_there_is_one_drainer_at_a_time() -> None:
    drainer = one("Deployment", "drainer")
    assert drainer["spec"]["replicas"] == 1 and drainer["spec"]["strategy"]["type"] == "Recreate"
    (container,) = drainer["spec"]["template"]["spec"]["containers"]
    assert "-node-id=drainer" in container["args"], (
        "pods get other names, and pumps keep what that name has yet to read"
    )


@pytest.mark.parametrize(("kind", "name"), [("StatefulSet", "pump"), ("Deployment", "drainer")])
def test_containers_have_no_rights(kind: str, name: str) -> None:
    """What the namespace's `restricted` asks."""
    pod = one(kind, name)["spec"]["template"]["spec"]
    assert (
        pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    )
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_configuration_comes_from_generators_that_exist() -> None:
    made = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    maps = {entry["name"]: entry for entry in made["configMapGenerator"]}
    secrets = {entry["name"]: entry for entry in made["secretGenerator"]}
    for entry in (*maps.values(), *secrets.values()):
        assert all((FOLDER / name).exists() for name in entry.get("files", []))
    for kind, name in (("StatefulSet", "pump"), ("Deployment", "drainer")):
        pod = one(kind, name)["spec"]["template"]["spec"]
        for volume in pod["volumes"]:
            assert volume.get("configMap", {}).get("name", "pump") in maps
            assert volume.get("secret", {}).get("secretName", "drainer") in secrets
        (container,) = pod["containers"]
        assert {source["configMapRef"]["name"] for source in container["envFrom"]} <= maps.keys()
        assert container["image"] in {image["name"] for image in made["images"]}


def test_kustomize_renders_it() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    ran = subprocess.run(["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, check=True, timeout=60)
    rendered = list(yaml.safe_load_all(ran.stdout))
    for document in rendered:
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
        if document["kind"] != "Namespace":
            assert document["metadata"]["namespace"] == "tidb-binlog"
    assert len(rendered) == len(documents()) + 3
