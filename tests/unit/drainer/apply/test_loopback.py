"""With loopback-control a destination has what the stream without the marked transactions gives, however it is cut."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from binlog import envelope
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import TableInfo
from hypothesis import given
from hypothesis import strategies as st

from drainer.apply.batch_planner import Mode, PlannedBatch
from drainer.apply.distributed import Cut
from drainer.apply.progress import Progress
from drainer.batch.served import ServedBinlog
from drainer.batch.work import Folded
from drainer.changes.segment import SegmentCutter, SegmentDecoder
from drainer.changes.slots import merge_slot
from drainer.changes.stream import StreamDecoder, merge
from drainer.pipeline import Pipeline
from drainer.row.transaction import LoopbackFilter
from drainer.schema.filter import Filter
from drainer.schema.history.base import JobHistory
from drainer.schema.job_policy import Policy
from drainer.schema.state import Schema
from drainer.schema.view import SchemaView
from drainer.sink.base import Identity
from drainer.sink.mysql.rows.format import SQL_TEXT
from tests.support.examples import FEW
from tests.support.fold_model import work_of
from tests.support.local_batch import LocalBatch
from tests.support.loopback_case import APP, MARKS, mark, marked_view, put
from tests.support.memory_sink import MemorySink, Store
from tests.support.row_case import Step, transaction, view_of
from tests.support.schema_case import ddl, job, ts
from tests.unit.drainer.changes.test_stream import by_parity, listed
from tests.unit.drainer.cut_case import BEGUN, TABLES, Cuts, Op, cuts, jobs, row_of, streams
from tests.unit.drainer.test_pipeline import StubProvider

OURS, OTHER = 7, 8
MARK = MARKS[0]
TWO_WAY = Policy(Filter.create(marked=True), channel_id=OURS)
Steps = list[tuple[TableInfo, Step]]


def steps_of(drawn: Sequence[Op]) -> Steps:
    found: Steps = []
    for op in drawn:
        old, new = row_of(op.info, op.old), row_of(op.info, op.new)
        found.append((op.info, (op.kind, old if op.kind != "insert" else {}, new if op.kind != "delete" else {})))
    return found


def with_mark(steps: Steps, channel: int, at: int) -> Steps:
    return [*steps[: at % (len(steps) + 1)], mark(MARK, channel), *steps[at % (len(steps) + 1) :]] if channel else steps


def known(tables: Sequence[TableInfo]) -> list[Job]:
    made = jobs(tables, upserts=True)
    last = len(made)
    return [
        *made,
        job(last + 1, ActionType.CREATE_SCHEMA, last + 1, schema=(3, "retl")),
        job(last + 2, ActionType.CREATE_TABLE, last + 2, schema_id=3, table_id=MARK.id, table_info=MARK),
    ]


class Drained:
    """A pipeline behind the jobs that make the tables."""

    def __init__(self, tables: Sequence[TableInfo], policy: Policy) -> None:
        self.store = Store()
        self.now_s = 100.0
        destination = MemorySink(self.store)
        destination.open(Identity(1, "default", "n"), BEGUN)
        schema = Schema.open(JobHistory(known(tables)), position_ts=BEGUN, schema_version=20, policy=policy)
        self._large: list[ServedBinlog] = []
        self.pipeline = Pipeline(
            destination,
            StubProvider(schema),
            Cut(3, 2, "d"),
            position_ts=BEGUN,
            pull_large=self._pull,
            piece_bytes_max=1,
            monotonic=lambda: self.now_s,
        )

    @contextlib.contextmanager
    def _pull(self, _plan: PlannedBatch, _progress: Progress) -> Iterator[list[ServedBinlog]]:
        yield self._large

    def run(self, binlogs: Sequence[bytes], until_ts: int, mode: Mode = Mode.DRIVER, parts: int = 1) -> None:
        after_ts = self.pipeline.position_ts
        found = [envelope.scan(one) for one in binlogs]
        self._large = [
            ServedBinlog(at.commit_ts, at.start_ts, "p", memoryview(one))
            for at, one in zip(found, binlogs, strict=True)
            if after_ts < at.commit_ts <= until_ts
        ]
        feed = LocalBatch([list(binlogs[n::parts]) for n in range(parts)], after_ts, until_ts)
        self.pipeline.run(PlannedBatch(after_ts, until_ts, mode, (), 1), feed)

    def drain(self, binlogs: Sequence[bytes], edges: Sequence[int], modes: Sequence[Mode], parts: int) -> Store:
        for until_ts, mode in zip(edges, itertools.cycle(modes), strict=False):
            self.run(binlogs, until_ts, mode, parts)
        return self.store


@FEW
@given(data=st.data(), drawn=streams(TABLES))
def test_destination_has_what_the_stream_without_marked_transactions_gives(
    data: st.DataObject, drawn: list[list[Op]]
) -> None:
    """In the driver, distributed and in pieces; the mark is anywhere in its transaction."""
    channels = [data.draw(st.sampled_from([0, OURS, OTHER])) for _ in drawn]
    places = [data.draw(st.integers(0, 3)) for _ in drawn]
    how: Cuts = data.draw(cuts(len(drawn), distributed=True))
    modes = data.draw(st.lists(st.sampled_from(list(Mode)), min_size=1, max_size=4))
    steps = [steps_of(one) for one in drawn]
    marked = [with_mark(*one) for one in zip(steps, channels, places, strict=True)]
    binlogs = [transaction(one, commit_ts=ts(10 + n), version=20) for n, one in enumerate(marked)]
    rest = [transaction(one, commit_ts=ts(10 + n), version=20) for n, one in enumerate(steps) if channels[n] != OURS]
    edges = [ts(10 + n) for n in range(len(drawn)) if n in how.behind or n == len(drawn) - 1]
    found = Drained(TABLES, TWO_WAY)
    store = found.drain(binlogs, edges, modes, how.parts)
    wanted = Drained(TABLES, Policy()).drain(rest, edges, modes, how.parts)
    assert store.rows == wanted.rows and store.bags == wanted.bags
    assert found.pipeline.position_ts == edges[-1]
    found.run([], ts(99), Mode.DISTRIBUTED)
    assert store.commit_ts == ts(99)
    assert found.pipeline.progress.left_out == channels.count(OURS)


@given(st.lists(st.sampled_from([0, OURS, OTHER]), min_size=1, max_size=8), st.integers(1, 3))
def test_stream_of_changes_lacks_marked_transactions(channels: list[int], slots: int) -> None:
    """For sinks that want every change, in one segment and through slots."""
    steps: list[Steps] = [[(APP, put(n)), (APP, put(100 + n))] for n in range(len(channels))]
    payloads = [transaction(with_mark(one, channels[n], n), commit_ts=ts(n)) for n, one in enumerate(steps)]
    rest = [transaction(one, commit_ts=ts(n)) for n, one in enumerate(steps) if channels[n] != OURS]

    def places(changes: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
        return [(*one[:3], *one[4:]) for one in changes]  # without `sequence`, in which the mark's row counts

    decoder = StreamDecoder(marked_view(MARK, OURS))
    loopback = LoopbackFilter(decoder.view.marks)
    expected = places(listed(StreamDecoder(view_of(APP)).segment(rest, 0, 1)))
    assert places(listed(decoder.segment([*loopback.keep(payloads)], 0, 1))) == expected
    assert loopback.left_out == channels.count(OURS)
    cutter = decoder.cutter(slots, by_parity)
    cutter.add_in_order(payloads, 1 << 30)
    found = [change for blob in cutter.cut().values() for change in places(listed(merge(decoder, [blob], 0, 1)))]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert cutter.left_out == channels.count(OURS)


@pytest.mark.parametrize("columns_rows_min", [1, 1_000_000], ids=["columns", "row by row"])
def test_net_rows_lack_marked_transactions(columns_rows_min: int) -> None:
    """In one segment and through blobs; each third transaction changes the rows of the one before."""
    channels = [0, OTHER, OURS] * 200
    steps: list[Steps] = [[(APP, put(n // 3, n)), (APP, put(1000 + n, n))] for n in range(len(channels))]
    payloads = [transaction(with_mark(one, channels[n], n), commit_ts=ts(n)) for n, one in enumerate(steps)]
    rest = [transaction(one, commit_ts=ts(n)) for n, one in enumerate(steps) if channels[n] != OURS]

    def folded(view: SchemaView, given: Sequence[bytes]) -> tuple[Folded, ...]:
        work = work_of(view, given, rows_min=columns_rows_min)
        assert (work.change_count, work.commits) == (2 * len(rest), len(rest))
        return work.folded

    expected = folded(view_of(APP), rest)
    assert folded(marked_view(MARK, OURS), payloads) == expected
    decoder = SegmentDecoder(marked_view(MARK, OURS), SQL_TEXT, columns_rows_min=columns_rows_min)
    cutter = SegmentCutter(decoder, flush_bytes=1)
    for payload in payloads:
        cutter.add_in_order([payload], len(payload))
    assert merge_slot(cutter.cut(1).values(), SQL_TEXT, 0, 1).folded == expected
    assert cutter.left_out == channels.count(OURS)


def test_rows_of_the_table_of_marks_are_written_only_without_loopback_control() -> None:
    binlog = transaction([(APP, put(1)), mark(MARK, OTHER, "insert")], commit_ts=ts(10), version=20)
    for policy, tables in ((TWO_WAY, {("d", "app")}), (Policy(), {("d", "app"), ("retl", "_drainer_repl_mark")})):
        drained = Drained([APP], policy)
        drained.run([binlog], ts(10))
        assert {name for name, rows in drained.store.rows.items() if rows} == tables


def test_ddl_of_the_table_of_marks_does_not_run_with_loopback_control() -> None:
    """Each drainer makes the table at its destination; upstream's would be refused, or replace it."""
    for policy, count in ((TWO_WAY, 2), (Policy(), 4)):
        store = Store()
        destination = MemorySink(store)
        destination.open(Identity(1, "default", "n"), ts(0))
        schema = Schema.open(JobHistory(known([APP])), position_ts=ts(0), policy=policy)
        pipeline = Pipeline(destination, StubProvider(schema), Cut(3, 2, "d"), position_ts=ts(0))
        texts = [ddl(ts(1) + n, one.id, "CREATE …").payload for n, one in enumerate(known([APP]))]
        pipeline.run(PlannedBatch(ts(0), ts(2), Mode.DRIVER, (), 1), LocalBatch([texts], ts(0), ts(2)))  # type: ignore[list-item]
        assert len([entry for entry in store.log if entry[0] == "ddl"]) == count


