"""Random streams over tables of every kind of key, sound ones and ones that break their keys, and what they leave when
they are cut into batches somewhere (rule 21)."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from binlog.tidb.datum import Datum
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import DBInfo, TableInfo
from hypothesis import strategies as st

from drainer.apply.batch_planner import Mode, PlannedBatch
from drainer.apply.distributed import Cut
from drainer.apply.progress import Decisions
from drainer.batch.work import Folded, Kind, NetRow, Ordered, SegmentWork
from drainer.ddl.mysql_columns import Dialect
from drainer.ddl.mysql_tables import create_table
from drainer.pipeline import Pipeline
from drainer.schema.filter import EventFilter, EventRule, Wildcards
from drainer.schema.history.base import JobHistory
from drainer.schema.job_policy import Policy
from drainer.schema.state import Schema
from drainer.schema.view import SchemaView
from drainer.sink.base import AnySink, Identity, Intent, ParallelSink, Receipt, SlotWriter
from drainer.sink.errors import DataError, UniqueConflict
from drainer.sink.mysql.rows.slot_writer import Phase
from drainer.sink.sqlite import rows as sqlite_rows
from drainer.sink.sqlite.rows import quote, table_name
from drainer.sink.sqlite.sink import SQLiteSink
from tests.support.local_batch import LocalBatch
from tests.support.row_case import INT, TEXT, Step, not_null, table, transaction
from tests.support.schema_case import BEGIN_TS, ddl, ts
from tests.unit.drainer.test_pipeline import StubProvider

NN = not_null(INT)
# Columns k (or a, b), u, v in every table; values are few, so that they meet.
INT_KEY = table([("k", INT), ("u", INT), ("v", INT)], handle="k", table_id=101, name="int_key")
COMPOSITE = table(
    [("k", not_null(TEXT)), ("u", NN), ("v", INT)], unique={"PRIMARY": ["k", "u"]}, table_id=102, name="composite"
)
ONE_UNIQUE = table([("k", INT), ("u", NN), ("v", INT)], unique={"uu": ["u"]}, table_id=103, name="one_unique")
SECONDARY = table([("k", INT), ("u", NN), ("v", INT)], unique={"uu": ["u"]}, handle="k", table_id=104, name="secondary")
NULLABLE = table([("k", INT), ("u", INT), ("v", INT)], unique={"uu": ["u"]}, handle="k", table_id=105, name="nullable")
LOOSE = table([("k", INT), ("u", INT), ("v", INT)], unique={"uu": ["u"]}, table_id=106, name="loose")
BARE = table([("k", INT), ("u", INT), ("v", INT)], table_id=107, name="bare")
TABLES = (INT_KEY, COMPOSITE, ONE_UNIQUE, SECONDARY, NULLABLE, LOOSE, BARE)
KEY_ONLY = (INT_KEY, COMPOSITE, ONE_UNIQUE)
WITH_SECONDARY = (SECONDARY, NULLABLE)
BEGUN = ts(9)

Row = dict[int, Datum]
Values = tuple[int, int | None, int]


@dataclass(frozen=True)
class Op:
    """One change as drawn: `old_key` and `new_key` are used as the kind needs them; `stored`: the old row is what a
    destination has that took all before it, where it has any under that key."""

    kind: str
    info: TableInfo
    old: Values
    new: Values


def ops(tables: Sequence[TableInfo]) -> st.SearchStrategy[Op]:
    few, unique = st.integers(1, 3), st.one_of(st.none(), st.integers(1, 3))
    row = st.tuples(few, unique, few)
    return st.builds(Op, st.sampled_from(["insert", "update", "delete"]), st.sampled_from(tables), row, row)


def put(info: TableInfo, k: int, u: int | None, v: int = 1) -> list[Op]:
    return [Op("insert", info, (k, u, v), (k, u, v))]


def gone(info: TableInfo, k: int, u: int | None, v: int = 1) -> list[Op]:
    return [Op("delete", info, (k, u, v), (k, u, v))]


def change(info: TableInfo, old: Values, new: Values) -> list[Op]:
    return [Op("update", info, old, new)]


def streams(tables: Sequence[TableInfo]) -> st.SearchStrategy[list[list[Op]]]:
    return st.lists(st.lists(ops(tables), min_size=1, max_size=3), min_size=1, max_size=9)


def stored(info: TableInfo, values: Values) -> Values:
    """The values that a table holds: 1 in place of a NULL that it does not take."""
    k, u, v = values
    nulls = info not in (COMPOSITE, ONE_UNIQUE, SECONDARY)
    return k, u if u is not None or nulls else 1, v


def row_of(info: TableInfo, values: Values) -> Row:
    k, u, v = stored(info, values)
    key: Datum = f"k{k}".encode() if info is COMPOSITE else k
    return {1: key, 2: u, 3: v}


def sound(drawn: Sequence[Sequence[Op]]) -> tuple[list[list[Op]], dict[int, list[Values]]]:
    """The drawn changes as a TiDB would write them: without those that its keys refuse, and with an update or delete of
    a row that it has. Also its rows at the end, by table id."""
    rows: dict[int, list[Values]] = {}
    found: list[list[Op]] = []
    for transaction_ in drawn:
        taken: list[Op] = []
        for op in transaction_:
            there, new = rows.setdefault(op.info.id, []), stored(op.info, op.new)
            others = list(there)
            if op.kind != "insert":
                if not there:
                    continue
                others.pop((op.old[0] - 1) % len(there))
            if op.kind != "delete" and any(_collide(op.info, new, other) for other in others):
                continue
            old = there[(op.old[0] - 1) % len(there)] if op.kind != "insert" else new
            taken.append(Op(op.kind, op.info, old, new))
            rows[op.info.id] = others if op.kind == "delete" else [*others, new]
        if taken:
            found.append(taken)
    return found, rows


def _collide(info: TableInfo, one: Values, other: Values) -> bool:
    """Whether two rows have the same value of a unique key."""
    keys = [[column.offset for column in info.index_columns(index)] for index in info.unique_indexes()]
    return any(all(one[at] is not None and one[at] == other[at] for at in key) for key in keys)


def expected_of(tables: Sequence[TableInfo], rows: Mapping[int, Sequence[Values]]) -> Outcome:
    """What a destination has that took a sound stream."""
    return Outcome(
        {
            info.name: sorted(
                [(f"k{k}" if info is COMPOSITE else k, u, v) for k, u, v in rows.get(info.id, [])], key=repr
            )
            for info in tables
        }
    )


def payloads(stream: Sequence[Sequence[Op]], *, upserts: bool) -> list[bytes]:
    """One binlog for each transaction. In a stream that does not upsert the old rows of tables with secondary unique
    keys are true, as far as any is stored: what they hold in the key is not looked up."""
    model: dict[tuple[int, Datum], Row] = {}
    found = []
    for number, transaction_ in enumerate(stream):
        steps: list[tuple[TableInfo, Step]] = []
        for op in transaction_:
            old, new = row_of(op.info, op.old), row_of(op.info, op.new)
            if not upserts and op.info in WITH_SECONDARY:
                old = {**model.get((op.info.id, old[1]), old), 3: old[3]}
            if op.kind != "insert":
                model.pop((op.info.id, old[1]), None)
            if op.kind != "delete":
                model[op.info.id, new[1]] = new
            steps.append((op.info, (op.kind, old if op.kind != "insert" else {}, new if op.kind != "delete" else {})))
        found.append(transaction(steps, commit_ts=ts(10 + number), version=20))
    return found


def jobs(tables: Sequence[TableInfo], *, upserts: bool) -> list[Job]:
    found = [Job(id=1, type=ActionType.CREATE_SCHEMA, schema_version=1, schema_id=2, db_info=DBInfo(2, "d"))]
    for number, info in enumerate(tables, start=2):
        made = replace(info, upserts=upserts)
        found.append(
            Job(
                id=number,
                type=ActionType.CREATE_TABLE,
                schema_version=number,
                schema_id=2,
                table_id=info.id,
                table_info=made,
            )
        )
    return found


def beginning(known: Sequence[Job]) -> list[bytes]:
    return [ddl(ts(1) + n, job.id, _text(job.table_info)).payload for n, job in enumerate(known)]


def _text(info: TableInfo | None) -> str:
    return "CREATE DATABASE d" if info is None else create_table("d", info, Dialect())


@dataclass(frozen=True)
class SQLiteSlots:
    """A distributed target that writes a slot into the file, in the phases of a server (rule 12)."""

    destination: SQLiteDistributed
    phase: Phase = Phase.DIRECT

    def write(self, slot: int, segment: SegmentWork, retry_for_s: float) -> Receipt:
        work = segment
        unique = tuple(folded for folded in work.folded if folded.shape.may_collide)
        if not self.destination.begun[-1].chunk_rows:
            return self._whole(slot, work)
        if self.phase is Phase.DIRECT:
            self._write(replace(work, folded=tuple(folded for folded in work.folded if folded not in unique)))
        try:
            self._write(replace(work, ordered=Ordered(()), folded=tuple(self._of_phase(folded) for folded in unique)))
        except UniqueConflict as error:
            if self.phase is not Phase.DIRECT:
                raise
            return Receipt(slot, 0, 2, 0, str(error))
        return Receipt(slot, 1, 2, 0)

    def _whole(self, slot: int, work: SegmentWork) -> Receipt:
        try:
            self._write(work)
        except UniqueConflict:
            with self.destination._opened().transaction() as connection:
                sqlite_rows.write(connection, replace(work, commits=1))
        return Receipt(slot, 1, 1, 0)

    def _write(self, work: SegmentWork) -> None:
        with self.destination._opened().transaction() as connection:
            sqlite_rows.write(connection, replace(work, commits=2))

    def _of_phase(self, folded: Folded) -> Folded:
        if self.phase is Phase.DIRECT:
            return folded
        if self.phase is Phase.INSERT:
            rows = [NetRow(row.identity, Kind.INSERT, row.row, ()) for row in folded.rows]
            return replace(folded, rows=tuple(rows))
        keys = [[tuple(row.row[at] for at in folded.shape.key)] if row.row is not None else [] for row in folded.rows]
        gone = [row._replace(row=None, stale=(*row.stale, *own)) for row, own in zip(folded.rows, keys, strict=True)]
        return replace(folded, rows=tuple(gone))


class SQLiteDistributed(SQLiteSink):
    """As a server is: its batches may be distributed, and a slot may be one transaction."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.file = path
        self.begun: list[Intent] = []

    retry_for_s = 0.0

    @property
    def parallel(self) -> ParallelSink[SegmentWork]:
        return self

    def prepare(self, view: SchemaView) -> None:
        """Nothing depends on the tables."""

    def begin(self, intent: Intent) -> SlotWriter[SegmentWork]:
        self.begun.append(intent)
        self._phase = Phase.DIRECT
        return SQLiteSlots(self)

    def commit(
        self, intent: Intent, receipts: Sequence[Receipt], schema_version: int
    ) -> SlotWriter[SegmentWork] | None:
        self._phase = {Phase.DIRECT: Phase.DELETE, Phase.DELETE: Phase.INSERT}.get(self._phase, Phase.DIRECT)
        if self._phase is Phase.DELETE and not any(receipt.detail for receipt in receipts):
            self._phase = Phase.DIRECT
        if self._phase is not Phase.DIRECT:
            return SQLiteSlots(self, self._phase)
        self.advance(intent.until_ts, schema_version)
        return None


