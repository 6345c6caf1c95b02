"""The demo's comparison must see every kind of difference: a check that cannot fail proves nothing."""

from __future__ import annotations

import sqlite3
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from demo.compare import Comparison, compare_table
from demo.model import TableModel

ROWS = [
    {"id": 1, "name": "a", "price": Decimal("1.50"), "at": datetime(2026, 1, 2, 3, 4, 5), "doc": {"b": [1], "a": None}},
    {"id": 2, "name": None, "price": Decimal("10.00"), "at": datetime(2026, 1, 2, tzinfo=UTC), "doc": None},
]


def model(key: tuple[str, ...] = ("id",)) -> TableModel:
    found = TableModel("t", ["id", "name", "price", "at", "doc"], key, fsp={"at": 3})
    for row in ROWS:
        found.insert(dict(row))
    return found


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute('CREATE TABLE "shop.t" (id, name, price, at, doc)')
        connection.executemany(
            'INSERT INTO "shop.t" VALUES (?,?,?,?,?)',
            [
                (1, "a", "1.50", "2026-01-02 03:04:05.000", '{"a": null, "b": [1]}'),
                (2, None, "10.00", "2026-01-02 00:00:00.000", None),
            ],
        )
    return path


def change(database: Path, sql: str) -> Comparison:
    with sqlite3.connect(database) as connection:
        connection.execute(sql)
    return compare_table(database, "shop", model())


def test_compare_table_of_equal_tables_is_ok(database: Path) -> None:
    result = compare_table(database, "shop", model())
    assert result.ok, result
    assert result.written == result.found == result.equal == 2


@pytest.mark.parametrize(
    "sql",
    [
        'UPDATE "shop.t" SET name = NULL WHERE id = 1',
        "UPDATE \"shop.t\" SET price = '1.5' WHERE id = 1",
        'DELETE FROM "shop.t" WHERE id = 2',
        'INSERT INTO "shop.t" SELECT * FROM "shop.t" WHERE id = 1',
        'DROP TABLE "shop.t"',
        'ALTER TABLE "shop.t" DROP COLUMN doc',
    ],
)
def test_compare_table_sees_every_kind_of_difference(database: Path, sql: str) -> None:
    assert not change(database, sql).ok


def test_compare_table_counts_equal_rows(database: Path) -> None:
    """A table without a key may hold a row twice; once downstream is not enough."""
    keyless = model(key=())
    keyless.insert(dict(ROWS[0]))
    result = compare_table(database, "shop", keyless)
    assert not result.ok
    assert len(result.missing) == 1


def test_model_fills_the_default_of_an_added_column() -> None:
    found = model()
    found.add_column("note", "none")
    found.insert({"id": 3, "name": "c", "price": Decimal(1), "at": None, "doc": None})
    found.update(ROWS[0] | {"note": "none"}, ROWS[0] | {"name": "z"})
    assert [row["note"] for row in found.all_rows()] == ["none"] * 3


def test_compare_table_compares_dates_as_text(tmp_path: Path) -> None:
    path = tmp_path / "d.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute('CREATE TABLE "s.d" (day)')
        connection.execute("INSERT INTO \"s.d\" VALUES ('1999-12-31')")
    days = TableModel("d", ["day"], ())
    days.insert({"day": date(1999, 12, 31)})
    assert compare_table(path, "s", days).ok


@pytest.mark.parametrize(
    ("kept", "ok"), [("paid", True), (2, True), (1, False), (3, False), (0, False), ("new", False)]
)
def test_compare_table_accepts_enum_as_name_or_number(tmp_path: Path, kept: object, ok: bool) -> None:
    """Some messages in Kafka have numbers."""
    path = tmp_path / "x.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute('CREATE TABLE "shop.t" (id, status)')
        connection.execute('INSERT INTO "shop.t" VALUES (1, ?)', (kept,))
    one = TableModel("t", ["id", "status"], ("id",), enums={"status": ("new", "paid")})
    one.insert({"id": 1, "status": "paid"})
    assert compare_table(path, "shop", one).ok is ok


def test_compare_table_accepts_missing_empty_table_only_if_rows_create_it(database: Path) -> None:
    empty = TableModel("none", ["id"], ("id",))
    assert compare_table(database, "shop", empty, made_by_rows=True).ok
    assert not compare_table(database, "shop", empty).ok
    empty.insert({"id": 1})
    assert not compare_table(database, "shop", empty, made_by_rows=True).ok
    there = TableModel("t", ["id"], ("id",))
    assert not compare_table(database, "shop", there, made_by_rows=True).ok, "rows that nobody wrote"
