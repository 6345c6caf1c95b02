"""Rule 24 in a service that lives on: what it cannot end, the pumps end, for the writer's id is retired."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from binlog.cluster.etcd import Compare, Lease, Put
from binlog.cluster.writers import living_writers
from binlog.envelope import BinlogType, scan, writer_of
from binlog.errors import EtcdError, TimestampUnavailable

from pumpclient.sdk import (
    CommitUndelivered,
    DdlUndecided,
    Service,
    Table,
    TransactionRolledBack,
)
from pumpclient.sdk import ddl as sdk_ddl
from pumpclient.sdk.lease import WriterLease
from tests.support.keep_alive_task import KeepAliveTask
from tests.support.memory_etcd import MemoryEtcd
from tests.unit.pumpclient.conftest import FAST, until
from tests.unit.pumpclient.sdk.conftest import Shop, begun, opened
from tests.unit.pumpclient.stub_pump import Fault

HASTY = replace(FAST, commit_budget_s=0.05)


def writer_under(shop: Shop, start_ts: int) -> bytes:
    """Whom the prewrite of `start_ts` names."""
    return next(writer_of(p, scan(p)) for p in shop.pumps["a"].payloads if scan(p).start_ts == start_ts)


async def undelivered(shop: Shop, service: Service, table: Table) -> CommitUndelivered:
    """One transaction whose commit the pump never takes, and whose prewrite it holds."""
    pump = shop.pumps["a"]
    pump.only = lambda envelope: envelope.tp == BinlogType.COMMIT
    pump.faults.extend([Fault.REFUSE_TEXT] * 100)
    txn = await begun(service, table)
    with pytest.raises(CommitUndelivered) as caught:
        await txn.commit()
    pump.faults.clear()
    return caught.value


async def gone(shop: Shop, writer: bytes) -> None:
    async with asyncio.timeout(60):
        while writer in await living_writers(shop.etcd):  # noqa: ASYNC110  what another task ends
            await asyncio.sleep(0.01)


async def test_undelivered_commit_retires_writer_id_and_ends_its_lease(shop: Shop) -> None:
    service, table = await opened(shop, limits=HASTY)
    error = await undelivered(shop, service, table)
    left = writer_under(shop, error.start_ts)
    await gone(shop, left)
    async with service.transaction() as txn:
        txn.insert(table, {"id": 2})
    assert txn.commit_ts in shop.pumps["a"].commits.values()
    assert writer_under(shop, txn.start_ts) != left
    assert await living_writers(shop.etcd) == {writer_under(shop, txn.start_ts)}


async def test_commit_repeated_after_rollback_by_pump_raises_transaction_rolled_back(shop: Shop) -> None:
    service, table = await opened(shop, limits=HASTY)
    error = await undelivered(shop, service, table)
    await gone(shop, writer_under(shop, error.start_ts))
    shop.pumps["a"].tombstones.add(error.start_ts)  # what a pump does then
    with pytest.raises(TransactionRolledBack, match="write them again"):
        await service.client.commit(error.start_ts, error.commit_ts)


async def test_retired_lease_lives_until_last_transaction_using_it_ends(shop: Shop) -> None:
    """One that runs under the same id is not ended with the one that failed, not even when its caller has gone."""
    service, table = await opened(shop, limits=HASTY)
    pump = shop.pumps["a"]
    slow = await begun(service, table, 7)
    service.client._writer.limits = FAST
    taken = False
    pump.only = lambda envelope: envelope.tp == BinlogType.COMMIT and not (taken and envelope.start_ts == slow.start_ts)
    pump.faults.extend([Fault.REFUSE_TEXT] * 10_000)
    committing = asyncio.create_task(slow.commit())
    await until(lambda: any(e.tp == BinlogType.COMMIT and e.start_ts == slow.start_ts for e in pump.received))
    committing.cancel()  # its caller goes; its delivery goes on, and counts
    with pytest.raises(asyncio.CancelledError):
        await committing
    service.client._writer.limits = replace(FAST, commit_budget_s=0)
    failed = await begun(service, table, 8)
    with pytest.raises(CommitUndelivered):
        await failed.commit()
    shared = writer_under(shop, slow.start_ts)
    assert writer_under(shop, failed.start_ts) == shared
    later = await begun(service, table, 9)
    with pytest.raises(CommitUndelivered):
        await later.commit()
    await gone(shop, writer_under(shop, later.start_ts))
    assert await living_writers(shop.etcd) == {shared}, "the slow one is still under way"
    taken = True
    await gone(shop, shared)
    assert slow.start_ts in pump.commits
    pump.faults.clear()


async def test_cancelled_commit_that_is_stored_retires_no_writer(shop: Shop) -> None:
    service, table = await opened(shop, limits=HASTY)
    pump = shop.pumps["a"]
    pump.only = lambda envelope: envelope.tp == BinlogType.COMMIT
    pump.faults.append(Fault.LOSE_ANSWER)
    txn = await begun(service, table)
    task = asyncio.create_task(txn.commit())
    await until(lambda: pump.received[-1].tp == BinlogType.COMMIT and pump.received[-1].start_ts == txn.start_ts)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: service.client.open_transactions == 0)
    async with service.transaction() as later:
        later.insert(table, {"id": 2})
    assert writer_under(shop, later.start_ts) == writer_under(shop, txn.start_ts)


async def test_undelivered_rollback_retires_writer_id(shop: Shop) -> None:
    """Without a timestamp the prewrite is taken back; when that does not arrive, it is left to the pumps."""
    service, table = await opened(shop, limits=HASTY)
    pump = shop.pumps["a"]
    txn = await begun(service, table)
    pump.only = lambda envelope: envelope.tp == BinlogType.ROLLBACK
    pump.faults.extend([Fault.REFUSE_TEXT] * 100)
    shop.timestamps.fail = 1
    with pytest.raises((CommitUndelivered, TimestampUnavailable)):
        await txn.commit()
    await gone(shop, writer_under(shop, txn.start_ts))


class Silent(MemoryEtcd):
    """Takes no job and does not say so."""

    silent = False

    async def txn(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int | None:
        if self.silent and puts and "/ddl/jobs/" in puts[0].key:
            raise EtcdError("no answer")
        return await super().txn(compares, puts, deletes)


async def test_ddl_with_unknown_publication_retires_writer_id(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk_ddl, "CONFIRM_TRIES", 2)
    monkeypatch.setattr(sdk_ddl, "CONFIRM_PAUSE_S", 0.01)
    shop.etcd.__class__ = Silent
    service, table = await opened(shop, limits=HASTY)
    shop.etcd.silent = True  # type: ignore[attr-defined]
    with pytest.raises(DdlUndecided) as caught:
        await service.create_database("late")
    (start_ts,) = shop.pumps["a"].pending
    assert str(start_ts) in str(caught.value)
    await gone(shop, writer_under(shop, start_ts))
    shop.etcd.silent = False  # type: ignore[attr-defined]
    async with service.transaction() as txn:
        txn.insert(table, {"id": 1})


async def test_refused_ddl_retires_no_writer(shop: Shop) -> None:
    service, table = await opened(shop, limits=HASTY)
    with pytest.raises(Exception, match="shop"):
        await service.create_database("shop")
    async with service.transaction() as txn:
        txn.insert(table, {"id": 1})
    assert len(await living_writers(shop.etcd)) == 1
    assert len({writer_of(p, scan(p)) for p in shop.pumps["a"].payloads if writer_of(p, scan(p))}) == 1


class Held:
    """A lease whose renewal waits until the test lets it go on."""

    def __init__(self) -> None:
        self.kept: list[Lease] = []
        self.stopped: list[Lease] = []

    def __call__(self, lease: Lease, asked_s: float) -> Held.Kept:
        self.kept.append(lease)
        return Held.Kept(self, lease)

    class Kept:
        def __init__(self, owner: Held, lease: Lease) -> None:
            self._owner = owner
            self._lease = lease
            self.until_s = float("inf")

        def stop(self) -> None:
            self._owner.stopped.append(self._lease)


async def test_retired_lease_is_not_renewed_while_etcd_is_down() -> None:
    """Without etcd nothing is asked twice: the lease runs out by itself."""
    etcd, held = MemoryEtcd(), Held()
    lease = WriterLease(etcd, keep=held)
    use = await lease.enter()
    etcd.fail()
    use.end(decided=False)
    assert held.stopped == held.kept
    etcd.recover()
    other = await lease.enter()
    assert other.id != use.id
    await lease.close()


class Slow(MemoryEtcd):
    """A renewal is asked for, and answered when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()

    async def lease(self, ttl_s: int) -> Lease:  # type: ignore[override]
        return SlowLease(self, await super().lease(ttl_s))