@dataclass(frozen=True)
class Cuts:
    """Batches end behind the transactions of these numbers, and at the end; each of them distributed or not, in
    turn. `whole`: readers see complete transactions (rule 33)."""

    behind: frozenset[int] = frozenset()
    distributed: tuple[bool, ...] = (False,)
    parts: int = 1
    whole: bool = False


@dataclass(frozen=True)
class Outcome:
    """What is there in the end: rows by table, sorted, and the error with its commit_ts."""

    rows: Mapping[str, list[tuple[object, ...]]]
    error: str = ""
    commit_ts: int = 0
    text: str = field(default="", compare=False)


def cuts(length: int, *, distributed: bool) -> st.SearchStrategy[Cuts]:
    modes = st.lists(st.booleans(), min_size=1, max_size=4).map(tuple) if distributed else st.just((False,))
    ends = st.frozensets(st.integers(0, max(length - 2, 0)))
    return st.builds(Cuts, ends, modes, st.integers(1, 3), st.booleans())


@dataclass(frozen=True)
class Stream:
    """Binlogs over some tables; `ignored`: the commit_ts that the configuration skips; `events`: its event filter."""

    tables: tuple[TableInfo, ...]
    binlogs: list[bytes]
    upserts: bool
    ignored: int = 0
    events: EventFilter = field(default_factory=EventFilter)


