"""Transactions and DDL through a whole service: order, versions, and what happens when something fails between."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import pytest
from binlog.envelope import BinlogType, Envelope
from binlog.errors import EtcdError, TimestampUnavailable
from binlog.pb import binlog_pb2
from binlog.tidb.job import ActionType
from binlog.tidb.mutation import parse_prewrite
from binlog.tidb.row import decode_insert
from binlog.tidb.types import SchemaState

from pumpclient.sdk import (
    BadDeclaration,
    BigInt,
    Column,
    Index,
    Int,
    RowRejected,
    SchemaConflict,
    SchemaExists,
    SchemaNotFound,
    Table,
    TransactionEnded,
    ValueRejected,
    VarChar,
)
from pumpclient.sdk.ddl import LOCK_KEY, DdlLockLost, DdlLockTimeout, ddl_lock
from pumpclient.sdk.service import Service
from tests.support.keep_alive_task import KeepAliveTask
from tests.unit.pumpclient.conftest import until
from tests.unit.pumpclient.sdk.conftest import Shop, begun


def orders() -> Table:
    return Table("orders", Column("id", BigInt(), primary_key=True), Column("note", VarChar(10)))


async def opened(shop: Shop) -> tuple[Service, Table]:
    service = await shop.service()
    await service.create_database("shop")
    return service, await service.create_table("shop", orders())


# --- transactions ----------------------------------------------------------------------------------------------------


async def test_rows_leave_as_one_prewrite_and_one_commit(shop: Shop) -> None:
    service, table = await opened(shop)
    pump = shop.pumps["a"]
    pump.received.clear()
    async with service.transaction() as txn:
        txn.insert(table, {"id": 1, "note": "a"})
        txn.update(table, old={"id": 1, "note": "a"}, new={"id": 1, "note": "b"})
        txn.update(table, old={"id": 1, "note": "b"}, new={"id": 1, "note": "b"})  # nothing
        txn.update(table, old={"id": 1, "note": "b"}, new={"id": 2, "note": "b"})  # moves: delete and insert
        txn.delete(table, {"id": 2, "note": "b"})
        assert not pump.received
    prewrite, commit = pump.received
    assert (prewrite.tp, prewrite.start_ts, prewrite.schema_version) == (BinlogType.PREWRITE, txn.start_ts, 2)
    assert (commit.tp, commit.commit_ts) == (BinlogType.COMMIT, txn.commit_ts)
    assert txn.commit_ts is not None
    assert txn.commit_ts > txn.start_ts
    assert txn.row_count == 5
    binlog = binlog_pb2.Binlog.FromString(pump.payloads[-2])
    (mutation,) = parse_prewrite(binlog.prewrite_value).mutations
    assert table.bound is not None
    assert mutation.table_id == table.bound.info.id
    assert mutation.sequence == [0, 1, 4, 0, 4]
    assert decode_insert(table.bound.info, mutation.inserted[1])[0] == (2,)


async def test_transaction_that_fails_or_is_empty_sends_nothing(shop: Shop) -> None:
    service, table = await opened(shop)
    pump = shop.pumps["a"]
    pump.received.clear()
    with pytest.raises(ZeroDivisionError):
        async with service.transaction() as txn:
            txn.insert(table, {"id": 1})
            raise ZeroDivisionError
    async with service.transaction():
        pass
    manual = await begun(service, table)
    await manual.rollback()
    assert not pump.received
    with pytest.raises(TransactionEnded, match="is rolled back"):
        await manual.commit()
    with pytest.raises(TransactionEnded):
        manual.insert(table, {"id": 2})


async def test_a_refused_row_leaves_the_transaction_usable(shop: Shop) -> None:
    service, table = await opened(shop)
    async with service.transaction() as txn:
        with pytest.raises(ValueRejected, match=r"shop\.orders\.note"):
            txn.insert(table, {"id": 1, "note": "x" * 11})
        with pytest.raises(RowRejected):
            txn.insert(orders(), {"id": 1})
        txn.insert(table, {"id": 1, "note": "x"})
    assert txn.row_count == 1


# --- versions --------------------------------------------------------------------------------------------------------


async def test_transaction_keeps_schema_version_of_its_table_handle(shop: Shop) -> None:
    """Opened before an ALTER, committed after it: written as of before."""
    service, old = await opened(shop)
    txn = await service.begin()
    txn.insert(old, {"id": 1, "note": "x"})
    new = await service.alter_table(old, add=[Column("n", Int(), default=5)])
    await txn.commit()
    assert shop.received()[-2].schema_version == 2
    async with service.transaction() as later:
        later.insert(new, {"id": 2, "note": "x", "n": 6})
    assert shop.received()[-2].schema_version == 3
    async with service.transaction() as stale:
        stale.insert(old, {"id": 3, "note": "x"})
    assert shop.received()[-2].schema_version == 2
    mixed = await service.begin()
    mixed.insert(old, {"id": 4})
    with pytest.raises(SchemaConflict, match="get both handles again"):
        mixed.insert(new, {"id": 4})
    await mixed.commit()  # the row that was refused is not in it


async def test_service_sees_tables_of_another_service(shop: Shop) -> None:
    first, table = await opened(shop)
    second = await shop.service()
    assert await second.tables("shop") == ("orders",)
    await first.alter_table(table, add=[Column("n", Int())])
    await until(lambda: second.catalog.version == 3)  # told by the watch
    handle = await second.table("shop", "orders")
    assert handle.column_names == ("id", "note", "n")
    async with second.transaction() as txn:
        txn.insert(handle, {"id": 1, "n": 5})
    assert shop.received()[-2].schema_version == 3
    with pytest.raises(SchemaNotFound):
        await second.table("shop", "nothing")


async def test_job_watch_recovers_after_etcd_outage(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pumpclient.sdk.service.RELOAD_S", 0.01)
    first, table = await opened(shop)
    second = await shop.service()
    shop.etcd.fail()
    await asyncio.sleep(0.03)
    shop.etcd.recover()
    await first.alter_table(table, add=[Column("n", Int())])
    await until(lambda: second.catalog.version == 3)


# --- snapshots -------------------------------------------------------------------------------------------------------


def row(number: int, note: str = "n") -> dict[str, object]:
    return {"id": number, "note": note}


def committed_rows(shop: Shop, table: Table) -> list[list[object]]:
    """The keys of the inserts of each transaction that is committed with rows, in order."""
    pump, found = shop.pumps["a"], []
    assert table.bound is not None
    prewrites = (binlog_pb2.Binlog.FromString(payload) for payload in pump.payloads)
    for binlog in sorted(prewrites, key=lambda one: pump.commits.get(one.start_ts, 0)):
        if binlog.tp == BinlogType.PREWRITE and binlog.prewrite_value and binlog.start_ts in pump.commits:
            (mutation,) = parse_prewrite(binlog.prewrite_value).mutations
            assert set(mutation.sequence) == {0}, "inserts only"
            found.append([decode_insert(table.bound.info, one)[0][0] for one in mutation.inserted])
    return found


@dataclass
class Source:
    """Pages of two rows, 1 to 6, as a generator makes them: locked while a page is out, recorded after that. When the
    rows of the second page are sent, they get no commit_ts as often as `failures` says."""

    shop: Shop
    failures: int = 0
    locked: bool = False
    recorded: int = 0
    commits: list[int] = field(default_factory=list)

    def pages(self) -> Iterator[Iterator[dict[str, object]]]:
        while self.recorded < 6:
            self.locked = True
            try:
                yield (row(number) for number in (self.recorded + 1, self.recorded + 2))
            finally:
                self.locked = False
            self.commits.append(len(self.shop.pumps["a"].commits))
            self.recorded += 2

    async def awaited(self) -> AsyncIterator[Iterator[dict[str, object]]]:
        with contextlib.closing(self.pages()) as pages:  # type: ignore[type-var]
            for page in pages:
                yield page

    def sent(self, envelope: Envelope) -> None:
        assert self.locked
        if self.recorded == 2 and self.failures and envelope.tp == BinlogType.PREWRITE:
            self.failures -= 1
            self.shop.timestamps.fail = 1


@pytest.mark.parametrize("way", ["pages", "awaited"])
async def test_snapshot_takes_next_page_when_last_is_committed_and_continues_after_failure(
    shop: Shop, way: str
) -> None:
    service, table = await opened(shop)
    pump, source = shop.pumps["a"], Source(shop, failures=2)
    before = len(pump.commits)
    pump.on_write = source.sent
    pages = getattr(source, way)()
    with pytest.raises(TimestampUnavailable):
        await service.snapshot(table, pages, within_s=0)
    assert (source.locked, source.recorded) == (False, 2), "the second page was not recorded, and is not locked"
    assert await service.snapshot(table, getattr(source, way)(), within_s=60) == 4
    assert source.failures == 0, "a page that can be read only once was sent twice"
    assert committed_rows(shop, table) == [[1, 2], [3, 4], [5, 6]]
    assert source.commits == [before + 1, before + 2, before + 3]


async def test_snapshot_refuses_rows_that_would_be_doubled_or_lose_values(shop: Shop) -> None:
    """Tables without a key that every row has, rows that lack a column, and handles that are out of date."""
    service, table = await opened(shop)
    number = Column("number", Int())
    for name, declared in {
        "bag": Table("bag", number),
        "index": Table("index", Column("id", Int(), nullable=False), indexes=[["id"]]),
        "nulls": Table("nulls", Column("id", Int(), nullable=False), number, unique=[["id", "number"]]),
        "prefix": Table("prefix", Column("note", VarChar(10), nullable=False), unique=[[("note", 2)]]),
    }.items():
        made = await service.create_table("shop", declared)
        with pytest.raises(BadDeclaration, match=rf"{name}: a snapshot needs a primary key"):
            await service.snapshot(made, [[{"number": 1}]])
    unique = await service.create_table("shop", Table("u", Column("n", Int(), nullable=False), unique=[["n"]]))
    assert await service.snapshot(unique, [[{"n": 1}]]) == 1
    sent = len(shop.received())
    with pytest.raises(RowRejected, match=r"orders\.note: missing"):
        await service.snapshot(table, [[row(1), {"id": 2}]])
    other = await shop.service()
    assert service._follower is not None
    service._follower.cancel()  # it learns of the ALTER by reading the jobs again
    await other.alter_table(await other.table("shop", "orders"), add=[Column("n", Int())])
    sent += 2
    with pytest.raises(SchemaConflict, match=r"orders has changed since version 2"):
        await service.snapshot(table, [[row(1)]])
    with pytest.raises(RowRejected, match="only declared"):
        await service.snapshot(orders(), [[row(1)]])
    with pytest.raises(BadDeclaration, match="must be a Table"):
        await service.snapshot("orders", [])  # type: ignore[arg-type]
    assert len(shop.received()) == sent


# --- DDL -------------------------------------------------------------------------------------------------------------


async def test_ddl_is_prewritten_then_published_then_committed(shop: Shop) -> None:
    """P acknowledged, then the commit_ts, then the job, then C: seen from the etcd and the pump."""
    service = await shop.service()
    pump = shop.pumps["a"]
    events: list[tuple[str, int]] = []
    pump.on_write = lambda e: events.append((BinlogType(e.tp).name, e.commit_ts))
    put = shop.etcd._write

    def spying(puts, deletes):  # type: ignore[no-untyped-def]
        for one in puts:
            if "/ddl/jobs/" in one.key:
                events.append(("JOB", 0))
        return put(puts, deletes)

    shop.etcd._write = spying  # type: ignore[method-assign]
    await service.create_database("shop")
    (job,) = await shop.jobs()
    assert events == [("PREWRITE", 0), ("JOB", 0), ("COMMIT", job.finished_ts)]
    assert job.finished_ts > job.start_ts
    assert (job.type, job.schema_version, job.query) == (ActionType.CREATE_SCHEMA, 1, "CREATE DATABASE `shop`;")
    prewrite, commit = pump.received
    assert prewrite.ddl_job_id == commit.ddl_job_id == job.id
    binlog = binlog_pb2.Binlog.FromString(pump.payloads[0])
    assert binlog.ddl_query.decode() == job.query
    assert binlog.ddl_schema_state == 5
    assert binlog.prewrite_key.startswith(b"mDBs")


async def test_ddl_methods_publish_expected_jobs_with_text_of_tidb(shop: Shop) -> None:
    service, table = await opened(shop)
    table = await service.alter_table(table, add=[Column("n", Int(), default=5)], after="id")
    table = await service.alter_table(table, drop=["note"])
    table = await service.create_index(table, "un", ["n"], unique=True)
    table = await service.drop_index(table, "un")
    table = await service.alter_table(
        table, add=[Column("p", Int()), Column("q", Int())], add_index=[Index.over("pq", ["p", "q"])], first=True
    )
    table = await service.rename_table(table, "bills")
    await service.create_database("archive")
    table = await service.rename_table(table, "bills", schema="archive")
    table = await service.truncate_table(table)
    await service.drop_table(table)
    await service.drop_database("archive")
    jobs = await shop.jobs()
    assert [(job.type.value, job.schema_state.value, job.schema_name, job.query) for job in jobs[2:]] == [
        (5, 5, "shop", "ALTER TABLE `orders` ADD COLUMN `n` INT DEFAULT 5 AFTER `id`;"),
        (6, 0, "shop", "ALTER TABLE `orders` DROP COLUMN `note`;"),
        (7, 5, "shop", "ALTER TABLE `orders` ADD UNIQUE `un`(`n`);"),
        (8, 0, "shop", "ALTER TABLE `orders` DROP INDEX `un`;"),
        (
            61,
            0,
            "shop",
            "ALTER TABLE `orders` ADD COLUMN `p` INT FIRST, ADD COLUMN `q` INT AFTER `p`, ADD INDEX `pq`(`p`, `q`);",
        ),
        (14, 5, "shop", "RENAME TABLE `orders` TO `bills`;"),
        (1, 5, "archive", "CREATE DATABASE `archive`;"),
        (14, 5, "archive", "RENAME TABLE `shop`.`bills` TO `archive`.`bills`;"),
        (11, 5, "archive", "TRUNCATE TABLE `bills`;"),
        (4, 0, "archive", "DROP TABLE `bills`;"),
        (2, 0, "archive", "DROP DATABASE `archive`;"),
    ]
    assert [job.schema_version for job in jobs] == list(range(1, 14))
    assert len({job.id for job in jobs}) == 13
    truncate, drop = jobs[-3], jobs[-2]
    assert truncate.table_info is not None
    assert drop.table_info is not None
    assert truncate.table_id != truncate.table_info.id == drop.table_id
    assert drop.table_info.state is SchemaState.NONE
    assert [c.name for c in drop.table_info.columns] == ["p", "q", "id", "n"]
    assert [job.finished_ts for job in jobs] == sorted({job.finished_ts for job in jobs})


async def test_ddl_text_runs_supported_statements_and_refuses_others(shop: Shop) -> None:
    service, _ = await opened(shop)
    await service.ddl("create database `b``c`")
    assert await service.databases() == ("b`c", "shop")
    table = await service.ddl("CREATE UNIQUE INDEX u ON shop.orders (note, id)")
    assert table is not None
    assert table.keys[0].columns == (("note", -1), ("id", -1))
    await service.ddl("DROP INDEX u ON shop.orders;")
    table = await service.ddl("Alter Table `shop` . `orders` drop column note")
    assert table is not None
    assert table.column_names == ("id",)
    await service.ddl("TRUNCATE shop.orders")
    await service.ddl("RENAME TABLE shop.orders TO shop.bills")
    assert await service.ddl("DROP TABLE shop.bills") is None
    await service.ddl("drop database shop")
    for text in ("CREATE TABLE shop.t (a INT)", "DROP TABLE orders", "ALTER TABLE a.b DROP x, ADD y INT", "", "DELETE"):
        with pytest.raises(BadDeclaration):
            await service.ddl(text)


async def test_impossible_ddl_is_refused_and_leaves_no_job_lock_or_prewrite(shop: Shop) -> None:
    service, table = await opened(shop)
    with pytest.raises(SchemaExists):
        await service.create_database("SHOP")
    with pytest.raises(SchemaExists):
        await service.create_table("shop", orders())
    with pytest.raises(SchemaNotFound):
        await service.create_table("nowhere", orders())
    with pytest.raises(SchemaExists, match="column note already exists"):
        await service.alter_table(table, add=[Column("note", Int())])
    with pytest.raises(BadDeclaration, match="part of the primary key"):
        await service.alter_table(table, drop=["id"])
    with pytest.raises(SchemaNotFound, match="no column nope"):
        await service.alter_table(table, drop=["nope"])
    with pytest.raises(SchemaNotFound, match="no key nope"):
        await service.drop_index(table, "nope")
    with pytest.raises(BadDeclaration, match="contains no change"):
        await service.alter_table(table)
    with pytest.raises(BadDeclaration, match="only declared"):
        await service.drop_table(orders())
    assert len(await shop.jobs()) == 2
    assert await shop.etcd.get(LOCK_KEY) is None  # the lock is given back
    assert not shop.pumps["a"].pending


async def test_ddl_of_concurrent_services_is_serialized(shop: Shop) -> None:
    services = [await shop.service() for _ in range(3)]
    await services[0].create_database("shop")
    names = [f"t{n}" for n in range(12)]
    await asyncio.gather(
        *(services[n % 3].create_table("shop", Table(name, Column("a", Int()))) for n, name in enumerate(names))
    )
    jobs = await shop.jobs()
    assert sorted(job.table_name for job in jobs[1:]) == sorted(names)
    spans = [(job.start_ts, job.finished_ts) for job in jobs]
    assert all(one[1] < two[0] for one, two in itertools.pairwise(spans))
    assert len({job.table_id for job in jobs}) == 13


async def test_lost_ddl_lock_publishes_no_job_and_rolls_back_prewrite(shop: Shop) -> None:
    """A holder that slept through its lease: the job is fenced off, the prewrite is taken back."""
    service, _ = await opened(shop)
    pump = shop.pumps["a"]

    def expire(envelope: object) -> None:
        for lease in list(shop.etcd.leases):
            shop.etcd.expire(lease)

    pump.on_write = expire
    with pytest.raises(DdlLockLost, match="was lost before job"):
        await service.create_database("other")
    assert len(await shop.jobs()) == 2
    assert not pump.pending
    assert await service.databases() == ("shop",)


async def test_ddl_lock_times_out_while_held_and_is_free_afterwards(shop: Shop) -> None:
    async with ddl_lock(shop.etcd, "somebody", KeepAliveTask):
        with pytest.raises(DdlLockTimeout, match="somebody holds it"):
            async with ddl_lock(shop.etcd, "me", KeepAliveTask, wait_s=0.05):
                pass
    async with ddl_lock(shop.etcd, "me", KeepAliveTask, wait_s=0.05):
        pass


async def test_ddl_with_lost_publication_answer_is_found_published(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to the publishing transaction is lost: it is looked up, and found done."""
    monkeypatch.setattr("pumpclient.sdk.ddl.CONFIRM_PAUSE_S", 0.01)
    service, _ = await opened(shop)
    txn, calls = shop.etcd.txn, 0

    async def losing(*args, **options):  # type: ignore[no-untyped-def]
        nonlocal calls
        done = await txn(*args, **options)
        if any("/ddl/jobs/" in put.key for put in args[1]):
            calls += 1
            if calls == 1:
                raise EtcdError("the answer is lost")
        return done

    shop.etcd.txn = losing  # type: ignore[method-assign]
    await service.create_database("other")
    assert calls == 2
    assert await service.databases() == ("other", "shop")
    assert not shop.pumps["a"].pending


async def test_cancelled_ddl_is_either_published_and_committed_or_neither(shop: Shop) -> None:
    service, _ = await opened(shop)
    pump = shop.pumps["a"]
    for turns in range(60):
        task = asyncio.create_task(service.create_database(f"d{turns}"))
        for _ in range(turns * 3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: not pump.pending and not service.client.open_transactions)
    published = {job.id: job.finished_ts for job in await shop.jobs()}
    commits = {e.ddl_job_id: e.commit_ts for e in pump.received if e.tp == BinlogType.COMMIT}
    assert published == commits
