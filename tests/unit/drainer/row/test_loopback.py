"""Transactions that a drainer of the same channel marked are found, wherever and however the mark is written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from binlog.tidb.table import TableInfo

from drainer.row.transaction import LoopbackFilter
from drainer.schema.view import MarkTables, TableVersions
from tests.support.loopback_case import APP, MARKS, mark, marked_view, put
from tests.support.row_case import BEGIN_TS, INT, Step, table, transaction

OURS, OTHER = 7, 8


def payload(*steps: tuple[TableInfo, Step]) -> bytes:
    return transaction(steps, commit_ts=BEGIN_TS)


def left_out(info: TableInfo, *payloads: bytes) -> list[bool]:
    """Which are left out, the same for the bytes and for a view of them."""
    loopback = LoopbackFilter(marked_view(info, OURS).marks)
    kept = list(loopback.keep(payloads))
    found = [one not in kept for one in payloads]
    assert loopback.left_out == sum(found)
    assert found == [loopback.is_marked(memoryview(one)) for one in payloads]
    return found


@pytest.mark.parametrize("kind", ["insert", "update", "delete"])
@pytest.mark.parametrize("info", MARKS, ids=["clustered", "nonclustered"])
def test_mark_of_channel_is_found_in_every_kind_of_row(info: TableInfo, kind: str) -> None:
    row = (APP, put(1))
    found = left_out(
        info,
        payload(row, mark(info, OURS, kind)),
        payload(mark(info, OURS, kind), row, (APP, put(2))),
        payload(row, mark(info, OTHER, kind), mark(info, OURS, kind, number=3)),
        payload(row, mark(info, OTHER, kind)),
        payload(row),
        payload((APP, put(info.id))),
    )
    assert found == [True, True, True, False, False, False]


def test_row_that_contains_the_bytes_of_the_table_id_is_kept() -> None:
    """They are only a hint."""
    text = table([("id", INT), ("v", INT)], handle="id", table_id=MARKS[0].id + 1, name="t")
    chance = (text, ("insert", {}, {1: MARKS[0].id, 2: MARKS[0].id * 64}))
    assert left_out(MARKS[0], payload(chance, chance)) == [False]


def test_damaged_transaction_is_kept_for_the_decoder_to_refuse() -> None:
    whole = payload((APP, put(1)), mark(MARKS[0], OURS))
    assert left_out(MARKS[0], whole[:-6]) == [False]


def test_without_marks_nothing_is_read_or_left_out() -> None:
    given = [payload(mark(MARKS[0], OURS))]
    for marks in (None, MarkTables(OURS, {})):
        assert LoopbackFilter(marks).keep(given) is given
        assert not LoopbackFilter(marks).is_marked(given[0])


def test_table_of_that_name_without_channel_marks_nothing() -> None:
    other = table([("id", INT), ("v", INT)], handle="id", table_id=300, name="_drainer_repl_mark")
    assert left_out(other, payload((other, ("insert", {}, {1: OURS, 2: OURS})))) == [False]


def test_mark_is_read_with_the_table_of_its_schema_version() -> None:
    """The column had another id before."""
    before = MARKS[1]
    columns = tuple(replace(one, id=9) if one.name == "channel_id" else one for one in before.columns)
    versions = TableVersions("retl", 1, (1, 5), (before, replace(before, columns=columns)))
    loopback = LoopbackFilter(MarkTables(OURS, {before.id: versions}))
    assert loopback.is_marked(payload(mark(before, OURS)))