def without(*events: str) -> EventFilter:
    """Leaves these events out of every table."""
    return EventFilter((EventRule.create(Wildcards("d", "*"), events, (), owner="rule"),))


def stream_of(tables: Sequence[TableInfo], drawn: Sequence[Sequence[Op]], *, upserts: bool) -> Stream:
    return Stream(tuple(tables), payloads(drawn, upserts=upserts), upserts)


def opened(
    destination: AnySink, stream: Stream, decisions: Decisions | None = None, *, whole: bool = False
) -> Pipeline:
    """Behind the jobs that make the tables."""
    known = jobs(stream.tables, upserts=stream.upserts)
    position = destination.open(Identity(1, "default", "n"), BEGIN_TS)
    policy = Policy(ignored_ts=frozenset({stream.ignored}), events=stream.events)
    schema = Schema.open(
        JobHistory(known), position_ts=position.commit_ts, job_done=destination.job_done, policy=policy
    )
    cut = Cut(3, 2, "d", whole)
    pipeline = Pipeline(
        destination,
        StubProvider(schema),
        cut,
        position_ts=position.commit_ts,
        intent=position.intent,
        decisions=decisions,
    )
    if position.commit_ts < BEGUN:
        begun = LocalBatch([beginning(known)], pipeline.position_ts, BEGUN)
        pipeline.run(PlannedBatch(pipeline.position_ts, BEGUN, Mode.DRIVER, (), 1), begun)
    return pipeline


