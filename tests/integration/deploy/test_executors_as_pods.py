"""deploy/kubernetes-executors: Spark's executors as pods. Here they are processes, made as the driver asks for them."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pumpclient.sdk import BigInt, Column, SyncService, Table, VarChar
from tests.integration.pumpclient.conftest import Cluster
from tests.support.kubernetes_api import Api
from tests.support.servers import ROOT, MariaDB, free_port, python_module, require_java, running_etcd

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1200)]
FOLDER = ROOT / "deploy/kubernetes-executors"
ROWS = 40
POD = "drainer-7d9"
# Small JVMs that move bytes, and batches that are not kept on the driver for being small.
MORE = {
    "spark.executor.instances": "1",
    "spark.driver.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
DISTRIBUTED = "initial-commit-ts = 0\ndriver-bytes-max = 1024\ndistributed-bytes-min = 1\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_etcd() as etcd, contextlib.ExitStack() as stack:
        made = Cluster(etcd, tmp_path)
        stack.callback(made.add("p1").server.kill)
        yield made


def configuration(api: Api, data: Path, destination: MariaDB) -> str:
    """drainer.toml, with the addresses and paths of this machine."""
    text = (FOLDER / "drainer.toml").read_text()
    given = {
        "addr": f"127.0.0.1:{free_port()}",
        "status-addr": "",
        "data-dir": str(data),
        "history-url": "",
        "db-type": "mariadb",
        "host": destination.host,
        "user": destination.user,
        "password": destination.password,
        "master": f"k8s://{api.url}",
        '"spark.kubernetes.executor.podTemplateFile"': str(FOLDER / "executor.yaml"),
        '"spark.driver.host"': "127.0.0.1",
        '"spark.driver.port"': str(free_port()),
        '"spark.driver.blockManager.port"': str(free_port()),
    } | {f'"{name}"': value for name, value in MORE.items()}
    for name, value in given.items():
        text, count = re.subn(rf"^{re.escape(name)} = .*$", f'{name} = "{value}"', text, flags=re.MULTILINE)
        if not count:
            text += f'{name} = "{value}"\n'
    text = re.sub(r"^port = \d+$", f"port = {destination.port}", text, flags=re.MULTILINE)
    return DISTRIBUTED + text


def test_rows_are_applied_by_executors_started_as_pods(cluster: Cluster, mariadb: MariaDB, tmp_path: Path) -> None:
    require_java()
    with SyncService.connect(cluster.url) as service:
        service.create_database("pods")
        rows = service.create_table(
            "pods", Table("rows", Column("id", BigInt(), primary_key=True), Column("note", VarChar(400)))
        )
        for number in range(ROWS):
            with service.transaction() as txn:
                txn.insert(rows, {"id": number, "note": f"{number:>300}"})
    with Api(tmp_path) as api, tempfile.TemporaryDirectory(prefix="driver-") as data:
        template = yaml.safe_load((ROOT / "deploy/kubernetes/drainer.yaml").read_text().split("\n---\n")[1])
        pod = {"kind": "Pod", "metadata": {"name": POD, **template["spec"]["template"]["metadata"]}}
        api.create("pods", pod, run=False)
        config = tmp_path / "drainer.toml"
        config.write_text(configuration(api, Path(data), mariadb))
        drainer = python_module(
            "drainer",
            *("-config", str(config), "-pd-urls", cluster.url, "-node-id", "drainer", "--until-now"),
            output=tmp_path / "drainer.log",
            POD_NAME=POD,
            KUBECONFIG="/dev/null",
        ).start()
        try:
            ended = drainer.wait(deadline_s=300)
        finally:
            drainer.kill()
        logs = [Path(data) / "spark.log", *(server.output for server in api.servers.values())]
        said = "\n".join([drainer.tail(), *(log.read_text()[-4000:] for log in logs if log.exists())])
        assert (ended, api.refused) == (0, []), said
        assert mariadb.query("SELECT id, TRIM(note) FROM pods.rows ORDER BY id") == [(n, str(n)) for n in range(ROWS)]
        (made,) = api.made
        (owner,) = made["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("Pod", POD)
        assert made["metadata"]["labels"]["app.kubernetes.io/name"] == "executor"
        assert [key for key in api.objects if key[1] != POD] == [], "the driver deletes what it made"
