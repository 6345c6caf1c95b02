"""Text of multi-row statements: bounds, quoting, and taking a VALUES tuple apart again."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Match, TableShape
from drainer.changes.net_rows import Tuples
from drainer.sink.mysql.config import StatementLimits
from drainer.sink.mysql.rows.statements import deletes, inserts, key_of, quote, replaces, split_row

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
