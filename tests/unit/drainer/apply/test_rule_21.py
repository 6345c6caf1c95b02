"""Rule 21: what a sound stream gives does not depend on where batches are cut, nor on whether they are distributed; one
that breaks its keys stops, and nothing of a transaction is applied twice or half."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from binlog.tidb.table import TableInfo
from hypothesis import given
from hypothesis import strategies as st

from drainer.apply.batch_planner import Mode, PlannedBatch
from drainer.batch.work import SegmentWork
from drainer.sink.errors import DataError
from tests.support.examples import FEW
from tests.support.local_batch import LocalBatch
from tests.support.schema_case import ts
from tests.unit.drainer.cut_case import (
    BARE,
    BEGUN,
    COMPOSITE,
    INT_KEY,
    LOOSE,
    NULLABLE,
    SECONDARY,
    TABLES,
    Cuts,
    Op,
    Outcome,
    SQLiteDistributed,
    Stream,
    change,
    cuts,
    drain,
    expected_of,
    gone,
    into_sqlite,
    opened,
    put,
    sound,
    stream_of,
    streams,
    without,
)

EACH = Cuts(frozenset(range(99)))
every_table = pytest.mark.parametrize("info", TABLES, ids=lambda info: info.name)


@every_table
@FEW
@given(data=st.data())
def test_sdk_stream_gives_equal_rows_for_any_cut(tmp_path: Path, info: TableInfo, data: st.DataObject) -> None:
    """The later commit_ts wins; nothing is an error, whatever writers did to keys and old rows."""
    stream = stream_of([info], data.draw(streams([info])), upserts=True)
    how = data.draw(cuts(len(stream.binlogs), distributed=True))
    expected = into_sqlite(tmp_path / "down.sqlite", stream, EACH)
    assert expected.error == "", expected.text
    assert into_sqlite(tmp_path / "down.sqlite", stream, how) == expected


@every_table
@FEW
@given(data=st.data())
def test_tidb_stream_with_changes_left_out_gives_equal_rows_for_any_cut(
    tmp_path: Path, info: TableInfo, data: st.DataObject
) -> None:
    """The destination keeps rows that upstream has deleted: a later row replaces those that have its keys."""
    drawn, _ = sound(data.draw(streams([info])))
    events = without(*data.draw(st.sets(st.sampled_from(["insert", "update", "delete"]))))
    stream = replace(stream_of([info], drawn, upserts=False), events=events)
    how = data.draw(cuts(len(stream.binlogs), distributed=True))
    expected = into_sqlite(tmp_path / "down.sqlite", stream, EACH)
    assert expected.error == "", expected.text
    assert into_sqlite(tmp_path / "down.sqlite", stream, how) == expected


def test_row_whose_delete_was_left_out_is_replaced_by_later_row_of_its_keys(tmp_path: Path) -> None:
    drawn = [
        put(SECONDARY, 1, 1),
        gone(SECONDARY, 1, 1),
        put(SECONDARY, 1, 2),
        put(SECONDARY, 2, 1),
        gone(SECONDARY, 2, 1),
    ]
    stream = replace(stream_of([SECONDARY], drawn, upserts=False), events=without("delete"))
    for how in (EACH, Cuts(), Cuts(distributed=(True,), parts=2)):
        found = into_sqlite(tmp_path / "down.sqlite", stream, how)
        assert (found.rows, found.text) == ({"secondary": [(1, 2, 1), (2, 1, 1)]}, "")


@every_table
@FEW
@given(data=st.data())
def test_tidb_stream_gives_equal_rows_or_error_for_any_cut(
    tmp_path: Path, info: TableInfo, data: st.DataObject
) -> None:
    """The rows that upstream has, with those of another table."""
    tables = [info] if info is INT_KEY else [info, INT_KEY]
    drawn, rows = sound(data.draw(streams(tables)))
    stream = stream_of(tables, drawn, upserts=False)
    how = data.draw(cuts(len(stream.binlogs), distributed=True))
    assert into_sqlite(tmp_path / "down.sqlite", stream, how) == expected_of(tables, rows)


@every_table
@FEW
@given(data=st.data())
def test_a_stream_that_breaks_its_keys_stops_between_two_transactions(
    tmp_path: Path, info: TableInfo, data: st.DataObject
) -> None:
    """InDriver: the batch that is refused is gone through one transaction at a time, and all before the one that is
    named is applied. Whether it is refused may depend on the cut."""
    tables = [info] if info is INT_KEY else [info, INT_KEY]
    stream = stream_of(tables, data.draw(streams(tables)), upserts=False)
    how = data.draw(cuts(len(stream.binlogs), distributed=False))
    found = into_sqlite(tmp_path / "down.sqlite", stream, how)
    if not found.error:
        return
    (at,) = [n for n in range(len(stream.binlogs)) if ts(10 + n) == found.commit_ts]
    assert f"commit_ts {found.commit_ts}, start_ts {found.commit_ts - 3}, table d.{info.name}, rows (" in found.text
    begin = max((n + 1 for n in how.behind if n < at), default=0)
    before = replace(stream, binlogs=stream.binlogs[:at])
    alone = Cuts(how.behind | frozenset(range(begin, at)))
    assert into_sqlite(tmp_path / "down.sqlite", before, alone) == Outcome(found.rows)


Rows = list[tuple[object, ...]]


def all_cuts(count: int, *, distributed: bool) -> Iterator[Cuts]:
    for chosen in itertools.product((False, True), repeat=count - 1):
        behind = frozenset(n for n, cut in enumerate(chosen) if cut)
        yield from (
            Cuts(behind, modes) for modes in (((False,), (True,), (True, False)) if distributed else ((False,),))
        )


SERVICE = [
    pytest.param(INT_KEY, [put(INT_KEY, 1, 1), put(INT_KEY, 1, 2)], [(1, 2, 1)], id="one key twice"),
    pytest.param(
        COMPOSITE, [put(COMPOSITE, 1, 1), change(COMPOSITE, (1, 1, 3), (1, 2, 2))], [("k1", 2, 2)], id="wrong old value"
    ),
    pytest.param(INT_KEY, [change(INT_KEY, (1, 1, 1), (2, 2, 2))], [(2, 2, 2)], id="update of a row that is not there"),
    pytest.param(
        SECONDARY,
        [put(SECONDARY, 1, 1), put(SECONDARY, 2, 1), gone(SECONDARY, 2, 1)],
        [],
        id="a row that is gone had taken another one away",
    ),
    pytest.param(
        NULLABLE,
        [put(NULLABLE, 1, None), put(NULLABLE, 2, None), put(NULLABLE, 3, 1), change(NULLABLE, (1, 2, 2), (1, 1, 9))],
        [(1, 1, 9), (2, None, 1)],
        id="NULL takes nothing away",
    ),
    pytest.param(
        SECONDARY,
        [put(SECONDARY, 1, 1), change(SECONDARY, (1, 3, 3), (2, 1, 5)), gone(SECONDARY, 2, 9, 9), put(SECONDARY, 3, 3)],
        [(3, 3, 1)],
        id="a moved key and a delete with a wrong old row",
    ),
    pytest.param(
        LOOSE, [put(LOOSE, 1, 1), put(LOOSE, 2, 1), put(LOOSE, 1, None)], [(1, None, 1), (2, 1, 1)],
        id="a table whose only key takes NULLs",
    ),
    pytest.param(
        BARE, [put(BARE, 1, 1), gone(BARE, 2, 2), change(BARE, (3, 3, 3), (4, 4, 4))], [(1, 1, 1), (4, 4, 4)],
        id="no key: rows that are not there",
    ),
    pytest.param(
        BARE, [put(BARE, 1, 1), put(BARE, 1, 1), gone(BARE, 1, 1), change(BARE, (1, 1, 1), (2, None, 2))],
        [(2, None, 2)], id="no key: equal rows go one at a time",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("info", "drawn", "expected"), SERVICE)
def test_sdk_stream_with_inconsistent_rows_gives_later_rows(
    tmp_path: Path, info: TableInfo, drawn: list[list[Op]], expected: Rows
) -> None:
    stream = stream_of([info], drawn, upserts=True)
    for how in all_cuts(len(drawn), distributed=True):
        found = into_sqlite(tmp_path / "down.sqlite", stream, how)
        assert (found.error, found.rows[info.name]) == ("", expected), how


BROKEN = [
    pytest.param(SECONDARY, [put(SECONDARY, 1, 1), put(SECONDARY, 2, 1)], "UniqueConflict", id="a value of two rows"),
    pytest.param(
        NULLABLE, [put(NULLABLE, 1, 1), put(NULLABLE, 2, 2), change(NULLABLE, (1, 1, 1), (1, 2, 1))], "UniqueConflict",
        id="a value of two rows after an update",
    ),
    pytest.param(BARE, [put(BARE, 1, 1), gone(BARE, 2, 2)], "RowMissing", id="a row that is not there"),
]  # fmt: skip


@pytest.mark.parametrize(("info", "drawn", "error"), BROKEN)
def test_streams_of_tidb_that_break_their_keys(
    tmp_path: Path, info: TableInfo, drawn: list[list[Op]], error: str
) -> None:
    """The error names transaction, table, row and the way past it, wherever the stream is cut."""
    stream = stream_of([info], drawn, upserts=False)
    before = replace(stream, binlogs=stream.binlogs[:-1])
    expected = into_sqlite(tmp_path / "down.sqlite", before, EACH).rows
    at = ts(10 + len(drawn) - 1)
    for how in all_cuts(len(drawn), distributed=False):
        found = into_sqlite(tmp_path / "down.sqlite", stream, how)
        assert (found.rows, found.error, found.commit_ts) == (expected, error, at), how
        assert f"commit_ts {at}, start_ts {at - 3}, table d.{info.name}, rows (" in found.text
        assert error == "RowMissing" or "unique key 'uu'" in found.text
        assert f"put {at} into syncer.ignore-txn-commit-ts" in found.text


@pytest.mark.parametrize(("info", "drawn", "error"), BROKEN)
def test_distributed_batch_that_breaks_its_keys_stays_open(
    tmp_path: Path, info: TableInfo, drawn: list[list[Op]], error: str
) -> None:
    """Chunks of it are committed, so that it is finished or nothing: the error names its range."""
    stream = stream_of([info], drawn, upserts=False)
    destination = SQLiteDistributed(tmp_path / "down.sqlite")
    pipeline = opened(destination, stream)
    until_ts = ts(10 + len(drawn) - 1)
    with pytest.raises(DataError, match=rf"batch \({BEGUN}, {until_ts}\] was begun") as raised:
        pipeline.run(
            PlannedBatch(BEGUN, until_ts, Mode.DISTRIBUTED, (), 1), LocalBatch([stream.binlogs], BEGUN, until_ts)
        )
    assert type(raised.value).__name__ == error and f"d.{info.name}" in str(raised.value)
    assert (pipeline.position_ts, pipeline.open_intent) == (BEGUN, destination.begun[0])


@pytest.mark.parametrize("value", [1, 2], ids=["that is refused", "that is not"])
@pytest.mark.parametrize("distributed", [False, True])
def test_ignore_txn_commit_ts_skips_transaction_distributed_or_in_driver(
    tmp_path: Path, distributed: bool, value: int
) -> None:
    drawn = [put(SECONDARY, 1, 1), put(SECONDARY, 2, value), put(SECONDARY, 3, 3)]
    stream = replace(stream_of([SECONDARY], drawn, upserts=False), ignored=ts(11))
    for behind in (frozenset[int](), frozenset({0}), frozenset({0, 1})):
        found = into_sqlite(tmp_path / "down.sqlite", stream, Cuts(behind, (distributed,)))
        assert (found.error, found.rows["secondary"]) == ("", [(1, 1, 1), (3, 3, 1)])


def test_batch_without_key_conflicts_is_one_transaction_downstream(tmp_path: Path) -> None:
    """Values that move from row to row in one batch are one transaction downstream."""
    drawn = [
        put(SECONDARY, 1, 1), put(SECONDARY, 2, 2), gone(SECONDARY, 1, 1), change(SECONDARY, (2, 2, 1), (2, 1, 1)),
        put(SECONDARY, 1, 2),
    ]  # fmt: skip
    stream = Stream((SECONDARY,), stream_of([SECONDARY], drawn, upserts=False).binlogs, False)
    moves: list[int] = []

    class Counting(SQLiteDistributed):
        def apply(self, work: SegmentWork, schema_version: int) -> None:
            moves.append(work.commits)
            super().apply(work, schema_version)

    assert drain(Counting(tmp_path / "down.sqlite"), stream, Cuts(frozenset({1}))) is None
    assert moves == [2, 3]


def test_batch_of_secondary_keys_without_conflicts_is_distributed(tmp_path: Path) -> None:
    """Values that move, keyless rows that come and go: nothing of it costs the batch its slots."""
    drawn = [
        put(SECONDARY, 1, 1), put(SECONDARY, 2, 2), gone(SECONDARY, 1, 1), change(SECONDARY, (2, 2, 1), (2, 1, 1)),
        put(SECONDARY, 1, 2), put(BARE, 1, 1), put(BARE, 1, 1), gone(BARE, 1, 1),
    ]  # fmt: skip
    stream = stream_of([SECONDARY, BARE], drawn, upserts=False)
    destination = SQLiteDistributed(tmp_path / "down.sqlite")
    assert drain(destination, stream, Cuts(frozenset({1, 3}), (True,))) is None
    assert len(destination.begun) == 3
