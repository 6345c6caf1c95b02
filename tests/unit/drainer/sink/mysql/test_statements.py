"""Text of multi-row statements: bounds, quoting, and taking a VALUES tuple apart again."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import KeyChange, Kind, Match, TableShape
from drainer.changes.net import Tuples
from drainer.sink.mysql.config import StatementLimits
from drainer.sink.mysql.rows.format import deletes, inserts, key_of, quote, replaces, split_row
from drainer.sink.mysql.rows.ordered import condition, exact_single, one_by_one

SHAPE = TableShape(1, "d`b", "t", ("id", "v`w"), (0,), (), (Match.PLAIN, Match.PLAIN))


def test_text_of_replace_insert_and_delete_is_exact() -> None:
    rows, keys = [b"(1,'a')", b"(2,NULL)"], [b"(1)", b"(2)"]
    (replace,) = replaces(SHAPE, rows, StatementLimits())
    (insert,) = inserts(SHAPE, rows, StatementLimits())
    (delete,) = deletes(SHAPE, keys, StatementLimits())
    assert replace.sql == b"REPLACE INTO `d``b`.`t`(`id`,`v``w`) VALUES (1,'a'),(2,NULL)"
    assert insert.sql == b"INSERT INTO `d``b`.`t`(`id`,`v``w`) VALUES (1,'a'),(2,NULL)"
    assert delete.sql == b"DELETE FROM `d``b`.`t` WHERE (`id`) IN ((1),(2))"
    assert insert.tuples == rows


def test_no_rows_give_no_statement() -> None:
    assert list(replaces(SHAPE, [], StatementLimits())) == []


@given(
    sizes=st.lists(st.integers(0, 300), max_size=60),
    rows_max=st.integers(1, 20),
    bytes_max=st.integers(80, 700),
)
def test_replace_statements_are_bounded_and_hold_every_row_in_order(
    sizes: list[int], rows_max: int, bytes_max: int
) -> None:
    """Within rows and bytes, except a single row that is too large by itself; rows in order, each once."""
    rows = [b"(%d,'%s')" % (n, b"x" * size) for n, size in enumerate(sizes)]
    made = list(replaces(SHAPE, rows, StatementLimits(rows_max, bytes_max)))
    assert [row for statement in made for row in statement.tuples] == rows
    for statement in made:
        assert len(statement.tuples) <= rows_max
        assert len(statement.sql) <= bytes_max or len(statement.tuples) == 1
    as_columns = replaces(SHAPE, in_one_buffer(rows), StatementLimits(rows_max, bytes_max))
    assert [(one.sql, list(one.tuples)) for one in as_columns] == [(one.sql, list(one.tuples)) for one in made]


def in_one_buffer(rows: list[bytes]) -> Tuples:
    """Behind other rows that are none of them."""
    data = b"(0)," + b"".join(row + b"," for row in rows)
    return Tuples(memoryview(data), np.cumsum([4, *(len(row) + 1 for row in rows)]))


TEXT = st.binary(max_size=20).map(
    lambda raw: b"'" + raw.replace(b"\\", b"\\\\").replace(b"'", b"\\'").replace(b"\0", b"\\0") + b"'"
)
LITERAL = st.one_of(
    TEXT,
    st.sampled_from([b"NULL", b"-1.5e-7", b"18446744073709551615", b"X'00ff'", b"''", b"'it''s, (a) tuple'", b"b'01'"]),
    st.integers(-(1 << 63), 1 << 64).map(lambda number: b"%d" % number),
)


@given(literals=st.lists(LITERAL, min_size=1, max_size=8))
def test_split_row_returns_literals_joined(literals: list[bytes]) -> None:
    row = b"(" + b",".join(literals) + b")"
    assert split_row(row) == literals
    assert key_of(row, range(len(literals))) == row


@pytest.mark.parametrize("piece", [b"a", b"\\n", b"''", b"\\'", b"ab\\n''", b"(", b","])
def test_split_row_of_large_row_takes_bounded_memory(piece: bytes) -> None:
    """The literals are the row once more. A row of 16 MiB used to take 1.9 GiB."""
    literals = [b"1", b"'" + piece * ((4 << 20) // len(piece)) + b"'", b"NULL"]
    row = b"(" + b",".join(literals) + b")"
    tracemalloc.start()
    try:
        assert split_row(row) == literals
        assert key_of(row, (0, 2)) == b"(1,NULL)"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(row)


@pytest.mark.parametrize("text", [b"", b"1,2", b"(1,2", b"('a)", b"('a'b'c)"])
def test_split_row_of_malformed_tuple_raises_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match="not a VALUES tuple"):
        split_row(text)


def test_quote_doubles_backticks_in_names() -> None:
    assert quote("a`b") == b"`a``b`"


# How rows without a key are looked for (correctness rule 11).


KEYLESS = TableShape(1, "d", "t", ("a", "c"), (), (), (Match.PLAIN, Match.BINARY_TEXT))


def change(kind: Kind, old: tuple[bytes, ...] | None, new: tuple[bytes, ...] | None, ts: int = 1) -> KeyChange:
    return KeyChange(KEYLESS, kind, old, new, ts, 0)


def test_condition_of_each_match_kind_is_exact_sql() -> None:
    assert condition(b"`c`", b"NULL", Match.BINARY_TEXT, "mariadb") == b"`c` IS NULL"
    assert condition(b"`c`", b"5", Match.PLAIN, "mariadb") == b"`c`<=>5"
    assert condition(b"`c`", b"'A'", Match.BINARY_TEXT, "mariadb") == (
        b"`c`<=>'A' AND CAST(CONVERT(`c` USING utf8mb4) AS BINARY)<=>CAST('A' AS BINARY)"
    )
    assert condition(b"`c`", b"X'41'", Match.BINARY_TEXT, "mariadb") == b"`c`<=>X'41'"
    assert condition(b"`c`", b"0.1", Match.EXACT_FLOAT, "mysql") == b"`c`<=>0.10000000149011612e0"
    assert condition(b"`c`", b"'1'", Match.JSON, "mysql") == b"CAST(`c` AS CHAR)=CAST(CAST('1' AS JSON) AS CHAR)"


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_exact_single_text_equals_double_of_float(value: float) -> None:
    """Whatever short text stands for it, the literal is exactly that double."""
    short = f"{value:.9g}".encode()
    assert float(exact_single(short)) == value
    assert struct.pack("<f", float(exact_single(short))) == struct.pack("<f", value)
    assert b"e" in exact_single(short)


def test_consecutive_inserts_share_statement_and_order_is_kept() -> None:
    changes = [
        change(Kind.INSERT, None, (b"1", b"'x'")),
        change(Kind.INSERT, None, (b"2", b"'y'")),
        change(Kind.UPDATE, (b"1", b"'x'"), (b"1", b"'z'")),
        change(Kind.DELETE, (b"2", b"'y'"), None),
        change(Kind.INSERT, None, (b"3", b"'w'")),
    ]
    made = list(one_by_one(changes, StatementLimits(), "mariadb"))
    assert [(step.statement.sql.split(b" ", 1)[0], len(step.statement.tuples)) for step in made] == [
        (b"INSERT", 2),
        (b"UPDATE", 1),
        (b"DELETE", 0),
        (b"INSERT", 1),
    ]
    assert made[1].statement.sql.startswith(b"UPDATE `d`.`t` SET `a`=1,`c`='z' WHERE `a`<=>1 AND ")
    assert all(step.statement.sql.endswith(b" LIMIT 1") for step in made[1:3])