class SlowLease:
    def __init__(self, etcd: Slow, inner: Lease) -> None:
        self._etcd = etcd
        self._inner = inner
        self.id, self.ttl_s = inner.id, inner.ttl_s

    async def keep_alive(self) -> int:
        self._etcd.asked.set()
        await self._etcd.answers.wait()
        return await self._inner.keep_alive()

    async def revoke(self) -> None:
        await self._inner.revoke()


async def test_lease_retired_while_etcd_is_asked_about_it_is_not_used_again() -> None:
    etcd, held = Slow(), Held()
    lease = WriterLease(etcd, keep=held)
    use, under_way = await lease.enter(), await lease.enter()  # so that the lease lives on
    assert lease._held is not None
    lease._held.kept.until_s = 0
    asking = asyncio.create_task(lease.enter())
    await etcd.asked.wait()
    use.end(decided=False)
    etcd.answers.set()
    other = await asking
    under_way.end(decided=True)
    assert len(held.kept) == 2, "the retired one is not renewed again"
    assert other.id != use.id
    await lease.close()
    assert not await living_writers(etcd)


async def test_service_close_ends_retired_leases() -> None:
    etcd = MemoryEtcd()
    lease = WriterLease(etcd, keep=KeepAliveTask)
    uses = [await lease.enter(), await lease.enter()]
    uses[0].end(decided=False)
    await lease.enter()
    assert len(await living_writers(etcd)) == 2
    await lease.close()
    assert not await living_writers(etcd)
    uses[1].end(decided=True)
