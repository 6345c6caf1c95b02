"""The faces for threads: the same calls, blocking, from many threads at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from binlog.envelope import BinlogType

from pumpclient.sdk import BigInt, Column, SyncService, SyncTransaction, Table, ValueRejected, VarChar
from pumpclient.sdk.service import Service
from pumpclient.sdk.sync import LoopThread
from tests.unit.pumpclient.conftest import FAST
from tests.unit.pumpclient.sdk.conftest import Shop
from tests.unit.pumpclient.stub_pump import Fault


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.stop()


async def _shop() -> tuple[Shop, Service]:
    shop = Shop()
    await shop.add("a")
    return shop, await shop.service()


def test_sync_service_runs_transactions_and_ddl_from_several_threads(loop: LoopThread) -> None:
    shop, inner = loop.run(_shop())
    service = SyncService(inner, loop)
    service.create_database("shop")
    table = service.create_table("shop", Table("t", Column("id", BigInt(), primary_key=True)))

    def one(number: int) -> int:
        with service.transaction() as txn:
            txn.insert(table, {"id": number})
        assert txn.commit_ts is not None
        return txn.commit_ts

    with ThreadPoolExecutor(8) as threads:
        commits = list(threads.map(one, range(50)))
    assert len(set(commits)) == 50
    assert service.write(table, [{"id": 100}, {"id": 101}]) > max(commits)
    with pytest.raises(ValueRejected), service.transaction() as txn:
        txn.insert(table, {"id": "x"})
    wider = service.alter_table(table, add=[Column("v", VarChar(3))])
    assert wider.column_names == ("id", "v")
    assert service.table("shop", "t").column_names == ("id", "v")
    renamed = service.rename_table(wider, "u")
    assert service.tables("shop") == ("u",)
    service.drop_table(service.truncate_table(renamed))
    service.ddl("DROP DATABASE shop")
    assert service.databases() == ()
    loop.run(shop.close())


def test_loop_thread_refuses_blocking_call_inside_its_event_loop(loop: LoopThread) -> None:
    async def nested() -> None:
        loop.run(nothing())

    async def nothing() -> None:
        return

    with pytest.raises(RuntimeError, match="in the event loop"):
        loop.run(nested())


def test_a_failed_connect_leaves_no_thread() -> None:
    def connect() -> None:
        with pytest.raises(Exception):  # noqa: B017  whatever is missing first; the thread is what is looked at
            SyncService.connect("http://127.0.0.1:1", tso_source="own")

    connect()  # grpc's own thread stays from the first call of a process on
    before = set(threading.enumerate())
    connect()
    assert set(threading.enumerate()) <= before


def test_sync_run_repeats_rolled_back_transaction_and_asks_for_lost_answer(loop: LoopThread) -> None:
    """The answer of the first commit is lost for longer than its budget: asked, and not written again."""

    async def brief() -> tuple[Shop, Service]:
        shop = Shop()
        await shop.add("a")
        return shop, await shop.service(limits=replace(FAST, write_timeout_s=60, commit_budget_s=0.02))

    shop, inner = loop.run(brief())
    service = SyncService(inner, loop)
    service.create_database("shop")
    table = service.create_table("shop", Table("t", Column("id", BigInt(), primary_key=True)))
    pump = shop.pumps["a"]
    pump.only = lambda envelope: envelope.tp == BinlogType.COMMIT
    attempts: list[int] = []

    def work(txn: SyncTransaction) -> None:
        attempts.append(txn.start_ts)
        txn.insert(table, {"id": len(attempts)})
        if len(attempts) == 1:
            pump.faults.append(Fault.ERRMSG)
            pump.on_write = lambda envelope: envelope.tp == BinlogType.COMMIT and pump.store_rollback(envelope.start_ts)
        else:
            pump.on_write = lambda envelope: None
            pump.faults.extend([Fault.LOSE_ANSWER] * 20)

    commit_ts = service.run(work, within_s=60)
    assert len(attempts) == 2, "rolled back by its pump, then committed once"
    assert pump.commits.get(attempts[1]) == commit_ts
    assert attempts[0] not in pump.commits
    with service.transaction() as txn:
        txn.insert(table, {"id": 9})
    assert txn.outcome() is True
    assert (service.in_flight, service.queued) == (0, 0)
    taken_by: list[int] = []

    def pages() -> Iterator[list[dict[str, object]]]:
        try:
            for number in (20, 22):
                taken_by.append(threading.get_ident())
                yield [{"id": number}, {"id": number + 1}]
            yield [{"id": "x"}]
        finally:
            taken_by.append(threading.get_ident())

    commits = len(pump.commits)
    with pytest.raises(ValueRejected):
        service.snapshot(table, pages_taken := pages())
    assert len(pump.commits) == commits + 2
    assert taken_by == [threading.get_ident()] * 3, "in the caller's thread, and closed"
    assert next(pages_taken, None) is None
    assert service.snapshot(table, [[{"id": 20}], [{"id": 21}, {"id": 22}]]) == 3
    with pytest.raises(ValueError, match="mine"):
        service.run(raising, within_s=60)
    loop.run(shop.close())


def raising(txn: SyncTransaction) -> None:
    raise ValueError("mine")
