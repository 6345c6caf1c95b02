"""Rule 24 with real processes: a service that dies, sleeps or leaves holds nobody back, and was told no untruth."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.writers import PublishedJobs, living_writers
from binlog.tidb.job import Job

from pumpclient.client import PumpsClient
from pumpclient.sdk import BigInt, ClientClosed, Column, CommitUndelivered, Service, Table, TransactionRolledBack
from pumpclient.sdk.transaction import Transaction
from pumpclient.writer import Limits
from tests.integration.pumpclient.conftest import Cluster, Pump
from tests.integration.pumpclient.test_pumps import child
from tests.support.servers import ROOT, wait_until

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
SOON_S = 90.0  # of a loaded machine; the lease of these children lives for two seconds


class Child:
    """A running service_child.py."""

    def __init__(self, cluster: Cluster, ttl_s: int = 2) -> None:
        self._output = cluster.directory / f"service-{ttl_s}.out"
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'proto'}{os.pathsep}{ROOT}"}
        command = [sys.executable, str(HERE / "service_child.py"), cluster.url, str(ttl_s)]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=output)

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self._output.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def committed(self) -> dict[int, int]:
        return {int(line[1]): int(line[2]) for line in self.lines() if line[0] == "committed"}

    def told(self, kind: str) -> set[int]:
        return {int(line[1]) for line in self.lines() if line[0] == kind}

    def busy(self, more: int = 200) -> None:
        """Wait until it has committed that many more."""
        before = len(self.committed())
        wait_until(lambda: len(self.committed()) >= before + more, deadline_s=240, what="transactions")


@pytest.fixture
def service(cluster: Cluster) -> Iterator[Child]:
    made = Child(cluster)
    made.busy()
    yield made
    made.process.kill()
    made.process.wait()


async def pending(cluster: Cluster) -> int:
    cluster_id = await id_of(cluster)
    return sum([(await cluster.inspect(pump, cluster_id)).pending_count for pump in cluster.pumps.values()])


async def id_of(cluster: Cluster) -> int:
    async with await PumpsClient.connect(cluster.url, tso_source="own") as client:
        return client.cluster_id


async def nothing_pending(cluster: Cluster) -> None:
    async with asyncio.timeout(SOON_S):
        while await pending(cluster):  # noqa: ASYNC110  other processes
            await asyncio.sleep(0.1)


async def served(cluster: Cluster) -> dict[int, int]:
    """start_ts → commit_ts of all rows, once the watermark has passed everything that was ever begun."""
    async with await Service.connect(cluster.url, tso_source="own") as looker:
        until_ts = await looker._context.timestamps.get()
        found = [
            envelope
            for pump in cluster.pumps.values()
            for envelope in await cluster.pull(pump, looker.client.cluster_id, until_ts)
            if not envelope.ddl_job_id
        ]
        assert len({e.start_ts for e in found}) == len(found)
        return {e.start_ts: e.commit_ts for e in found}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=["KILL", "TERM", "INT"])
async def test_prewrites_of_killed_service_are_ended_by_pumps(
    cluster: Cluster, service: Child, how: signal.Signals
) -> None:
    service.process.send_signal(how)
    service.process.wait(timeout=SOON_S)
    await nothing_pending(cluster)
    rows = await served(cluster)
    assert service.committed().items() <= rows.items(), "what it was told is there"


async def test_prewrites_of_killed_service_are_ended_after_pumps_restart(cluster: Cluster, service: Child) -> None:
    """It comes back with prewrites in its log whose writer has gone meanwhile."""
    service.process.kill()
    service.process.wait()
    for pump in cluster.pumps.values():
        await asyncio.to_thread(pump.server.kill)
    await asyncio.gather(*(asyncio.to_thread(pump.start) for pump in cluster.pumps.values()))
    await nothing_pending(cluster)
    assert service.committed().items() <= (await served(cluster)).items()


async def test_service_stopped_beyond_its_lease_gets_transaction_rolled_back(cluster: Cluster, service: Child) -> None:
    """The watermark passes its transactions while it is stopped; what it commits after that is refused by name."""
    for _ in range(100):
        service.process.send_signal(signal.SIGSTOP)
        if await pending(cluster):
            break
        service.process.send_signal(signal.SIGCONT)  # all 64 were before a prewrite or behind a commit
        await asyncio.sleep(0.03)
    else:
        pytest.fail("none of 64 was ever between prewrite and commit")
    await nothing_pending(cluster)
    passed = await served(cluster)
    service.process.send_signal(signal.SIGCONT)
    await asyncio.to_thread(service.busy)
    wait_until(lambda: service.told("TransactionRolledBack"), deadline_s=SOON_S, what="a refusal")
    assert service.process.stdin is not None
    service.process.stdin.close()
    wait_until(lambda: service.lines()[-1] == ["closed"], deadline_s=SOON_S, what="the service's end")
    await nothing_pending(cluster)
    rows = await served(cluster)
    assert passed.items() <= rows.items()
    assert service.committed().items() <= rows.items()
    assert not service.told("TransactionRolledBack") & rows.keys(), "rolled back means not visible"
    cluster_id = await id_of(cluster)
    for pump in cluster.pumps.values():
        assert (await cluster.inspect(pump, cluster_id)).late_commit_count == 0


async def test_service_close_leaves_no_pending_prewrites(cluster: Cluster) -> None:
    """With everything under way: cancelled transactions and prewrites whose answers are not awaited any more."""
    service = await Service.connect(cluster.url, tso_source="own", lease_ttl_s=600)
    await service.create_database("shop")
    table = await service.create_table("shop", Table("t", Column("id", BigInt(), primary_key=True)))
    numbers, committed, refused = itertools.count(1), {}, set()

    async def write() -> None:
        while True:
            txn = await service.begin()
            txn.insert(table, {"id": next(numbers)})
            try:
                committed[txn.start_ts] = await txn.commit()
            except ClientClosed:
                refused.add(txn.start_ts)
                raise
            except CommitUndelivered:
                pass

    writers = [asyncio.create_task(write()) for _ in range(64)]
    async with asyncio.timeout(60):
        while len(committed) < 200:  # noqa: ASYNC110  a count, from outside
            await asyncio.sleep(0.01)
    await service.close(wait_s=0)
    for result in await asyncio.gather(*writers, return_exceptions=True):
        assert isinstance(result, ClientClosed | CommitUndelivered), result
    async with asyncio.timeout(90):  # far below the lease's ten minutes
        while await pending(cluster):  # noqa: ASYNC110  other processes
            await asyncio.sleep(0.1)
    rows = await served(cluster)
    assert committed.items() <= rows.items()
    assert not refused & rows.keys()


@pytest.mark.parametrize(("point", "committed"), [("sdk.ddl_after_prewrite", False), ("sdk.ddl_after_publish", True)])
async def test_ddl_of_killed_writer_ends_as_published_job_says(cluster: Cluster, point: str, committed: bool) -> None:
    died = await asyncio.to_thread(child, cluster, point, ttl_s=2)
    assert died.returncode == -signal.SIGKILL, died.stderr
    await nothing_pending(cluster)
    etcd = connect_etcd([cluster.url])
    jobs = [Job.from_json(text) for _, text in await PublishedJobs(etcd).all()]
    await etcd.close()
    async with await Service.connect(cluster.url, tso_source="own") as looker:
        until_ts = await looker._context.timestamps.get()
        found = [
            (envelope.ddl_job_id, envelope.commit_ts)
            for pump in cluster.pumps.values()
            for envelope in await cluster.pull(pump, looker.client.cluster_id, until_ts)
        ]
    assert found == [(job.id, job.finished_ts) for job in jobs]
    assert len(found) == committed


@pytest.mark.slow
async def test_a_busy_event_loop_keeps_its_lease(cluster: Cluster) -> None:
    """Blocked for twice as long as the lease lives, with a transaction between prewrite and commit."""
    async with await Service.connect(cluster.url, tso_source="own", lease_ttl_s=5) as service:
        await service.create_database("shop")
        table = await service.create_table("shop", Table("t", Column("id", BigInt(), primary_key=True)))
        plain = service._context.timestamps.get

        async def busy() -> int:
            time.sleep(11)  # noqa: ASYNC251  that is the point
            return await plain()

        txn = await service.begin()
        txn.insert(table, {"id": 1})
        service._context.timestamps.get = busy  # type: ignore[method-assign]
        commit_ts = await txn.commit()
        service._context.timestamps.get = plain  # type: ignore[method-assign]
        assert len(await living_writers(service._context.etcd)) == 1
    assert (await served(cluster))[txn.start_ts] == commit_ts


async def undelivered(
    cluster: Cluster, service: Service, table: Table, cut: signal.Signals
) -> tuple[Pump, Transaction]:
    """A transaction whose pump gets `cut` between its prewrite and its commit: the service learns no outcome."""
    plain = service._context.timestamps.get
    hit: list[Pump] = []

    async def then_cut() -> int:
        commit_ts = await plain()
        holder = service.client._writer.tracker._open[txn.start_ts].pump
        assert holder is not None
        hit.append(cluster.pumps[holder])
        os.kill(hit[0].server.process.pid, cut)  # type: ignore[union-attr]
        return commit_ts

    txn = await service.begin()
    txn.insert(table, {"id": 1})
    service._context.timestamps.get = then_cut  # type: ignore[method-assign]
    try:
        with pytest.raises(CommitUndelivered):
            await txn.commit()
    finally:
        service._context.timestamps.get = plain  # type: ignore[method-assign]
    return hit[0], txn


@pytest.mark.parametrize("cut", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_undelivered_transaction_of_living_service_is_ended_by_pumps(
    cluster: Cluster, cut: signal.Signals
) -> None:
    """The pump never gets the commit, or its answer is not awaited; the service gives up and works on."""
    patient = Limits(detect_s=0.5)
    async with await Service.connect(cluster.url, tso_source="own", lease_ttl_s=600, limits=patient) as service:
        await service.create_database("shop")
        table = await service.create_table("shop", Table("t", Column("id", BigInt(), primary_key=True)))
        before = await living_writers(service._context.etcd)
        service.client._writer.limits = Limits(write_timeout_s=10, commit_budget_s=1, detect_s=0.5)
        pump, left = await undelivered(cluster, service, table, cut)
        service.client._writer.limits = patient
        if cut is signal.SIGKILL:
            await asyncio.to_thread(pump.server.kill)
            await asyncio.to_thread(pump.start)
        else:
            os.kill(pump.server.process.pid, signal.SIGCONT)  # type: ignore[union-attr]
        await nothing_pending(cluster)  # far below the lease's ten minutes
        async with service.transaction() as later:
            later.insert(table, {"id": 2})
        assert not await living_writers(service._context.etcd) & before
        assert left.commit_ts is not None
        try:
            await service.client.commit(left.start_ts, left.commit_ts)
            expected = {left.start_ts: left.commit_ts}
        except TransactionRolledBack:
            expected = {}
        assert not expected or cut is signal.SIGSTOP, "a commit that was never sent to a living pump"
        assert await served(cluster) == {**expected, later.start_ts: later.commit_ts}
        for held in cluster.pumps.values():
            assert (await cluster.inspect(held, service.client.cluster_id)).late_commit_count == 0
