"""Rule 24 on the writer's side: who it is, what happens when its lease ends, and how a service is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from binlog.cluster.etcd import Compare, KeepAliveThread, Lease, Put
from binlog.cluster.tso import boot_clock_s
from binlog.cluster.writers import WRITERS_PREFIX, living_writers
from binlog.envelope import BinlogType, scan, writer_of
from binlog.errors import EtcdError

from pumpclient.sdk import ClientClosed, CommitUndelivered, Service, TransactionRolledBack
from pumpclient.sdk.ddl import DdlLockLost
from pumpclient.sdk.lease import WriterLease
from tests.support.keep_alive_task import KeepAliveTask
from tests.support.memory_etcd import MemoryEtcd, MemoryLease
from tests.unit.pumpclient.conftest import until
from tests.unit.pumpclient.sdk.conftest import Shop, begun, opened
from tests.unit.pumpclient.stub_pump import Fault, StubPump


class Unkept:
    """A keep-alive as of a process that stands still: its time is over whenever the test says so."""

    def __init__(self, lease: Lease, asked_s: float) -> None:
        self.until_s = asked_s + lease.ttl_s

    def stop(self) -> None:
        pass


def writers(pump: StubPump) -> list[bytes]:
    """Whom the prewrites name, in the order they came."""
    return [writer_of(p, scan(p)) for p in pump.payloads if scan(p).tp == BinlogType.PREWRITE and scan(p).start_ts]


def sleep_through(shop: Shop, service: Service) -> None:
    """The lease has ended, and this process's clock says so, as after a SIGSTOP."""
    held = service._context.lease._held
    assert held is not None
    shop.etcd.expire(held.lease.id)
    held.kept.until_s = boot_clock_s() - 1


async def test_every_prewrite_names_its_living_writer(shop: Shop) -> None:
    service, table = await opened(shop)
    async with service.transaction() as txn:
        txn.insert(table, {"id": 1})
    (living,) = await living_writers(shop.etcd)
    assert writers(shop.pumps["a"]) == [living] * 3, "two DDLs and a transaction"
    commits = [p for p in shop.pumps["a"].payloads if scan(p).tp == BinlogType.COMMIT]
    assert [writer_of(p, scan(p)) for p in commits] == [b""] * 3


async def test_each_service_registers_its_own_writer(shop: Shop) -> None:
    await shop.service()
    await shop.service()
    assert len(await living_writers(shop.etcd)) == 2


async def test_service_gets_new_writer_id_after_expired_lease(shop: Shop) -> None:
    """An id is never used again: what it left has been rolled back under that name."""
    service, table = await opened(shop, lease=WriterLease(shop.etcd, keep=Unkept))
    before = writers(shop.pumps["a"])[-1]
    sleep_through(shop, service)
    async with service.transaction() as txn:
        txn.insert(table, {"id": 1})
    after = writers(shop.pumps["a"])[-1]
    assert after != before
    assert await living_writers(shop.etcd) == {after}


async def test_writer_lease_continues_if_etcd_still_has_it(shop: Shop) -> None:
    """Our clock says that it may have ended: after an outage of etcd it may live all the same."""
    service, table = await opened(shop, lease=WriterLease(shop.etcd, keep=Unkept))
    held = service._context.lease._held
    assert held is not None
    held.kept.until_s = 0
    async with service.transaction() as txn:
        txn.insert(table, {"id": 1})
    assert len(set(writers(shop.pumps["a"]))) == 1


async def test_no_prewrite_is_sent_while_lease_state_is_unknown(shop: Shop) -> None:
    service, table = await opened(shop, lease=WriterLease(shop.etcd, keep=Unkept))
    sent = len(shop.pumps["a"].received)
    sleep_through(shop, service)
    shop.etcd.fail()
    txn = await begun(service, table)
    with pytest.raises(EtcdError):
        await txn.commit()
    assert len(shop.pumps["a"].received) == sent
    shop.etcd.recover()


