"""The row that a server refuses is found among those of its chunk."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Folded, KeyChange, Kind, NetRow, TableShape
from drainer.sink import retry
from drainer.sink.errors import DataError
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import Retry
from drainer.sink.mysql.rows import slot_writer
from drainer.sink.mysql.rows.slot_writer import Chunk, beginning, blame
from drainer.sink.retry import TRIES_REPORTED, Failures
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


# A slot that has failed and then succeeds fails no more, for the status.


def test_slot_that_succeeds_after_failures_is_cleared_from_status(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = Failures()
    monkeypatch.setattr(retry, "FAILURES", failures)
    monkeypatch.setattr(retry, "_PAUSE_S_FIRST", 0.001)
    tries = 0

    def done(_run: object) -> int:
        nonlocal tries
        tries += 1
        if tries <= TRIES_REPORTED:
            raise Retry("deadlock")
        assert failures.now is not None and failures.now.what.startswith("slot 3 of (10, 20] in h:3306")
        return 0

    for name, to in (("_done", done), ("_from", lambda *_: None)):
        monkeypatch.setattr(slot_writer._SlotRun, name, to)
    target: Any = SimpleNamespace(
        config=ServerConfig(host="h"), intent=SimpleNamespace(after_ts=10, until_ts=20, chunk_rows=1)
    )
    receipt = slot_writer._SlotRun(target, 3, [], 60.0).run()
    assert (receipt.slot, tries) == (3, TRIES_REPORTED + 1)
    assert failures.now is None and failures.last is not None
