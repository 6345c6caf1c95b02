"""The row that a server refuses is found among those of its chunk."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Folded, KeyChange, Kind, NetRow, TableShape
from drainer.sink.errors import DataError
from drainer.sink.mysql.rows.chunks import Chunk
from drainer.sink.mysql.rows.slot_writer import beginning, blame
from tests.support.net_rows import net_columns

TABLES = [TableShape(n, "d", f"t{n}", ("k", "v"), (0,), (), ()) for n in (1, 2)]


def chunk_of(first: int, second: int) -> Chunk:
    rows = [NetRow(b"%03d" % n, Kind.INSERT, b"(%d,1)" % n, ()) for n in range(first + second)]
    made = [Folded(TABLES[0], net_columns(rows[:first])), Folded(TABLES[1], net_columns(rows[first:]))]
    return Chunk(folded=tuple(folded for folded in made if folded.rows))


def rows_of(chunk: Chunk) -> list[bytes]:
    return [row.identity for folded in chunk.folded for row in folded.rows]


@given(st.integers(0, 20), st.integers(1, 20), st.data())
def test_blame_finds_row_that_fails_alone_or_with_earlier_one(first: int, second: int, data: st.DataObject) -> None:
    chunk = chunk_of(first, second)
    bad = {b"%03d" % n for n in data.draw(st.sets(st.integers(0, first + second - 1), min_size=1, max_size=2))}
    error = DataError("no", schema="d", table="t1")
    blame(error, chunk, lambda part: bad <= set(rows_of(part)))
    assert error.identity == max(bad)
    assert error.table_id == (1 if int(max(bad)) < first else 2)
    assert error.shown == f"({int(max(bad))},1)"


def test_blame_names_no_row_when_error_does_not_recur() -> None:
    error = DataError("no", schema="d", table="t1")
    blame(error, chunk_of(3, 3), lambda part: False)
    assert (error.identity, error.table_id, error.shown) == (b"", 0, "")


def test_blame_of_ordered_changes_names_commit_ts() -> None:
    changes = tuple(KeyChange(TABLES[0], Kind.DELETE, (b"%d" % n, b"1"), None, 100 + n, 0) for n in range(9))
    error = DataError("no", schema="d", table="t1")
    blame(error, Chunk(ordered=changes), lambda part: len(part.ordered) > 4)
    assert (error.commit_ts, error.shown) == (104, "(4,1)")


@given(st.integers(0, 9), st.integers(1, 9), st.integers(0, 18))
def test_beginning_of_chunk_holds_its_first_rows(first: int, second: int, rows: int) -> None:
    chunk = chunk_of(first, second)
    assert rows_of(beginning(chunk, rows)) == rows_of(chunk)[:rows]