def test_position_after_ranges_without_rows_is_stored_now_and_then() -> None:
    """It is a binlog for the drainer of the other direction, which would store its own because of it, and so on."""

    def binlog(n: int, *steps: tuple[TableInfo, Step]) -> bytes:
        return transaction(steps, commit_ts=ts(n), version=20)

    drained = Drained([APP], TWO_WAY)
    log = drained.store.log
    drained.run([binlog(10, (APP, put(1)), mark(MARK, OURS))], ts(10))
    assert log == [("rows", BEGUN, ts(10))]
    for n in (11, 12):
        drained.run([binlog(n, (APP, put(n)), mark(MARK, OURS))], ts(n))
    assert (len(log), drained.pipeline.position_ts, drained.store.commit_ts) == (1, ts(12), ts(10))
    drained.run([binlog(13, (APP, put(1)))], ts(13))
    assert log[1:] == [("advance", ts(12)), ("rows", ts(12), ts(13))]
    drained.run([binlog(14, (APP, put(1)), mark(MARK, OURS))], ts(14))
    drained.now_s += 3.1
    drained.run([binlog(15, (APP, put(1)), mark(MARK, OURS))], ts(15))
    assert log[3:] == [("advance", ts(14)), ("rows", ts(14), ts(15))]
    drained.run([binlog(16, (APP, put(1)), mark(MARK, OURS))], ts(16))
    assert drained.store.commit_ts == ts(15)
    drained.pipeline.store_position()  # a drainer that ends here
    assert drained.store.commit_ts == ts(16)
    assert drained.store.rows == {("d", "app"): drained.store.rows["d", "app"]}


def test_ranges_without_rows_are_stored_at_once_without_loopback_control() -> None:
    drained = Drained([APP], replace(TWO_WAY, channel_id=None))
    for n in (10, 11):
        drained.run([transaction([mark(MARK, OURS)], commit_ts=ts(n), version=20)], ts(n))
        assert drained.store.commit_ts == ts(n)
