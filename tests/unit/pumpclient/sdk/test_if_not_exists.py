"""A program that declares its tables may start twice; a table that is another one is an error with its difference."""

from __future__ import annotations

import asyncio
from datetime import datetime
from decimal import Decimal

import pytest

from pumpclient.sdk import (
    JSON,
    NOW,
    BigInt,
    Binary,
    Bit,
    Blob,
    Bool,
    Char,
    Column,
    Date,
    DateTime,
    Double,
    Enum,
    Index,
    Int,
    NumericType,
    SchemaDiffers,
    SchemaExists,
    SchemaNotFound,
    Set,
    Table,
    Text,
    Time,
    Timestamp,
    VarBinary,
    VarChar,
    Year,
)
from pumpclient.sdk.rows import RowCodec
from tests.unit.pumpclient.sdk.conftest import Shop

ID = Column("id", BigInt(), primary_key=True)
NOTE = Column("note", VarChar(40))


def everything() -> Table:
    return Table(
        "everything",
        Column("a", VarChar(20, collate="utf8mb4_general_ci"), primary_key=True),
        Column("b", Int(unsigned=True), primary_key=True),
        Column("c", NumericType(10, 2), nullable=False, default=Decimal("1.50")),
        Column("d", DateTime(3), default=NOW),
        Column("e", Timestamp(6), default=datetime(2026, 1, 2, 3, 4, 5)),
        Column("f", Enum("x", "y"), default="y"),
        Column("g", Set("x", "y"), default={"x"}),
        Column("h", Bit(9), default=300),
        Column("i", Binary(4), default=b"\xff\x00"),
        Column("j", VarBinary(4), default=b"ab"),
        Column("k", Text(), comment="long"),
        Column("l", Blob()),
        Column("m", JSON()),
        Column("n", Year(), default=2026),
        Column("o", Date()),
        Column("p", Time(2)),
        Column("q", Bool(), nullable=False, default=True),
        Column("r", Double(), default=1.5),
        Column("s", Char(3), nullable=False),
        unique={"u": ["c", ("k", 5)]},
        indexes={"i1": ["s"], "i2": [("a", 20)]},
        comment="all of it",
    )


async def test_if_not_exists_lets_program_declare_its_tables_twice(shop: Shop) -> None:
    for _ in range(2):
        service = await shop.service()
        await service.create_database("shop", if_not_exists=True)
        table = await service.create_table("shop", everything(), if_not_exists=True)
        plain = await service.create_table("shop", Table("plain", Column("a", Int())), if_not_exists=True)
        assert table.bound is not None
        async with service.transaction() as txn:
            txn.insert(plain, {"a": 1})
    assert len(await shop.jobs()) == 3


async def test_services_that_start_at_once_make_one_table(shop: Shop) -> None:
    services = [await shop.service() for _ in range(3)]

    async def begin(number: int) -> Table:
        await services[number].create_database("shop", if_not_exists=True)
        return await services[number].create_table("shop", everything(), if_not_exists=True)

    made = await asyncio.gather(*map(begin, range(3)))
    assert len({table.bound.info.id for table in made if table.bound}) == 1
    assert len(await shop.jobs()) == 2