async def test_commit_after_rollback_by_pump_raises_transaction_rolled_back(shop: Shop) -> None:
    service, table = await opened(shop)
    pump = shop.pumps["a"]
    txn = await begun(service, table)
    pump.on_write = lambda e: pump.tombstones.add(e.start_ts) if e.tp == BinlogType.COMMIT else None
    with pytest.raises(TransactionRolledBack, match=r"the lease of this writer had ended.*write them again") as caught:
        await txn.commit()
    assert caught.value.start_ts == txn.start_ts
    assert service.client.open_transactions == 0, "it is over, and nothing is kept of it"
    assert service.client.available_pumps == ("a",), "nothing is wrong with the pump"
    pump.on_write = lambda e: None
    async with service.transaction() as again:
        again.insert(table, {"id": 1})
    assert again.commit_ts in pump.commits.values()


async def test_ddl_of_writer_without_lease_publishes_no_job(shop: Shop) -> None:
    service, _ = await opened(shop)
    jobs = len(await shop.jobs())
    pump = shop.pumps["a"]

    def ends(_: object) -> None:
        held = service._context.lease._held
        if held is not None:
            shop.etcd.expire(held.lease.id)

    pump.on_write = ends
    with pytest.raises(DdlLockLost, match="lease"):
        await service.create_database("late")
    assert len(await shop.jobs()) == jobs
    assert not pump.pending


async def test_writer_lease_is_renewed_until_service_is_closed(shop: Shop) -> None:
    """Its end moves away with each renewal, of which this waits for two. Of a lease of a second it would wait for the
    end itself, which a pause of the machine may bring."""
    lease = WriterLease(shop.etcd, ttl_s=4, keep=KeepAliveTask)
    first = await lease.enter()
    (stored,) = shop.etcd.leases.values()

    def ends_s() -> float:
        return stored._timer.when() if stored._timer is not None else 0.0

    begun_s = ends_s()
    await until(lambda: ends_s() > begun_s + 1.5)
    assert await living_writers(shop.etcd) == {first.id}
    await lease.close()
    assert not await living_writers(shop.etcd)


class Asked(MemoryEtcd):
    """Notes when it was asked for a lease last."""

    asked_s = 0.0

    async def lease(self, ttl_s: int) -> MemoryLease:
        self.asked_s = boot_clock_s()
        return await super().lease(ttl_s)

    def check_up(self, request: str) -> None:
        if request == "keep_alive":
            self.asked_s = boot_clock_s()
        super().check_up(request)


async def test_writer_lease_time_counts_from_before_each_request() -> None:
    """An answer may take long, and etcd counts from when it gave it: when it is granted, renewed, and asked whether it
    lives."""
    etcd = Asked()
    lease = WriterLease(etcd, ttl_s=1, keep=Unkept)
    for _ in range(2):
        await lease.ready()
        held = lease._held
        assert held is not None
        assert held.kept.until_s <= etcd.asked_s + 1
        held.kept.until_s = 0
    kept, granted_s = KeepAliveTask(held.lease, boot_clock_s()), etcd.asked_s
    await until(lambda: etcd.asked_s > granted_s)
    assert kept.until_s <= etcd.asked_s + 1
    kept.stop()
    await lease.close()


async def test_lease_time_renewed_by_thread_counts_from_before_request() -> None:
    asked: list[float] = []

    class Thread(KeepAliveThread):
        def _renew(self, _channels: object) -> int:
            asked.append(boot_clock_s())
            return 60

    kept = Thread([], None, MemoryLease(1, 0, MemoryEtcd()), 0.0)
    await until(lambda: kept.until_s > 0)
    kept.stop()
    assert kept.until_s <= asked[0] + 60


