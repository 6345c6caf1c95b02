"""Rule 21: what a stream gives does not depend on where batches are cut, nor on whether they are spread."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from binlog.tidb.table import TableInfo
from hypothesis import given
from hypothesis import strategies as st

from drainer.apply.batch_planner import Mode, Plan
from drainer.apply.distributed import Cut, NotSpread
from drainer.batch.work import SegmentWork
from drainer.pipeline import Pipeline
from drainer.schema.history.base import JobHistory
from drainer.schema.state import Schema
from drainer.sink.base import Applied, Intent, SlotWriter
from drainer.sink.errors import CommitRefused, UniqueConflict
from drainer.sink.sqlite.layout import quote, table_name
from tests.support.examples import FEW
from tests.support.local_batch import LocalBatch
from tests.support.row_case import INT, TEXT, table
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
    SQLiteSpread,
    Stream,
    change,
    cuts,
    drain,
    gone,
    into_sqlite,
    jobs,
    opened,
    put,
    stream_of,
    streams,
)
from tests.unit.drainer.test_pipeline import Supply

EACH = Cuts(frozenset(range(99)))
every_table = pytest.mark.parametrize("info", TABLES, ids=lambda info: info.name)


@every_table
@FEW
@given(data=st.data())
def test_a_stream_of_a_service(tmp_path: Path, info: TableInfo, data: st.DataObject) -> None:
    """The later commit_ts wins; nothing is an error, whatever writers did to keys and old rows."""
    stream = stream_of([info], data.draw(streams([info])), upserts=True)
    how = data.draw(cuts(len(stream.binlogs), spread=True))
    expected = into_sqlite(tmp_path / "down.sqlite", stream, EACH)
    assert expected.error == "", expected.text
    assert into_sqlite(tmp_path / "down.sqlite", stream, how) == expected


@every_table
@FEW
@given(data=st.data())
def test_a_stream_of_tidb(tmp_path: Path, info: TableInfo, data: st.DataObject) -> None:
    """The same rows, or the same error at the same transaction with the same rows before it. Another table comes along:
    of a transaction that is refused nothing arrives, of those before it everything."""
    tables = [info] if info is INT_KEY else [info, INT_KEY]
    stream = stream_of(tables, data.draw(streams(tables)), upserts=False)
    how = data.draw(cuts(len(stream.binlogs), spread=True))
    expected = into_sqlite(tmp_path / "down.sqlite", stream, EACH)
    assert into_sqlite(tmp_path / "down.sqlite", stream, how) == expected


Rows = list[tuple[object, ...]]


def all_cuts(count: int, *, spread: bool) -> Iterator[Cuts]:
    for chosen in itertools.product((False, True), repeat=count - 1):
        behind = frozenset(n for n, cut in enumerate(chosen) if cut)
        yield from (Cuts(behind, modes) for modes in (((False,), (True,), (True, False)) if spread else ((False,),)))


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
def test_streams_of_services_that_look_wrong(
    tmp_path: Path, info: TableInfo, drawn: list[list[Op]], expected: Rows
) -> None:
    stream = stream_of([info], drawn, upserts=True)
    for how in all_cuts(len(drawn), spread=True):
        found = into_sqlite(tmp_path / "down.sqlite", stream, how)
        assert (found.error, found.rows[info.name]) == ("", expected), how


TIDB = [
    pytest.param(
        SECONDARY, [put(SECONDARY, 1, 1), put(SECONDARY, 2, 1), gone(SECONDARY, 1, 1)], 1, [(1, 1, 1)],
        id="a value with two holders for a moment",
    ),
    pytest.param(
        SECONDARY, [put(SECONDARY, 1, 1), put(SECONDARY, 2, 1), put(SECONDARY, 1, 2)], 1, [(1, 1, 1)],
        id="given up by an insert of a key that is there",
    ),
    pytest.param(
        NULLABLE,
        [put(NULLABLE, 1, 1), put(NULLABLE, 2, 2), change(NULLABLE, (1, 1, 1), (1, 2, 1)), gone(NULLABLE, 2, 2)], 2,
        [(1, 1, 1), (2, 2, 1)], id="taken before its holder goes",
    ),
    pytest.param(
        BARE, [put(BARE, 1, 1), gone(BARE, 2, 2), put(BARE, 3, 3)], 1, [(1, 1, 1)], id="a row that is not there"
    ),
    pytest.param(
        NULLABLE,
        [
            put(NULLABLE, 1, 1), put(NULLABLE, 2, 2), change(NULLABLE, (1, 1, 1), (1, None, 1)),
            change(NULLABLE, (2, 2, 1), (2, 1, 1)), change(NULLABLE, (1, None, 1), (1, 2, 1)),
        ],
        None, [(1, 2, 1), (2, 1, 1)], id="a ring over NULL is no error",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("info", "drawn", "refused", "expected"), TIDB)
def test_streams_of_tidb_that_break_the_rules(
    tmp_path: Path, info: TableInfo, drawn: list[list[Op]], refused: int | None, expected: Rows
) -> None:
    """The error names transaction, table, row and the way past it, and never tells to drop a primary key."""
    stream = stream_of([info], drawn, upserts=False)
    for how in all_cuts(len(drawn), spread=True):
        found = into_sqlite(tmp_path / "down.sqlite", stream, how)
        assert found.rows[info.name] == expected, how
        if refused is not None:
            at = ts(10 + refused)
            assert found.commit_ts == at
            assert f"commit_ts {at}, start_ts {at - 3}, table d.{info.name}, rows (" in found.text
            assert f"put {at} into syncer.ignore-txn-commit-ts" in found.text


@pytest.mark.parametrize("value", [1, 2], ids=["that is refused", "that is not"])
@pytest.mark.parametrize("spread", [False, True])
def test_the_setting_passes_over_a_transaction_however_the_batch_is_applied(
    tmp_path: Path, spread: bool, value: int
) -> None:
    drawn = [put(SECONDARY, 1, 1), put(SECONDARY, 2, value), put(SECONDARY, 3, 3)]
    stream = replace(stream_of([SECONDARY], drawn, upserts=False), ignored=ts(11))
    for behind in (frozenset[int](), frozenset({0}), frozenset({0, 1})):
        found = into_sqlite(tmp_path / "down.sqlite", stream, Cuts(behind, (spread,)))
        assert (found.error, found.rows["secondary"]) == ("", [(1, 1, 1), (3, 3, 1)])


def test_a_stream_that_keeps_its_keys_is_not_taken_apart(tmp_path: Path) -> None:
    """Values that move from row to row in one batch are one transaction downstream."""
    drawn = [
        put(SECONDARY, 1, 1), put(SECONDARY, 2, 2), gone(SECONDARY, 1, 1), change(SECONDARY, (2, 2, 1), (2, 1, 1)),
        put(SECONDARY, 1, 2),
    ]  # fmt: skip
    stream = Stream((SECONDARY,), stream_of([SECONDARY], drawn, upserts=False).binlogs, False)
    moves: list[int] = []

    class Counting(SQLiteSpread):
        def apply(self, work: SegmentWork, schema_version: int) -> Applied:
            moves.append(work.commits)
            return super().apply(work, schema_version)

    assert drain(Counting(tmp_path / "down.sqlite"), stream, Cuts(frozenset({1}))) is None
    assert moves == [2, 3]


def test_a_batch_of_secondary_keys_that_keeps_them_is_spread(tmp_path: Path) -> None:
    """Values that move, keyless rows that come and go: nothing of it costs the batch its slots."""
    drawn = [
        put(SECONDARY, 1, 1), put(SECONDARY, 2, 2), gone(SECONDARY, 1, 1), change(SECONDARY, (2, 2, 1), (2, 1, 1)),
        put(SECONDARY, 1, 2), put(BARE, 1, 1), put(BARE, 1, 1), gone(BARE, 1, 1),
    ]  # fmt: skip
    stream = stream_of([SECONDARY, BARE], drawn, upserts=False)
    destination = SQLiteSpread(tmp_path / "down.sqlite")
    assert drain(destination, stream, Cuts(frozenset({1, 3}), (True,))) is None
    assert len(destination.begun) == 3


def test_a_batch_that_was_read_to_be_spread_is_planned_anew(tmp_path: Path) -> None:
    """Its binlogs are not there any more: it is read again, and until it is behind nothing is spread."""
    stream = stream_of([SECONDARY], [put(SECONDARY, 1, 1), put(SECONDARY, 2, 1), put(SECONDARY, 3, 3)], upserts=False)
    pipeline = opened(SQLiteSpread(tmp_path / "down.sqlite"), stream)
    until_ts = ts(12)
    plan = Plan(BEGUN, until_ts, Mode.SPREAD, (), 1)
    plan = replace(plan, fold=pipeline.fold_order(plan))
    assert plan.fold is not None and plan.fold.examined
    with pytest.raises(NotSpread, match=r"two rows of d\.secondary hold one value of \(u\)"):
        pipeline.run(plan, LocalBatch([stream.binlogs], BEGUN, until_ts))
    assert (pipeline.position_ts, pipeline.open_intent, pipeline.inline_from) == (BEGUN, None, BEGUN)
    one = Plan(BEGUN, ts(10), Mode.INLINE, (), 1)
    pipeline.run(one, LocalBatch([stream.binlogs], BEGUN, ts(10)))
    assert pipeline.inline_from == ts(10)
    with pytest.raises(UniqueConflict, match=f"commit_ts {ts(11)}, start_ts {ts(11) - 3}"):
        pipeline.run(Plan(ts(10), ts(11), Mode.INLINE, (), 1), LocalBatch([stream.binlogs], ts(10), ts(11)))
    pipeline.advance(until_ts)
    assert pipeline.inline_from is None


class DeadAfterBegin(SQLiteSpread):
    """The intent is recorded with what goes ahead, and then the process ends."""

    def begin(self, intent: Intent, ahead: SegmentWork | None = None) -> SlotWriter:
        super().begin(intent, ahead)
        raise KeyboardInterrupt


def test_a_batch_that_was_begun_is_finished_without_what_went_ahead(tmp_path: Path) -> None:
    """Rows that came with the intent would come twice, and nothing is looked at again: own rows may be there by now."""
    drawn = [put(SECONDARY, 1, 1), put(BARE, 1, 1), put(SECONDARY, 2, 2), put(BARE, 1, 1), gone(BARE, 1, 1)]
    stream = stream_of([SECONDARY, BARE], drawn, upserts=False)
    until_ts, path = ts(10 + len(drawn) - 1), tmp_path / "down.sqlite"
    first = DeadAfterBegin(path)
    pipeline = opened(first, stream)
    feed = LocalBatch([stream.binlogs], BEGUN, until_ts)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run(Plan(BEGUN, until_ts, Mode.SPREAD, (), 1), feed)
    first.close(clean=False)
    second = SQLiteSpread(path)
    pipeline = opened(second, stream)
    assert pipeline.position_ts == BEGUN
    plan = Plan(BEGUN, until_ts, Mode.SPREAD, (), 1, first.begun[0])
    fold = pipeline.fold_order(plan)
    assert fold is not None and fold.ahead == {BARE.id} and not fold.examined
    pipeline.run(plan, feed)
    second.close(clean=False)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute(f"SELECT k, u, v FROM {quote(table_name('d', 'bare'))}").fetchall() == [(1, 1, 1)]
        found = connection.execute(f"SELECT k, u FROM {quote(table_name('d', 'secondary'))} ORDER BY k").fetchall()
    assert found == [(1, 1), (2, 2)]


def test_a_batch_is_examined_as_it_was_planned_whatever_becomes_known_meanwhile(tmp_path: Path) -> None:
    """The batch behind it is read while it is applied, and may have the schema read again. What goes ahead was cut out
    of the slots when this one was planned: by another examination it would be lost."""
    drawn = [put(BARE, 1, 1), put(SECONDARY, 2, 2)]
    stream = stream_of([SECONDARY, BARE], drawn, upserts=False)
    destination = SQLiteSpread(tmp_path / "down.sqlite")
    supply = Supply(Schema.open(JobHistory(jobs(stream.tables, upserts=False)), position_ts=BEGUN, schema_version=99))
    pipeline = Pipeline(destination, supply, Cut(3, 2, "d"), position_ts=BEGUN)
    opened(destination, stream)
    plan = Plan(BEGUN, ts(11), Mode.SPREAD, (), 1)
    plan = replace(plan, fold=pipeline.fold_order(plan))
    assert plan.fold is not None and plan.fold.examined
    asked: list[object] = []

    def nothing_to_examine(view: object) -> None:
        asked.append(view)

    destination.examination = nothing_to_examine  # type: ignore[method-assign, assignment]
    supply.schema.settle(100)
    pipeline.run(plan, LocalBatch([stream.binlogs], BEGUN, ts(11)))
    assert asked == [], "nor is it asked for beside whoever plans"
    destination.close(clean=False)
    with contextlib.closing(sqlite3.connect(tmp_path / "down.sqlite")) as connection:
        assert connection.execute(f"SELECT k, u, v FROM {quote(table_name('d', 'bare'))}").fetchall() == [(1, 1, 1)]


class RefusesCommit(SQLiteSpread):
    """As a server whose limit for a transaction shows at its end."""

    def begin(self, intent: Intent, ahead: SegmentWork | None = None) -> SlotWriter:
        raise CommitRefused(f"{intent}: COMMIT is refused, nothing of it is written: transaction too large")


@pytest.mark.parametrize("folded", [False, True])
def test_a_batch_that_is_too_large_to_go_ahead_goes_inline(tmp_path: Path, folded: bool) -> None:
    """Nothing of it is written, no intent is open, and the inline way writes smaller transactions."""
    drawn = [put(BARE, 1, 1), put(SECONDARY, 2, 2), put(BARE, 1, 1)]
    stream = stream_of([SECONDARY, BARE], drawn, upserts=False)
    destination = RefusesCommit(tmp_path / "down.sqlite")
    pipeline = opened(destination, stream)
    plan, feed = Plan(BEGUN, ts(12), Mode.SPREAD, (), 1), LocalBatch([stream.binlogs], BEGUN, ts(12))
    if folded:
        with pytest.raises(NotSpread, match="COMMIT is refused"):
            pipeline.run(replace(plan, fold=pipeline.fold_order(plan)), feed)
        assert (pipeline.position_ts, pipeline.open_intent, pipeline.inline_from) == (BEGUN, None, BEGUN)
        plan = replace(plan, mode=Mode.INLINE)
    pipeline.run(plan, feed)
    destination.close(clean=False)
    with contextlib.closing(sqlite3.connect(tmp_path / "down.sqlite")) as connection:
        found = connection.execute(f"SELECT k, u, v FROM {quote(table_name('d', 'bare'))}").fetchall()
    assert (pipeline.position_ts, found) == (ts(12), [(1, 1, 1), (1, 1, 1)])


def test_tables_whose_keys_cannot_be_compared_go_ahead(tmp_path: Path) -> None:
    """What a key on a prefix or on a generated column holds is not followed: such a table is tried with the intent."""
    words = table([("k", INT), ("u", TEXT), ("v", INT)], unique={"uu": ["u"]}, handle="k", table_id=108, name="words")
    (key,) = words.indexes
    prefix = replace(words, indexes=(replace(key, columns=(replace(key.columns[0], length=3),)),))
    made = replace(words.columns[1], generated_expr="upper(v)")
    generated = replace(words, id=109, name="made", columns=(words.columns[0], made, words.columns[2]))
    whole = replace(words, id=110, name="whole")
    stream = stream_of([prefix, generated, whole, INT_KEY], [put(INT_KEY, 1, 1)], upserts=False)
    known = Schema.open(JobHistory(jobs(stream.tables, upserts=False)), position_ts=BEGUN, schema_version=99)
    destination = SQLiteSpread(tmp_path / "down.sqlite")
    pipeline = Pipeline(destination, Supply(known), Cut(3, 2, "d"), position_ts=BEGUN)
    fold = pipeline.fold_order(Plan(BEGUN, ts(12), Mode.SPREAD, (), 1))
    assert fold is not None and fold.examined and fold.ahead == {108, 109}


def test_streams_of_services_are_not_looked_at(tmp_path: Path) -> None:
    stream = stream_of([SECONDARY, BARE], [put(SECONDARY, 1, 1)], upserts=True)
    pipeline = opened(SQLiteSpread(tmp_path / "down.sqlite"), stream)
    fold = pipeline.fold_order(Plan(BEGUN, ts(12), Mode.SPREAD, (), 1))
    assert fold is not None and not fold.examined and not fold.ahead