@pytest.mark.parametrize(
    ("declared", "difference"),
    [
        (
            Table("orders", ID, Column("note", VarChar(80))),
            "column note: its type is VARCHAR(40), declared VARCHAR(80)",
        ),
        (
            Table("orders", ID, Column("note", VarChar(40), nullable=False)),
            "column note: NOT NULL is not set, declared set",
        ),
        (
            Table("orders", ID, Column("note", VarChar(40), default="x")),
            "column note: its default is none, declared 'x'",
        ),
        (Table("orders", ID, NOTE, Column("more", Int())), "it has no column more"),
        (Table("orders", ID), "its column note is not declared"),
        (Table("orders", NOTE, ID), "its columns stand in the order id, note, declared note, id"),
        (Table("orders", ID, NOTE, unique={"note": ["note"]}), "key note is missing, declared UNIQUE (note)"),
        (Table("orders", ID, NOTE, comment="x"), "the table: its comment is '', declared 'x'"),
        (Table("orders", ID, NOTE, clustered=False), "is clustered, declared not clustered"),
        (Table("orders", ID, NOTE, collate="utf8mb4_general_ci"), "the table: its collation is utf8mb4_bin, declared"),
        (Table("orders", ID, NOTE, primary_key=["id", "note"]), "NOT NULL is not set, declared set"),
        (
            Table("orders", Column("id", BigInt(unsigned=True), primary_key=True), NOTE),
            "column id: its type is BIGINT, declared BIGINT UNSIGNED",
        ),
    ],
)
async def test_if_not_exists_refuses_different_table_with_its_difference(
    shop: Shop, declared: Table, difference: str
) -> None:
    service = await shop.service()
    await service.create_database("shop")
    await service.create_table("shop", Table("orders", ID, NOTE))
    with pytest.raises(SchemaDiffers) as refused:
        await service.create_table("shop", declared, if_not_exists=True)
    assert "table shop.orders already exists" in str(refused.value)
    assert difference in str(refused.value)
    assert len(await shop.jobs()) == 2


async def test_if_not_exists_refuses_other_collation_or_missing_database(shop: Shop) -> None:
    service = await shop.service()
    with pytest.raises(SchemaNotFound):
        await service.create_table("shop", Table("orders", ID), if_not_exists=True)
    await service.create_database("shop")
    with pytest.raises(SchemaDiffers, match="collation utf8mb4_bin and not utf8mb4_general_ci"):
        await service.create_database("shop", collate="utf8mb4_general_ci", if_not_exists=True)
    with pytest.raises(SchemaExists):
        await service.create_database("shop")


async def test_accept_added_lets_old_service_version_use_altered_table(shop: Shop) -> None:
    """Its rows are those of a handle from before the ALTER, wherever the added columns stand."""
    declared = Table("orders", ID, NOTE, unique={"note": ["note"]})
    new = await shop.service()
    await new.create_database("shop")
    before = await new.create_table("shop", declared)
    added = [Column("pieces", Int(), nullable=False, default=1), Column("more", Int())]
    await new.alter_table(before, add=added, after="id", add_index=[Index.over("by_more", ["more"])])
    old = await shop.service()
    with pytest.raises(SchemaDiffers, match=r"its column pieces is not declared$"):
        await old.create_table("shop", declared, if_not_exists=True)
    again = await old.create_table("shop", declared, if_not_exists=True, accept_added=True)
    assert before.bound is not None and again.bound is not None
    assert [(c.id, c.name) for c in again.bound.info.columns] == [(c.id, c.name) for c in before.bound.info.columns]
    codecs = [RowCodec("shop", table.bound.info) for table in (before, again) if table.bound is not None]
    first, second = (codec.insert({"id": 7, "note": "x"}, rowid=0) for codec in codecs)
    assert first == second
    async with old.transaction() as txn:
        txn.insert(again, {"id": 7, "note": "x"})
    keys = {"unique": {"note": ["note"]}, "indexes": {"by_more": ["more"]}}
    whole = Table("orders", ID, *added, NOTE, **keys)  # type: ignore[arg-type]
    newest = await old.create_table("shop", whole, if_not_exists=True, accept_added=True)
    assert newest.bound is not None and len(newest.bound.info.columns) == 4


@pytest.mark.parametrize(
    ("there", "difference"),
    [
        (
            Table("orders", ID, NOTE, Column("x", Int(), nullable=False)),
            "column x is not declared, is NOT NULL and has no",
        ),
        (Table("orders", ID, NOTE, unique={"note": ["note"]}), "key note is UNIQUE"),
        (Table("orders", NOTE, ID), "its columns stand in the order"),
        (Table("orders", ID), "it has no column note"),
    ],
)
async def test_accept_added_refuses_other_differences(shop: Shop, there: Table, difference: str) -> None:
    service = await shop.service()
    await service.create_database("shop")
    await service.create_table("shop", there)
    with pytest.raises(SchemaDiffers, match=difference):
        await service.create_table("shop", Table("orders", ID, NOTE), if_not_exists=True, accept_added=True)
