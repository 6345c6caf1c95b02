"""The tables of metrics in docs/operations.md against scrapes of a pump, a writer and a drainer under load."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from binlog.runtime import metrics
from prometheus_client.parser import text_string_to_metric_families

from pumpclient.sdk import BigInt, Column, SyncService, Table, VarChar
from tests.support.metric_names import of_lake
from tests.support.servers import ROOT, Etcd, Server, free_port, python_module, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

PAGE = (ROOT / "docs" / "operations.md").read_text()
PROGRAMS = ("pump", "drainer", "pump_client")
Samples = dict[str, list[dict[str, str]]]  # name without binlog_ → the labels of each sample


def documented(program: str) -> dict[str, tuple[set[str], str]]:
    """Name → (its labels, the rest of its line) of one program's table."""
    titles = {"pump_client": "writer (SDK, pump client)", "drainer_lake": "drainer into a lake"}
    title = titles.get(program, program)
    table = PAGE.split(f"\n| {title} | meaning | look when |\n")[1].split("\n\n")[0]
    found = {}
    for line in table.splitlines()[1:]:
        names, rest = line.split("|", 2)[1:]
        for name, labels in re.findall(r"`(\w+)(?:\{([\w,]+)\})?`", names):
            found[name] = (set(filter(None, labels.split(","))), rest)
    return found


def exported(text: str, program: str) -> tuple[set[str], Samples]:
    """(names of all metrics of a program, their samples); a histogram is known by its `_count`."""
    other = {"pump": "pump_client_"}.get(program, " ")
    own = ("pump_client_", "sdk_") if program == "pump_client" else (f"{program}_",)
    names: set[str] = set()
    samples: Samples = {}
    for line in text.splitlines():
        kind = re.match(r"# TYPE binlog_(\w+)", line)
        if kind and kind[1].startswith(own) and not kind[1].startswith(other):
            names.add(kind[1])
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("binlog_").removesuffix("_count" if family.type == "histogram" else " ")
            # The library's parser gives every counter the ending _total, which the programs do not.
            name = name if name in names else name.removesuffix("_total")
            if name in names:
                samples.setdefault(name, []).append(sample.labels)
    return names, samples


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def counted(text: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples with these labels."""
    wanted, names = labels.items(), (f"binlog_{name}", f"binlog_{name}_total")
    found = [s for family in text_string_to_metric_families(text) for s in family.samples if s.name in names]
    return sum(sample.value for sample in found if wanted <= sample.labels.items())


class Running:
    """A pump, an SDK service in this process, and a drainer into SQLite."""

    def __init__(self, etcd: Etcd, directory: Path) -> None:
        self.etcd, self.directory = etcd, directory
        self.pump_port, self.drainer_port = free_port(), free_port()
        shared = ("-addr", f"127.0.0.1:{free_port()}", "-pd-urls", etcd.endpoint)
        place = ("-status-addr", f"127.0.0.1:{self.pump_port}", "-data-dir", str(directory / "pump"))
        self.pump = python_module("pump", *shared, *place, output=directory / "pump.log")
        file = directory / "drainer.toml"
        file.write_text(
            f'pd-urls = "{etcd.endpoint}"\naddr = "127.0.0.1:{free_port()}"\ndata-dir = "{directory}/drainer"\n'
            f'status-addr = "127.0.0.1:{self.drainer_port}"\n[spark]\nmaster = "local[1]"\n'
            f'[syncer]\ndb-type = "sqlite"\n[syncer.to]\npath = "{directory}/down.sqlite"\n'
        )
        self.drainer = python_module("drainer", "-config", str(file), output=directory / "drainer.log")

    def write(self) -> None:
        table = Table("orders", Column("id", BigInt(), primary_key=True), Column("note", VarChar(40)))
        with SyncService.connect(self.etcd.endpoint) as service:
            service.create_database("shop", if_not_exists=True)
            orders = service.create_table("shop", table, if_not_exists=True)
            for number in range(20):
                service.write(orders, [{"id": number, "note": "n"}])


@pytest.fixture
def running(etcd: Etcd, java: None, tmp_path: Path) -> Iterator[Running]:
    made = Running(etcd, tmp_path)
    started: list[Server] = []
    try:
        started.append(made.pump.start())
        made.pump.wait_for_output("pump is serving")
        made.write()
        started.append(made.drainer.start())
        made.drainer.wait_for_output("drainer is running", deadline_s=300)

        def seen() -> bool:
            text = scrape(made.drainer_port)
            looked = counted(text, "drainer_pump_position") and "drainer_pump_late_commits{" in text
            # Samples of one moment may show the rows of a batch that is not counted yet.
            whole = counted(text, "drainer_read_bytes") and counted(text, "drainer_batches_applied", mode="driver")
            return bool(looked and whole and counted(text, "drainer_rows_applied") >= 20)

        wait_until(seen, deadline_s=240, what=f"rows of the load\n{made.drainer.tail()}")
        yield made
    finally:
        for server in reversed(started):
            server.kill()


def test_exported_metrics_under_load_equal_documented_tables(running: Running) -> None:
    texts = {
        "pump": scrape(running.pump_port),
        "drainer": scrape(running.drainer_port),
        "pump_client": metrics.render().decode(),
    }
    for program in PROGRAMS:
        wanted = documented(program)
        names, samples = exported(texts[program], program)
        assert set(wanted) == names, f"{program}: {set(wanted) ^ names}"
        for name, (labels, _) in wanted.items():
            assert all(labels == set(sample) - {"le"} for sample in samples.get(name, [])), name
    # What the alarms look at moves with the load.
    pump = texts["pump"]
    _, line = documented("pump")["pump_rpc_duration_seconds"]
    for method in re.findall(r"`([A-Z]\w+)`", line):
        if method not in ("WriteBinlog", "PullBinlogs"):  # of TiDB and of a Go drainer, which are not here
            assert counted(pump, "pump_rpc_duration_seconds_count", method=method, label="succ") > 0, method
    assert counted(pump, "pump_rpc_duration_seconds_sum", method="WriteBatch") > 0
    transactions = 20 + 2  # and two DDLs, each a prewrite and a commit
    assert counted(pump, "pump_written_binlogs_total", method="WriteBatch") == 2 * transactions
    assert counted(pump, "pump_written_bytes_total", method="WriteBatch") > 0
    assert counted(pump, "pump_read_binlogs_total", method="PullRange") >= transactions
    assert counted(pump, "pump_read_bytes_total", method="PullRange") > 0
    assert counted(texts["drainer"], "drainer_read_bytes") > 0
    assert counted(texts["drainer"], "drainer_batches_applied", mode="driver") > 0
    client = texts["pump_client"]
    assert counted(client, "pump_client_rpc_duration_seconds_count", outcome="acked") >= 2 * transactions
    assert counted(client, "pump_client_written_binlogs_total") >= 2 * transactions


def test_metrics_of_a_lake_equal_documented_table() -> None:
    assert set(documented("drainer_lake")) == exported(of_lake(), "drainer_lake")[0]
