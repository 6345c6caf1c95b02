"""MODIFY, CHANGE and RENAME COLUMN of the SDK, drained into real destinations: rows of old handles around the DDL."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from binlog.cluster.writers import PublishedJobs
from binlog.envelope import BinlogType
from binlog.pb import binlog_pb2
from binlog.tidb.job import Job

from drainer.apply.batch_planner import Mode, PlannedBatch
from drainer.apply.distributed import Cut
from drainer.pipeline import Pipeline
from drainer.schema.history.base import JobHistory
from drainer.schema.state import Schema
from drainer.sink.base import NetSink
from drainer.sink.mysql.sink import MySQLSink
from drainer.sink.sqlite.sink import SQLiteSink
from pumpclient.sdk import (
    BigInt,
    Binary,
    Column,
    DateTime,
    Enum,
    Int,
    NumericType,
    Service,
    SmallInt,
    Table,
    Text,
    VarBinary,
    VarChar,
)
from tests.integration.sink.case import IDENTITY, server_config
from tests.support.local_batch import LocalBatch
from tests.support.servers import MariaDB
from tests.unit.drainer.test_pipeline import StubProvider
from tests.unit.pumpclient.sdk.conftest import Shop

BEGIN = 1


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    made = Shop()
    await made.add("a")
    yield made
    await made.close()


def merged(payloads: Sequence[bytes]) -> list[bytes]:
    """What a pump serves: each commit with the rows of its prewrite."""
    prewrites: dict[int, bytes] = {}
    served: list[tuple[int, bytes]] = []
    for payload in payloads:
        binlog = binlog_pb2.Binlog.FromString(payload)
        if binlog.tp == BinlogType.PREWRITE:
            prewrites[binlog.start_ts] = binlog.prewrite_value
        elif binlog.tp == BinlogType.COMMIT:
            binlog.prewrite_value = prewrites[binlog.start_ts]
            served.append((binlog.commit_ts, binlog.SerializeToString()))
    return [payload for _, payload in sorted(served)]


def drain(destination: NetSink, jobs: Sequence[Job], binlogs: list[bytes], *, batch: int) -> None:
    """`batch`: commits in each batch."""
    position = destination.open(IDENTITY, BEGIN).commit_ts
    provider = StubProvider(Schema.open(JobHistory(list(jobs)), position_ts=position))
    pipeline = Pipeline(destination, provider, Cut(slots=2, chunk_rows=100, digest="d"), position_ts=position)
    commits = [binlog_pb2.Binlog.FromString(payload).commit_ts for payload in binlogs]
    for until in [*commits[batch - 1 :: batch], commits[-1] + 1]:
        if until > pipeline.position_ts:
            after = pipeline.position_ts
            pipeline.run(PlannedBatch(after, until, Mode.DRIVER, (), 1, None), LocalBatch([binlogs], after, until))


def table(name: str, *, key: bool) -> Table:
    return Table(
        name,
        Column("id", BigInt(), primary_key=key),
        Column("n", SmallInt(), nullable=False),
        Column("price", NumericType(6, 2), default="1.50"),
        Column("name", VarChar(10)),
        Column("at", DateTime()),
        Column("state", Enum("new", "paid")),
        Column("count", Int(unsigned=True)),
        indexes={"by_name": ["name"], "by_price": ["price", "n"]},
    )


def row(number: int, **more: object) -> dict[str, object]:
    made: dict[str, object] = {
        "id": number, "n": number, "price": f"{number}.25", "name": f"r{number}", "at": "2026-11-22 01:02:03",
        "state": "new", "count": number,
    }  # fmt: skip
    return {**made, **more}


async def written(service: Service, name: str, *, key: bool) -> Table:
    """Every handle writes before and after every ALTER: inserts, updates and deletes of rows of any age."""
    handles = [await service.create_table("shop", table(name, key=key))]
    first = handles[0]

    async def rows(number: int) -> None:
        async with service.transaction() as txn:
            stored = txn.insert(first, row(number))
            txn.update(first, old=stored, new={"name": f"u{number}", "price": None if number % 2 else "7.00"})
            txn.insert(first, row(number + 1))
            txn.insert(first, row(number + 2))
            txn.delete(first, row(number + 2))

    async def altered(**arguments: object) -> Table:
        handles.append(await service.alter_table(handles[-1], **arguments))  # type: ignore[arg-type]
        return handles[-1]

    await rows(10)
    await altered(rename={"name": "title"})
    await rows(20)
    await altered(modify=[Column("n", BigInt(), nullable=False), Column("price", NumericType(12, 4))])
    await rows(30)
    now = await altered(
        change={"at": Column("made_at", DateTime(3)), "count": Column("total", BigInt())},
        modify=[Column("state", Enum("new", "paid", "gone"), default="gone")],
        add=[Column("x", Int(), default=3)],
    )
    await rows(40)
    async with service.transaction() as txn:
        txn.update(first, old=row(11), new={"name": "late"})  # written before the first ALTER
        txn.delete(first, row(21))
    async with service.transaction() as txn:
        stored = txn.insert(now, {"id": 50, "n": 1 << 40, "price": "1234567.1234", "total": (1 << 40)})
        txn.update(now, old=stored, new={"title": "t", "made_at": "2026-01-02 03:04:05.678"})
    for number in range(6):  # far behind: the first handle is older than every version that is kept for TiDB's rows
        await altered(add=[Column(f"extra{number}", Int(), default=number)])
    label = Column("label", VarChar(50) if key else Text())
    now = await altered(change={"title": label}, drop_index=["by_name"])
    await rows(60)
    async with service.transaction() as txn:
        txn.delete(first, row(31))
    return now


def expected() -> list[tuple[object, ...]]:
    """id, n, price, label, made_at, state, total, x."""
    found: list[tuple[object, ...]] = []
    for number in (10, 20, 30, 40, 60):
        price = "7.0000" if number % 2 == 0 else None
        found.append((number, number, price, f"u{number}", "2026-11-22 01:02:03.000", "new", number, 3))
        if number + 1 not in (21, 31):
            name = "late" if number + 1 == 11 else f"r{number + 1}"
            made: tuple[object, ...] = (number + 1, number + 1, f"{number + 1}.2500", name)
            found.append((*made, "2026-11-22 01:02:03.000", "new", number + 1, 3))
    found.append((50, 1 << 40, "1234567.1234", "t", "2026-01-02 03:04:05.678", "gone", 1 << 40, 3))
    return sorted(found, key=lambda one: int(str(one[0])))


QUERY = "SELECT id, n, price, label, made_at, state, total, x FROM {} ORDER BY id"


def shown(value: object) -> object:
    """As text where it is neither a number nor NULL."""
    return value if value is None or isinstance(value, int) else str(value)


async def stream(shop: Shop, *, key: bool) -> tuple[list[Job], list[bytes]]:
    service = await shop.service()
    await service.create_database("shop")
    await written(service, "t", key=key)
    jobs = [Job.from_json(text) for _, text in await PublishedJobs(shop.etcd).all()]
    return jobs, merged(shop.pumps["a"].payloads)


@pytest.mark.parametrize("key", [True, False], ids=["primary key", "no key"])
@pytest.mark.parametrize("batch", [1, 3, 1000])
async def test_sdk_column_changes_into_sqlite_give_expected_rows(
    shop: Shop, tmp_path: Path, key: bool, batch: int
) -> None:
    path = tmp_path / "down.sqlite"
    drain(SQLiteSink(path), *await stream(shop, key=key), batch=batch)
    with sqlite3.connect(path) as connection:
        found = connection.execute(QUERY.format('"shop.t"')).fetchall()
        layout = connection.execute("SELECT sql FROM sqlite_master WHERE name='shop.t'").fetchone()
    assert [tuple(map(shown, one)) for one in found] == expected(), layout


@pytest.mark.integration
@pytest.mark.parametrize("key", [True, False], ids=["primary key", "no key"])
@pytest.mark.parametrize("batch", [1, 1000])
async def test_sdk_column_changes_into_mariadb_give_expected_rows(
    shop: Shop, db: MariaDB, key: bool, batch: int
) -> None:
    destination = MySQLSink(server_config(db))
    drain(destination, *await stream(shop, key=key), batch=batch)
    found = db.query(QUERY.format("shop.t"))
    assert [tuple(_text(value) for value in one) for one in found] == expected()
    destination.close(clean=True)


def _text(value: object) -> object:
    text = shown(value)
    if isinstance(text, str) and len(text) > 19 and text.endswith("000") and text[4] == "-":
        return text[:23]
    return text + ".000" if isinstance(text, str) and len(text) == 19 and text[4] == "-" else text


PLACED = [
    (1, b"\xff\x00\xfe", "r1", 1, b"\xff\xfe"),
    (2, b"\xff\x00\xfe", "r2", 2, b"\xff\xfe"),
    (1 << 40, b"abc", "r3", 3, b"\xff\xfe"),
]


async def placed(shop: Shop) -> tuple[list[Job], list[bytes]]:
    """Columns that move, a primary key that gets wider, and defaults that are no text; rows of old handles behind."""
    service = await shop.service()
    await service.create_database("shop")
    declared = Table(
        "t",
        Column("id", Int(), primary_key=True),
        Column("n", Int(), nullable=False),
        Column("name", VarChar(10)),
        Column("token", Binary(3), default=b"\xff\x00\xfe"),
    )
    old = await service.create_table("shop", declared)
    async with service.transaction() as txn:
        txn.insert(old, {"id": 1, "n": 1, "name": "r1"})
    now = await service.alter_table(
        old,
        modify=[Column("id", BigInt()), Column("n", BigInt(), nullable=False)],
        change={"token": Column("mark", Binary(3), default=b"\xff\x00\xfe")},
        place={"N": "name", "mark": None},
        add=[Column("late", VarBinary(4), default=b"\xff\xfe")],
    )
    assert now.column_names == ("mark", "id", "name", "n", "late")
    async with service.transaction() as txn:
        txn.insert(old, {"id": 2, "n": 2, "name": "r2"})
    async with service.transaction() as txn:
        txn.insert(now, {"id": 1 << 40, "n": 3, "name": "r3", "mark": b"abc"})
    jobs = [Job.from_json(text) for _, text in await PublishedJobs(shop.etcd).all()]
    assert jobs[-1].query == (
        "ALTER TABLE `t` MODIFY COLUMN `id` BIGINT, MODIFY COLUMN `n` BIGINT NOT NULL AFTER `name`, "
        "CHANGE COLUMN `token` `mark` BINARY(3) DEFAULT x'ff00fe' FIRST, "
        "ADD COLUMN `late` VARBINARY(4) DEFAULT x'fffe';"
    )
    return jobs, merged(shop.pumps["a"].payloads)


@pytest.mark.parametrize("batch", [1, 1000])
async def test_sdk_column_order_and_defaults_are_kept_in_sqlite(shop: Shop, tmp_path: Path, batch: int) -> None:
    path = tmp_path / "down.sqlite"
    drain(SQLiteSink(path), *await placed(shop), batch=batch)
    with sqlite3.connect(path) as connection:
        found = connection.execute('SELECT id, mark, name, n, late FROM "shop.t" ORDER BY id').fetchall()
    assert found == PLACED


@pytest.mark.integration
@pytest.mark.parametrize("batch", [1, 1000])
async def test_sdk_column_order_and_defaults_are_kept_in_mariadb(shop: Shop, db: MariaDB, batch: int) -> None:
    destination = MySQLSink(server_config(db))
    drain(destination, *await placed(shop), batch=batch)
    assert list(db.query("SELECT id, mark, name, n, late FROM shop.t ORDER BY id")) == PLACED
    order = db.query("SELECT column_name FROM information_schema.columns WHERE table_schema='shop' AND table_name='t' "
                     "ORDER BY ordinal_position")  # fmt: skip
    assert [name for (name,) in order] == ["mark", "id", "name", "n", "late"]
    destination.close(clean=True)
