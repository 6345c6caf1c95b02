"""deploy/kubernetes and deploy/kubernetes-executors: valid by the API's schemas as rendered, and of one piece."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from drainer.config import Config
from pump.config import PumpConfig
from tests.support.kubernetes_api import not_restricted
from tests.support.kustomize import containers, rendered
from tests.support.servers import ROOT

PLAIN, EXECUTORS = ROOT / "deploy/kubernetes", ROOT / "deploy/kubernetes-executors"
VERSIONS = ("1.29", "1.33")
WORKLOADS = [("StatefulSet", "pump"), ("Deployment", "drainer")]


@pytest.fixture(params=[PLAIN, EXECUTORS], ids=lambda path: path.name)
def folder(request: pytest.FixtureRequest) -> Path:
    found = request.param
    assert isinstance(found, Path)
    return found


def one(folder: Path, kind: str, name: str) -> dict[str, Any]:
    (found,) = [d for d in rendered(folder) if d["kind"] == kind and d["metadata"]["name"] == name]
    return found


def settings(folder: Path, name: str) -> dict[str, Any]:
    """The drainer's as it reads them, out of the Secret."""
    return tomllib.loads(base64.b64decode(one(folder, "Secret", "drainer")["data"][name]).decode())


@pytest.mark.parametrize("version", VERSIONS)
def test_rendered_documents_fit_api_schemas(folder: Path, version: str) -> None:
    documents = rendered(folder)
    assert len(documents) == (9 if folder == PLAIN else 12)
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_executor_pod_template_fits_schema_and_restricted_policy(version: str) -> None:
    """As Spark fills them in (tests/integration/deploy/test_executors_as_pods.py does it)."""
    pod = yaml.safe_load((EXECUTORS / "executor.yaml").read_text())
    pod["metadata"]["name"] = "executor-1"
    kubernetes_validate.validate(pod, version, strict=True)
    assert not_restricted(pod) == []
    for lacking in ("securityContext", "containers"):
        broken = {**pod, "spec": {**pod["spec"], lacking: [{"name": "x"}] if lacking == "containers" else {}}}
        assert not_restricted(broken), lacking


def test_unknown_field_is_found_by_schema_validation(folder: Path) -> None:
    broken = one(folder, "StatefulSet", "pump")
    broken["spec"]["template"]["spec"]["terminationGracePeriod"] = 90
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


