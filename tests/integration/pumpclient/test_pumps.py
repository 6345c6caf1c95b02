"""Client, SDK and binlogctl on a real etcd and real pump processes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from binlog.cluster.writers import PublishedJobs
from binlog.errors import BinlogError
from binlog.tidb.job import Job

from pumpclient.sdk import BigInt, Column, Int, Service, Table, VarChar
from pumpclient.writer import Limits
from tests.integration.pumpclient.conftest import Cluster
from tests.support.servers import ROOT

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent


def orders(name: str = "orders") -> Table:
    return Table(name, Column("id", BigInt(), primary_key=True), Column("v", VarChar(20)))


async def test_pump_kills_during_writes_lose_no_acknowledged_transaction(cluster: Cluster) -> None:
    """kill -9 of one pump, then of the one that gives out timestamps, while hundreds of transactions are under way."""
    committed: dict[int, int] = {}
    failed: set[int] = set()
    stop = asyncio.Event()
    async with await Service.connect(
        cluster.url, tso_source="own", limits=Limits(write_timeout_s=5, commit_wait_s=600, detect_s=0.5)
    ) as service:
        await service.create_database("shop")
        table = await service.create_table("shop", orders())
        numbers = itertools.count(1)

        async def write() -> None:
            while not stop.is_set():
                txn = await service.begin()
                txn.insert(table, {"id": next(numbers), "v": "x"})
                try:
                    committed[txn.start_ts] = await txn.commit()
                except BinlogError:
                    failed.add(txn.start_ts)

        writers = [asyncio.create_task(write()) for _ in range(100)]
        rng = random.Random(5)
        for _ in range(4):
            before = len(committed)
            while len(committed) < before + 300:
                await asyncio.sleep(0.02)
                for writer in writers:
                    assert not writer.done() or writer.result() is None
            victim = cluster.pumps[rng.choice(sorted(cluster.pumps))]
            await asyncio.to_thread(victim.server.kill)
            await asyncio.sleep(rng.random())
            await asyncio.to_thread(victim.start)
        stop.set()
        async with asyncio.timeout(180):
            await asyncio.gather(*writers)
            while service.client.rollbacks_owed:  # noqa: ASYNC110  a count, from outside
                await asyncio.sleep(0.05)
        assert service.client.open_transactions == 0
        until_ts = await service._context.timestamps.get()
        cluster_id = service.client.cluster_id
        served: list[tuple[int, int]] = []
        for pump in cluster.pumps.values():
            state = await cluster.inspect(pump, cluster_id)
            assert state.pending_count == 0, state
            assert state.late_commit_count == 0, state
            served += [
                (e.start_ts, e.commit_ts) for e in await cluster.pull(pump, cluster_id, until_ts) if not e.ddl_job_id
            ]
    assert len(committed) >= 1200
    assert max(Counter(served).values()) == 1  # no transaction on two pumps
    assert dict(served) == committed  # nothing lost, nothing invented, no other commit_ts
    assert not failed & dict(served).keys()


async def test_services_altering_one_table_in_turns_keep_versions_consistent(cluster: Cluster) -> None:
    """Two services alter one table in turns while both write; versions and handles stay consistent."""
    first = await Service.connect(cluster.url, tso_source="own")
    second = await Service.connect([cluster.url], tso_source="own", strategy="hash")
    async with first, second:
        await first.create_database("shop")
        await first.create_table("shop", orders())
        for number, service in enumerate([second, first, second, first]):
            table = await service.table("shop", "orders")
            table = await service.alter_table(table, add=[Column(f"c{number}", Int(), default=number)])
            async with service.transaction() as txn:
                txn.insert(table, {"id": number})
        created = await asyncio.gather(
            *(service.create_table("shop", orders(f"t{n}")) for n, service in enumerate([first, second] * 3))
        )
        assert len({t.bound.info.id for t in created if t.bound}) == 6
        async with asyncio.timeout(90):  # each is told of the other one's jobs by its watch
            while {first.catalog.version, second.catalog.version} != {12}:  # noqa: ASYNC110  applied by tasks
                await asyncio.sleep(0.02)
        jobs = [Job.from_json(text) for _, text in await PublishedJobs(first._context.etcd).all()]
        until_ts = await first._context.timestamps.get()
        served = []
        for pump in cluster.pumps.values():
            served += await cluster.pull(pump, first.client.cluster_id, until_ts)
        ddl = {e.ddl_job_id: e.commit_ts for e in served if e.ddl_job_id}
        assert ddl == {job.id: job.finished_ts for job in jobs}
        rows = sorted((e.commit_ts, e.schema_version) for e in served if not e.ddl_job_id)
        assert [version for _, version in rows] == [3, 4, 5, 6]
        for commit_ts, version in rows:  # a row in a job's schema commits after the job's DDL
            assert all(job.finished_ts < commit_ts for job in jobs if job.schema_version <= version)


def child(cluster: Cluster, point: str, *, ttl_s: int = 600) -> subprocess.CompletedProcess[str]:
    """Its lease outlives it by so long; until then nobody but an operator ends what it left."""
    environment = {**os.environ, "BINLOG_CRASH_POINT": point, "PYTHONPATH": f"{ROOT / 'proto'}{os.pathsep}{ROOT}"}
    command = [sys.executable, str(HERE / "writer_child.py"), cluster.url, str(ttl_s)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def binlogctl(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pumpclient.ctl", *words, "-pd-urls", cluster.url]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=ROOT)


def pending(text: str) -> dict[str, str]:
    """The facts of the one `pending prewrite` line."""
    (line,) = [line for line in text.splitlines() if "pending prewrite" in line]
    facts = [part for part in line.strip("[]").split("] [") if "=" in part]
    return {name: value.strip('"') for name, _, value in (part.partition("=") for part in facts)}


@pytest.mark.parametrize(
    ("point", "published", "settle_with"),
    [
        ("sdk.ddl_after_prewrite", 0, "-rollback (its job is not published)"),
        ("sdk.ddl_after_publish", 1, "-commit-ts"),
        ("sdk.after_prewrite", 2, None),
    ],
)
async def test_prewrite_of_killed_writer_is_settled_by_binlogctl(
    cluster: Cluster, point: str, published: int, settle_with: str | None
) -> None:
    """Killed between P and its end: the pump holds it pending, `binlogctl settle` lists it and ends it."""
    died = await asyncio.to_thread(child, cluster, point)
    assert died.returncode == -9, died.stderr
    listed = await asyncio.to_thread(binlogctl, cluster, "settle")
    assert listed.returncode == 0, listed.stderr
    facts = pending(listed.stdout + listed.stderr)
    assert facts.get("settle_with", "").startswith(settle_with or "")
    how = ["-rollback"]
    if settle_with == "-commit-ts":
        how = facts["settle_with"].split()
    words = ("settle", "-node-id", facts["node_id"], "-start-ts", facts["start_ts"], *how)
    refused = await asyncio.to_thread(binlogctl, cluster, *words)
    assert refused.returncode == 6
    assert "confirm with -yes" in refused.stdout + refused.stderr
    done = await asyncio.to_thread(binlogctl, cluster, *words, "-yes")
    assert done.returncode == 0, done.stdout + done.stderr
    again = await asyncio.to_thread(binlogctl, cluster, "inspect")
    assert "pending prewrite" not in again.stdout + again.stderr
    async with await Service.connect(cluster.url, tso_source="own") as service:
        assert service.catalog.version == published
        with contextlib.suppress(BinlogError):
            await service.create_database("shop")  # the dead writer's lock ends with its lease
        await service.create_table("shop", orders("after"))


async def test_binlogctl_lists_pauses_and_updates_pumps(cluster: Cluster, tmp_path: Path) -> None:
    for words in (("-cmd", "pumps"),):
        listed = await asyncio.to_thread(binlogctl, cluster, *words)
        assert listed.returncode == 0
        lines = [line for line in (listed.stdout + listed.stderr).splitlines() if "query node" in line]
        assert len(lines) == 2
        assert "[type=pump]" in lines[0]
        assert "NodeID: p1" in lines[0]
        assert "State: online" in lines[0]
    directory = tmp_path / "meta"
    made = await asyncio.to_thread(
        binlogctl, cluster, "generate_meta", "-data-dir", str(directory), "-time-zone", "UTC"
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert (directory / "savepoint").read_text().startswith("commitTS = 4")
    cluster.pumps["p2"].server.kill()
    refused = await asyncio.to_thread(binlogctl, cluster, "pause-pump", "-node-id", "p2")
    assert refused.returncode == 5
    assert "does not answer" in refused.stdout + refused.stderr
    assert "SIGTERM" in refused.stdout + refused.stderr
    asked = await asyncio.to_thread(binlogctl, cluster, "pause-pump", "-node-id", "p1")
    assert asked.returncode == 0, "its status page is off: the address of gRPC answers"
    marked = await asyncio.to_thread(binlogctl, cluster, "update-pump", "-node-id", "p2", "-state", "offline")
    assert marked.returncode == 0, marked.stdout + marked.stderr
    listed = await asyncio.to_thread(binlogctl, cluster, "drainers")
    assert listed.returncode == 0
    listed = await asyncio.to_thread(binlogctl, cluster, "pumps")
    assert "NodeID: p2" not in listed.stdout + listed.stderr
    cluster.etcd.endpoint = "http://127.0.0.1:1"
    nowhere = await asyncio.to_thread(binlogctl, cluster, "pumps")
    assert nowhere.returncode == 3
    assert "fail to execute command" in nowhere.stdout + nowhere.stderr