def drain(destination: AnySink, stream: Stream, how: Cuts) -> DataError | None:
    """The whole stream, or what is left of it, through a pipeline; the error that stopped it. Whatever else is raised
    leaves the destination as it is."""
    pipeline = opened(destination, stream, whole=how.whole)
    intent = pipeline.open_intent
    count = len(stream.binlogs)
    edges = [ts(10 + n) for n in range(count) if n in how.behind or n == count - 1]
    parts = [stream.binlogs[n :: how.parts] for n in range(how.parts)]
    try:
        if intent is not None:
            feed = LocalBatch(parts, intent.after_ts, intent.until_ts)
            pipeline.run(PlannedBatch(intent.after_ts, intent.until_ts, Mode.DISTRIBUTED, (), 1, intent), feed)
        for until_ts, distributed in zip(edges, itertools.cycle(how.distributed), strict=False):
            if until_ts > pipeline.position_ts:
                feed = LocalBatch(parts, pipeline.position_ts, until_ts)
                mode = Mode.DISTRIBUTED if distributed else Mode.DRIVER
                pipeline.run(PlannedBatch(pipeline.position_ts, until_ts, mode, (), 1), feed)
    except DataError as error:
        destination.close(clean=False)
        return error
    destination.close(clean=False)
    return None


def into_sqlite(path: Path, stream: Stream, how: Cuts) -> Outcome:
    """A fresh file."""
    path.unlink(missing_ok=True)
    error = drain(SQLiteDistributed(path), stream, how)
    connection = sqlite3.connect(path)
    found = {
        info.name: sorted(connection.execute(f"SELECT k, u, v FROM {quote(table_name('d', info.name))}"), key=repr)
        for info in stream.tables
    }
    connection.close()
    return outcome(found, error)


def outcome(found: Mapping[str, list[tuple[object, ...]]], error: DataError | None) -> Outcome:
    if error is None:
        return Outcome(found)
    return Outcome(found, type(error).__name__, error.commit_ts, str(error))