@pytest.mark.parametrize(("kind", "name"), WORKLOADS)
def test_services_and_budgets_select_their_pods(folder: Path, kind: str, name: str) -> None:
    workload, service = one(folder, kind, name), one(folder, "Service", name)
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["publishNotReadyAddresses"], "writers and drainers choose by the registry"
    (container,) = containers(workload)
    served = {port["containerPort"] for port in container["ports"]}
    assert served <= {port["port"] for port in service["spec"]["ports"]}
    names = {port["name"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe].get("httpGet") or container[probe]["tcpSocket"]
        assert asked["port"] in names


def test_pump_statefulset_keeps_data_and_stops_one_pod_at_a_time(folder: Path) -> None:
    pump = one(folder, "StatefulSet", "pump")
    assert pump["spec"]["replicas"] >= 2 and pump["spec"]["serviceName"] == "pump"
    assert pump["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] == "data"
    (container,) = containers(pump)
    assert "pause-pump" in container["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert pump["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= 60
    assert one(folder, "PodDisruptionBudget", "pump")["spec"]["maxUnavailable"] == 1


def test_drainer_deployment_runs_one_pod_at_a_time(folder: Path) -> None:
    drainer = one(folder, "Deployment", "drainer")
    assert drainer["spec"]["replicas"] == 1 and drainer["spec"]["strategy"]["type"] == "Recreate"
    (container,) = containers(drainer)
    assert "-node-id=drainer" in container["args"], (
        "pods get other names, and pumps keep what that name has yet to read"
    )


@pytest.mark.parametrize(("kind", "name"), WORKLOADS)
def test_containers_fulfil_restricted_policy(folder: Path, kind: str, name: str) -> None:
    """What the namespace's `restricted` asks, and more."""
    namespace = one(folder, "Namespace", "tidb-binlog")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    workload = one(folder, kind, name)
    assert not_restricted(workload["spec"]["template"]) == []
    (container,) = containers(workload)
    assert container["securityContext"]["readOnlyRootFilesystem"]


def test_service_account_exists_only_for_drainer_with_executor_pods() -> None:
    for kind, name in WORKLOADS:
        assert one(PLAIN, kind, name)["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    assert [d["kind"] for d in rendered(PLAIN) if d["kind"] in ("ServiceAccount", "Role", "RoleBinding")] == []
    pod = one(EXECUTORS, "Deployment", "drainer")["spec"]["template"]["spec"]
    account = pod["serviceAccountName"]
    assert pod["automountServiceAccountToken"] and one(EXECUTORS, "ServiceAccount", account)
    binding = one(EXECUTORS, "RoleBinding", "drainer-executors")
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": "tidb-binlog"}]
    rules = one(EXECUTORS, "Role", binding["roleRef"]["name"])["rules"]
    assert {verb for rule in rules if "pods" in rule["resources"] for verb in rule["verbs"]} >= {"create", "delete"}


def test_configuration_volumes_name_generated_objects(folder: Path) -> None:
    names = {(document["kind"], document["metadata"]["name"]) for document in rendered(folder)}
    for kind, name in WORKLOADS:
        workload = one(folder, kind, name)
        for volume in workload["spec"]["template"]["spec"]["volumes"]:
            if "configMap" in volume:
                assert ("ConfigMap", volume["configMap"]["name"]) in names
            if "secret" in volume:
                assert ("Secret", volume["secret"]["secretName"]) in names
        (container,) = containers(workload)
        assert {("ConfigMap", source["configMapRef"]["name"]) for source in container["envFrom"]} <= names
        assert re.fullmatch(r"tidb-binlog/\w+:\d+\.\d+\.\d+", container["image"])


def test_generated_configuration_is_valid_and_uses_mounted_paths(folder: Path) -> None:
    config = Config.model_validate(settings(folder, "drainer.toml"))
    config.check()
    (container,) = containers(one(folder, "Deployment", "drainer"))
    places = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(config.data_dir) in places and "/etc/tidb-binlog" in places
    pump = PumpConfig.model_validate(tomllib.loads(one(folder, "ConfigMap", "pump")["data"]["pump.toml"]))
    assert str(pump.data_dir) in {
        m["mountPath"] for m in containers(one(folder, "StatefulSet", "pump"))[0]["volumeMounts"]
    }


def test_executor_settings_name_drainer_service_and_image() -> None:
    conf = settings(EXECUTORS, "drainer.toml")["spark"]["conf"]
    drainer = one(EXECUTORS, "Deployment", "drainer")
    (container,) = containers(drainer)
    assert conf["spark.kubernetes.container.image"] == container["image"]
    assert conf["spark.kubernetes.namespace"] == drainer["metadata"]["namespace"]
    assert conf["spark.driver.host"] == f"{one(EXECUTORS, 'Service', 'drainer')['metadata']['name']}.tidb-binlog.svc"
    place = Path(conf["spark.kubernetes.executor.podTemplateFile"])
    assert place.parent in {Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    assert place.name in one(EXECUTORS, "Secret", "drainer")["data"]
    assert "POD_NAME" in {entry["name"] for entry in container["env"]}, "who owns the executors"
    same = settings(PLAIN, "drainer.toml")
    assert {k: v for k, v in settings(EXECUTORS, "drainer.toml").items() if k != "spark"} == same


def test_kubectl_kustomize_renders_same_documents(folder: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    ran = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True, timeout=240)
    found = re.sub(r"\b(cluster|pump|drainer)-[a-z0-9]{10}\b", r"\1", ran.stdout)  # hashes of generated names

    def key(document: dict[str, Any]) -> str:
        return f"{document['kind']} {document['metadata']['name']}"

    made = sorted(yaml.safe_load_all(found), key=key)
    for document in made:
        if document["kind"] == "Secret":  # kustomize breaks the text into lines
            document["data"] = {name: "".join(text.split()) for name, text in document["data"].items()}
    assert made == sorted(rendered(folder), key=key)
