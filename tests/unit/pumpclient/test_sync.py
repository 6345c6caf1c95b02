"""The faces for threads: the same calls, blocking, from many threads at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pumpclient.errors import UnknownTransaction
from pumpclient.sdk import BigInt, Column, SyncService, Table, ValueRejected, VarChar
from pumpclient.sdk.service import Service
from pumpclient.sync import LoopThread, SyncPumpsClient
from tests.unit.pumpclient.sdk.conftest import Shop


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("test")
    yield thread
    thread.stop()


async def _shop() -> tuple[Shop, Service]:
    shop = Shop()
    await shop.add("a")
    return shop, await shop.service()


def test_client_from_threads(loop: LoopThread) -> None:
    shop, service = loop.run(_shop())
    client = SyncPumpsClient(service.client, loop)

    def one(start_ts: int) -> None:
        client.write_prewrite(start_ts, b"k", b"\x08\x01")
        client.commit(start_ts, start_ts + 1)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(one, range(10, 110, 2)))
    assert shop.pumps["a"].commits == {ts: ts + 1 for ts in range(10, 110, 2)}
    with pytest.raises(UnknownTransaction):
        client.rollback(5)
    loop.run(shop.close())


def test_service_from_threads(loop: LoopThread) -> None:
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


def test_no_blocking_call_inside_the_loop(loop: LoopThread) -> None:
    async def nested() -> None:
        loop.run(nothing())

    async def nothing() -> None:
        return

    with pytest.raises(RuntimeError, match="inside the event loop"):
        loop.run(nested())


def test_a_failed_connect_leaves_no_thread() -> None:
    import threading

    def connect() -> None:
        with pytest.raises(Exception):  # noqa: B017  whatever is missing first; the thread is what is looked at
            SyncService.connect("http://127.0.0.1:1", tso_source="own")

    connect()  # grpc's own thread stays from the first call of a process on
    before = set(threading.enumerate())
    connect()
    assert set(threading.enumerate()) <= before