class Lossy(MemoryEtcd):
    """The first registration is carried out, and its answer lost."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 1

    async def txn(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int | None:
        answer = await super().txn(compares, puts, deletes)
        if self.lost and puts and puts[0].key.startswith(WRITERS_PREFIX):
            self.lost -= 1
            raise EtcdError("no answer")
        return answer


async def test_writer_id_with_lost_registration_answer_is_not_used() -> None:
    etcd = Lossy()
    lease = WriterLease(etcd, keep=KeepAliveTask)
    with pytest.raises(EtcdError):
        await lease.enter()
    (lost,) = await living_writers(etcd)
    writer = await lease.enter()
    assert writer.id != lost
    assert await etcd.get(f"{WRITERS_PREFIX}{writer.id.hex()}") is not None
    await lease.close()


# --- close ------------------------------------------------------------------------------------------------------------


async def held_up(shop: Shop, tp: BinlogType, fault: Fault = Fault.HANG) -> tuple[Service, asyncio.Task[int], int]:
    """A service with one transaction whose write of type `tp` hangs at the pump."""
    service, table = await opened(shop)
    pump = shop.pumps["a"]
    pump.only = lambda envelope: envelope.tp == tp
    pump.faults.extend([fault] * 20)
    txn = await begun(service, table)
    task = asyncio.create_task(txn.commit())
    await until(lambda: pump.received[-1].tp == tp and pump.received[-1].start_ts == txn.start_ts)
    return service, task, txn.start_ts


async def test_service_close_waits_for_commits_under_way(shop: Shop) -> None:
    service, table = await opened(shop)
    transactions = [await service.begin() for _ in range(20)]
    for number, txn in enumerate(transactions):
        txn.insert(table, {"id": number})
    commits = [asyncio.create_task(txn.commit()) for txn in transactions]
    while len(service._context.under_way) < 20:  # noqa: ASYNC110  all begin in one turn of the loop, and none can end in it
        await asyncio.sleep(0)
    await service.close()
    assert len(set(await asyncio.gather(*commits))) == 20
    assert not shop.pumps["a"].pending
    assert not await living_writers(shop.etcd)


async def test_service_close_cancels_prewrite_that_does_not_end(shop: Shop) -> None:
    service, task, start_ts = await held_up(shop, BinlogType.PREWRITE)
    await service.close(wait_s=0)
    with pytest.raises(ClientClosed, match=f"while transaction {start_ts} was under way: it is not committed"):
        await task
    assert task.cancelling() == 0, "its caller was not cancelled"
    assert not await living_writers(shop.etcd), "the pumps may roll back what is left"


async def test_service_close_raises_commit_undelivered_for_commit_under_way(shop: Shop) -> None:
    service, task, start_ts = await held_up(shop, BinlogType.COMMIT)
    await service.close(wait_s=0)
    with pytest.raises(CommitUndelivered, match="the client was closed") as caught:
        await task
    assert caught.value.start_ts == start_ts
    assert start_ts in shop.pumps["a"].pending
    assert not await living_writers(shop.etcd)


async def test_cancellation_by_caller_raises_cancelled_error(shop: Shop) -> None:
    service, task, _ = await held_up(shop, BinlogType.PREWRITE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await service.close(wait_s=0)


async def test_closed_service_refuses_transactions_and_ddl(shop: Shop) -> None:
    service, table = await opened(shop)
    open_one = await begun(service, table)
    await service.close()
    with pytest.raises(ClientClosed, match="was not sent"):
        await open_one.commit()
    with pytest.raises(ClientClosed):
        await service.begin()
    with pytest.raises(ClientClosed):
        await service.create_database("late")
    await service.close()


async def test_service_close_leaves_ddl_under_publication_pending(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rolling it back here could contradict a job that etcd has just taken."""
    service, _ = await opened(shop)
    pump = shop.pumps["a"]
    asked = asyncio.Event()
    plain = shop.etcd.txn

    async def hangs(compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()) -> int | None:
        if puts and "/ddl/jobs/" in puts[0].key:
            asked.set()
            await asyncio.Event().wait()
        return await plain(compares, puts, deletes)

    monkeypatch.setattr(shop.etcd, "txn", hangs)
    task = asyncio.create_task(service.create_database("late"))
    await asked.wait()
    await service.close(wait_s=0.05)
    with pytest.raises(BaseException, match="being published"):
        await task
    assert len(pump.pending) == 1
    assert not await living_writers(shop.etcd)
