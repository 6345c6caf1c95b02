"""Statements for rows of files: keys, literals, safe mode, what is written together."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest
from binlog.tidb.types import Tp

from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, ColumnValue, RowEvent, Value
from drainer.sink.mysql.replay.destination import typed
from drainer.sink.mysql.replay.statements import LIMITS, RowStatement, TableThere, literal, statements
from drainer.sink.replay import to_utc

PRIMARY = TableThere((("id",), ("k",)))
NONE = TableThere(())


Cells = tuple[str, ColumnValue, ColumnValue]  # the column's name, its value, and the new value of an update


def column(name: str, value: Value, changed: Value = None, tp: Tp = Tp.LONG, kind: str = "int") -> Cells:
    old, new = (ColumnValue(one, int(tp), type_name=kind) for one in (value, changed))
    return name, old, new


def text(name: str, value: Value, changed: Value = None) -> Cells:
    return column(name, value, changed, Tp.VARCHAR, "varchar")


def event(change: Change, *columns: Cells) -> RowEvent:
    first, second = ({name: cells[at] for name, *cells in columns} for at in (0, 1))
    old = None if change is Change.INSERT else first
    new = None if change is Change.DELETE else second if change is Change.UPDATE else first
    return RowEvent(change, 5, "d", "t", old, new)


def made(there: TableThere, *events: RowEvent, safe: bool = False, flavour: str = "mysql") -> list[RowStatement]:
    return list(statements(events, {("d", "t"): there}, flavour, safe=safe))


def sql(there: TableThere, *events: RowEvent, safe: bool = False, flavour: str = "mysql") -> list[str]:
    return [one.sql.decode() for one in made(there, *events, safe=safe, flavour=flavour)]


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (column("c", None), b"NULL"),
        (column("c", -5), b"-5"),
        (column("c", 1e300, tp=Tp.DOUBLE, kind="double"), b"1e+300"),
        (text("c", "it's \\ a"), b"'it\\'s \\\\ a'"),
        (text("c", b"\xff"), b"x'ff'"),
        (column("c", b"a'\x00", tp=Tp.BLOB, kind="blob"), b"X'612700'"),
        (column("c", b"", tp=Tp.VARCHAR, kind="varbinary"), b"X''"),
        (column("c", "-1.50", tp=Tp.NEWDECIMAL, kind="decimal"), b"-1.50"),
        (column("c", "0000-00-00 00:00:00", tp=Tp.DATETIME, kind="datetime"), b"'0000-00-00 00:00:00'"),
    ],
)
def test_literal_of_each_column_type_is_valid_sql(found: Cells, wanted: bytes) -> None:
    assert literal(*found[:2]) == wanted


def test_invalid_decimal_text_is_refused() -> None:
    """It stands in a statement as it is."""
    with pytest.raises(MessageError, match="no DECIMAL"):
        literal(*column("c", "1; drop table t", tp=Tp.NEWDECIMAL, kind="decimal")[:2])


def test_where_clause_uses_first_key_without_null() -> None:
    delete = event(Change.DELETE, column("ID", 1), column("k", 2))
    assert sql(PRIMARY, delete) == ["DELETE FROM `d`.`t` WHERE `ID`<=>1 LIMIT 1"]
    delete = event(Change.DELETE, column("id", None), column("k", 2))
    assert sql(PRIMARY, delete) == ["DELETE FROM `d`.`t` WHERE `k`<=>2 LIMIT 1"]
    delete = event(Change.DELETE, column("id", None), column("k", None))
    assert sql(PRIMARY, delete) == ["DELETE FROM `d`.`t` WHERE `id` IS NULL AND `k` IS NULL LIMIT 1"]
    assert made(PRIMARY, delete)[0].rows == 1
    pair = TableThere((("id", "k"),))
    delete = event(Change.DELETE, column("id", 1), column("k", None), column("v", 3))
    assert sql(pair, delete) == ["DELETE FROM `d`.`t` WHERE `id`<=>1 AND `k` IS NULL AND `v`<=>3 LIMIT 1"]


def test_where_clause_without_key_compares_all_columns_exactly() -> None:
    found = event(
        Change.DELETE,
        column("f", 0.5, tp=Tp.FLOAT, kind="float"),
        text("v", b"a "),
        column("j", b"{}", tp=Tp.JSON, kind="json"),
    )
    (statement,) = sql(NONE, found)
    assert "`f`<=>0.5e0" in statement
    assert "AS BINARY)<=>CAST('a ' AS BINARY)" in statement
    assert "CAST('{}' AS JSON)" in statement


def test_update_sets_every_written_column_except_generated() -> None:
    there = TableThere((("id",),), frozenset({"g"}))
    update = event(Change.UPDATE, column("id", 1, 2), text("v", b"a", None), column("g", 5, 6))
    (statement,) = made(there, update)
    assert statement.sql == b"UPDATE `d`.`t` SET `id`=2,`v`=NULL WHERE `id`<=>1 LIMIT 1"
    assert (statement.rows, statement.columns, statement.tuples) == (1, ("id", "v"), (b"(2,NULL)",))


def test_consecutive_inserts_share_statement() -> None:
    one, two = event(Change.INSERT, column("id", 1)), event(Change.INSERT, column("id", 2))
    other = event(Change.INSERT, column("id", 3), column("x", 4))
    delete = event(Change.DELETE, column("id", 1))
    assert sql(PRIMARY, one, two, other, delete, one) == [
        "INSERT INTO `d`.`t`(`id`) VALUES (1),(2)",
        "INSERT INTO `d`.`t`(`id`,`x`) VALUES (3,4)",
        "DELETE FROM `d`.`t` WHERE `id`<=>1 LIMIT 1",
        "INSERT INTO `d`.`t`(`id`) VALUES (1)",
    ]
    assert [one.rows for one in made(PRIMARY, one, two)] == [2]


def test_insert_statements_are_bounded_in_rows_and_bytes() -> None:
    many = [event(Change.INSERT, column("id", n)) for n in range(LIMITS.statement_rows_max + 1)]
    assert [one.rows for one in made(PRIMARY, *many)] == [LIMITS.statement_rows_max, 1]
    large = [event(Change.INSERT, text("v", b"x" * (LIMITS.statement_bytes_max // 2))) for _ in range(3)]
    assert [one.rows for one in made(PRIMARY, *large)] == [1, 1, 1]


def test_safe_mode_statements_accept_any_number_of_affected_rows() -> None:
    events = [
        event(Change.INSERT, column("id", 1)),
        event(Change.UPDATE, column("id", 1, 2)),
        event(Change.DELETE, column("id", 2)),
    ]
    assert sql(PRIMARY, *events, safe=True) == [
        "REPLACE INTO `d`.`t`(`id`) VALUES (1)",
        "DELETE FROM `d`.`t` WHERE `id`<=>1 LIMIT 1",
        "REPLACE INTO `d`.`t`(`id`) VALUES (2)",
        "DELETE FROM `d`.`t` WHERE `id`<=>2 LIMIT 1",
    ]
    assert {one.rows for one in made(PRIMARY, *events, safe=True)} == {-1}


def test_timestamp_text_is_converted_to_utc_with_its_fraction() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    assert to_utc("2024-07-01 00:30:00", berlin) == "2024-06-30 22:30:00"
    assert to_utc("2024-01-01 00:30:00.120", berlin) == "2023-12-31 23:30:00.120"
    assert to_utc("0000-00-00 00:00:00", berlin) == "0000-00-00 00:00:00"
    with pytest.raises(MessageError, match="is no TIMESTAMP"):
        to_utc("soon", berlin)


@pytest.mark.parametrize("code", [Tp.TIMESTAMP, Tp.DATETIME, 0], ids=["timestamp", "datetime", "unknown"])
@pytest.mark.parametrize("kind", ["timestamp", "datetime"])
def test_time_of_a_file_is_moved_from_its_zone_if_it_is_upstreams_timestamp(code: int, kind: str) -> None:
    """Whatever the destination has made of that column; its type decides where a message does not say upstream's."""
    there = TableThere((), types={"at": kind})
    row = RowEvent(Change.INSERT, 5, "d", "t", None, {"AT": ColumnValue("2024-07-01 12:00:00", code)})
    moved = code == Tp.TIMESTAMP or (not code and kind == "timestamp")
    new = typed(row, there, ZoneInfo("Europe/Berlin")).new or {}
    assert new["AT"].value == f"2024-07-01 {'10' if moved else '12'}:00:00"
