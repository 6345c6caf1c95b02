"""The in-memory destination keeps the rules that a pipeline relies on."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from binlog.tidb.job import ActionType, Job

from drainer.batch.work import Folded, KeyChange, Kind, Match, NetRow, Ordered, SegmentWork, TableShape
from drainer.schema.steps import Ddl
from drainer.sink.base import Identity, Intent
from drainer.sink.errors import Fenced, PositionMoved, RowMissing
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.fenced_session import lock_name
from drainer.sink.position import Stored
from tests.support.memory_sink import MemorySink, Store

IDENTITY = Identity(1, "main", "n")
SHAPE = TableShape(1, "d", "t", ("id",), (0,), (), (Match.PLAIN,))
KEYLESS = replace(SHAPE, table="k", key=())
INTENT = Intent(200, 300, 2, 10, 1, "all")


def work(after: int, until: int, *rows: NetRow, changes: tuple[KeyChange, ...] = ()) -> SegmentWork:
    return SegmentWork(after, until, (Folded(SHAPE, rows),), Ordered(changes), 1, 1)


def test_apply_moves_position_and_rows_together_once() -> None:
    store = Store()
    one = MemorySink(store)
    assert one.open(IDENTITY, 100).fresh
    one.apply(work(100, 200, NetRow(b"1", Kind.INSERT, b"(1)", ())), 3)
    with pytest.raises(PositionMoved):
        one.apply(work(100, 200), 3)
    missing = KeyChange(KEYLESS, Kind.DELETE, (b"9",), None, 201, 0)
    with pytest.raises(RowMissing):
        one.apply(work(200, 300, changes=(missing,)), 3)
    assert (store.rows, one.commit_ts) == ({("d", "t"): {b"1": b"(1)"}}, 200)


def test_successor_fences_driver_and_slot_writers_before_it() -> None:
    store = Store()
    old, new = MemorySink(store), MemorySink(store)
    old.open(IDENTITY, 200)
    target = old.begin(INTENT)
    assert new.open(IDENTITY, 1).intent == INTENT
    for attempt in (lambda: old.advance(500, 1), lambda: target.write(0, work(200, 300))):
        with pytest.raises(Fenced):
            attempt()
    again = new.begin(INTENT)
    first = again.write(0, work(200, 300, NetRow(b"1", Kind.INSERT, b"(1)", ())))
    assert (first.rows, again.write(0, work(200, 300)).skipped) == (1, 1)
    with pytest.raises(PositionMoved):
        new.begin(replace(INTENT, slots=3))
    new.commit(INTENT, [first], 4)
    assert (new.commit_ts, store.intent) == (300, None)


def test_a_range_that_is_not_at_the_position_changes_nothing() -> None:
    """Nothing is written before the position is looked at; an open range stands in the way of everything else."""
    one = MemorySink()
    one.open(IDENTITY, 200)
    row = NetRow(b"1", Kind.INSERT, b"(1)", ())
    for attempt in (
        lambda: one.apply(work(100, 300, row), 3),
        lambda: one.begin(replace(INTENT, after_ts=100)),
    ):
        with pytest.raises(PositionMoved):
            attempt()
    one.begin(INTENT)
    for attempt in (lambda: one.apply(work(200, 300, row), 3), lambda: one.advance(300, 3)):
        with pytest.raises(PositionMoved, match="is open"):
            attempt()
    assert (one.store.rows, one.commit_ts) == ({}, 200)


def test_a_slot_of_a_range_that_is_finished_writes_nothing() -> None:
    """Rule 15: in the same epoch, too; an executor may wake late."""
    one = MemorySink()
    one.open(IDENTITY, 200)
    late = one.begin(INTENT)
    one.commit(INTENT, [], 4)
    one.begin(replace(INTENT, after_ts=300, until_ts=400))
    with pytest.raises(Fenced):
        late.write(0, work(200, 300, NetRow(b"1", Kind.INSERT, b"(1)", ())))
    assert one.store.rows == {}


def test_closed_sink_moves_nothing_and_schema_version_never_decreases() -> None:
    one = MemorySink()
    one.open(IDENTITY, 100)
    one.advance(200, 9)
    one.advance(300, 4)
    assert one.store.position.read() == Stored(one.commit_ts, 9, 1, "n")
    one.close(clean=True)
    with pytest.raises(Fenced):
        one.advance(400, 9)


def test_ddl_job_is_done_after_its_ddl_ran() -> None:
    one = MemorySink()
    one.open(IDENTITY, 100)
    job = Job(5, ActionType.CREATE_TABLE, schema_version=9)
    one.ddl(Ddl(job, 150, False, "d", "d", ("x",), "x", 150, ()))
    assert one.job_done(5)
    assert one.store.position.read() == Stored(one.commit_ts, 9, 1, "n")


def test_server_config_hides_password_in_repr_and_keeps_it_when_pickled() -> None:
    config = ServerConfig(password="hidden")
    assert "hidden" not in repr(config)
    assert pickle.loads(pickle.dumps(config)).password == "hidden"


def test_lock_names_are_unique_within_64_characters() -> None:
    """64 characters are the servers' limit; two long changefeeds do not share a lock."""
    names = {lock_name(1, "f" * 90 + end) for end in "ab"} | {lock_name(2, "f")}
    assert len(names) == 3
    assert all(len(name) <= 64 for name in names)
