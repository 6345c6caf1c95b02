"""loopback-control from a pump through Spark into MariaDB: upstream has transactions that a drainer of the other
direction marked, as TiDB writes them, beside others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pumpclient.sdk import BigInt, Column, Int, SyncService, Table, VarChar
from tests.integration.pumpclient.conftest import Cluster
from tests.support.servers import MariaDB, free_port, python_module, running_etcd

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

OURS, OTHER = 7, 8
ROUNDS = 90
ROWS = Table("t", Column("id", BigInt(), primary_key=True), Column("channel", Int()))
MARK = Table(
    "_drainer_repl_mark",
    Column("id", BigInt(), primary_key=True),
    Column("channel_id", BigInt(), primary_key=True),
    Column("val", BigInt()),
    Column("channel_info", VarChar(64)),
)


@pytest.fixture
def upstream(java: None, tmp_path: Path) -> Iterator[tuple[str, SyncService]]:
    with running_etcd() as etcd, contextlib.ExitStack() as stack:
        cluster = Cluster(etcd, tmp_path)
        stack.callback(cluster.add("p1").server.kill)
        made = SyncService.connect(cluster.url)
        stack.callback(made.close)
        yield cluster.url, made


def configuration(mariadb: MariaDB, url: str, directory: Path) -> str:
    """Every batch without a DDL is distributed."""
    return (
        f'pd-urls = "{url}"\ntso-source = "own"\nnode-id = "d1"\naddr = "127.0.0.1:{free_port()}"\nstatus-addr = ""\n'
        f'data-dir = "{directory}/drainer"\ninitial-commit-ts = 0\n'
        "distributed-bytes-min = 1\nbatch-bytes-max = 4096\ndriver-bytes-max = 512\n"
        f'[syncer]\ndb-type = "mariadb"\nloopback-control = true\nchannel-id = {OURS}\nworker-count = 3\n'
        f'[syncer.to]\nhost = "{mariadb.host}"\nport = {mariadb.port}\nuser = "{mariadb.user}"\n'
        f'password = "{mariadb.password}"\n'
    )


def test_marked_transactions_are_left_out_and_written_ones_are_marked(
    upstream: tuple[str, SyncService], mariadb: MariaDB, tmp_path: Path
) -> None:
    url, service = upstream
    for name in ("app", "retl"):
        service.create_database(name)
    rows, marks = service.create_table("app", ROWS), service.create_table("retl", MARK)
    for n in range(ROUNDS):
        channel = (0, OURS, OTHER)[n % 3]
        with service.transaction() as txn:
            txn.insert(rows, {"id": 2 * n, "channel": channel})
            if channel:
                txn.insert(marks, {"id": n, "channel_id": channel, "val": 1, "channel_info": ""})
            txn.insert(rows, {"id": 2 * n + 1, "channel": channel})
    config = tmp_path / "drainer.toml"
    config.write_text(configuration(mariadb, url, tmp_path))
    drainer = python_module("drainer", "-config", str(config), "--until-now", output=tmp_path / "drainer.log").start()
    assert drainer.wait(deadline_s=300) == 0, drainer.tail()
    expected = [(n, (0, OURS, OTHER)[n // 2 % 3]) for n in range(2 * ROUNDS) if n // 2 % 3 != 1]
    assert mariadb.query("SELECT id, channel FROM app.t ORDER BY id") == expected
    found = mariadb.query("SELECT channel_id, id FROM retl._drainer_repl_mark ORDER BY id")
    assert {channel for channel, _ in found} == {OURS}  # none of upstream's marks
    assert {number for _, number in found} >= {1, 2, 3}  # of slots
