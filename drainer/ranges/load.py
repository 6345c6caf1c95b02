"""Loads all tables into an empty destination, as upstream had them at its position: a first load.

What is next is decided by what the destination has recorded (sink.base.TableLoad), so whatever ends a load, the next
one continues it. All tables are divided before the first range is loaded, so it is known how many ranges are left, also
after a restart. A range is a batch (P, P] at the destination's position P, in one transaction of the driver: rows are
written, the count of the table's loaded ranges moves, and the position stays. The transaction is that of every batch,
which checks epoch, position and that no range is open.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np
import pyarrow.compute as pc
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import Outage, get_logger
from binlog.tidb.job import ActionType, Job
from binlog.tidb.table import DBInfo

from drainer.apply.fold_order import PackedView
from drainer.apply.progress import LoadProgress
from drainer.batch.work import Folded, KeyChange, Kind, Ordered, Pieces, SegmentWork
from drainer.changes import ChangeSegment
from drainer.changes.decode import Changes
from drainer.changes.net import NetColumns, identities
from drainer.ddl.lexer import quoted
from drainer.ddl.mysql_columns import Dialect
from drainer.ranges.upstream import (
    Border,
    DefinitionChanged,
    Range,
    Snapshot,
    SnapshotGone,
    Source,
    Upstream,
    UpstreamDown,
)
from drainer.row.codec import Format
from drainer.schema.job_policy import RewriteRules, generated
from drainer.schema.steps import Ddl, Located, TableChange
from drainer.schema.view import SchemaView, TableVersions
from drainer.sink.base import SCHEMA_ID, AnySink, NetSink, TableLoad, Wants, unfinished
from drainer.sink.errors import DdlFailed

TRIES_MAX: Final = 60
DISTRIBUTED_RANGES: Final = 128  # fewer are loaded before executors, which take seconds to start, would pay
PART_RANGES: Final = 16
_PAUSE_S: Final = 5.0
_OWN_ID: Final = 1 << 48  # above every id of upstream's
# A row's place among the rows of a load: the number of its table in the load, of its range, and its own in that.
TABLE_SHIFT: Final = 44
RANGE_SHIFT: Final = 24
_log = get_logger(__name__)


class Origin(Protocol):
    """What a load reads instead of TiDB (see Upstream and Snapshot), in Spark's session. `read_bytes`: of rows."""

    address: str
    read_bytes: int
    session: Any

    def spark_settings(self, given: Mapping[str, str]) -> Mapping[str, str]: ...

    def open(self, ts: int | None) -> int:
        """Read at this TSO from now on, whatever `at` is given. None: at the one that the user wants. Return it."""
        ...

    def at(self, ts: int) -> AbstractContextManager[Origin]: ...
    def check_ids(self, sources: Mapping[int, Source]) -> None: ...
    def divided(self, source: Source) -> Iterator[Range]: ...
    def read(self, source: Source, of: Range) -> Iterator[list[Any]]: ...


@dataclass(eq=False)
class FirstLoad:
    """`schemas`: upstream's databases of the tables by id. `stop`: ends it after the range at hand. `databases`: those
    that are replicated, with or without tables. `rewrite`: what an operator has said to run in place of a statement
    that failed. `distribute`: loads parts of tables, a list of them in a task, on executors, and returns when all are
    loaded or `stop` is set."""

    sink: AnySink
    view: SchemaView
    schemas: Mapping[int, str]
    upstream: Upstream | Origin
    progress: LoadProgress
    schema_version: int
    stop: threading.Event
    databases: Sequence[DBInfo] = ()
    rewrite: RewriteRules = field(default_factory=RewriteRules)
    distribute: Callable[[list[list[TableLoad]]], None] | None = None
    pause_s: float = _PAUSE_S

    def __post_init__(self) -> None:
        view, schemas = self.view, self.schemas
        self._tables = {table_id: view.tables[table_id] for table_id in schemas if table_id in view.tables}
        generated = self.sink.wants is Wants.CHANGES and self.sink.stored_generated
        found = {
            table_id: Source.of(view, table_id, schemas[table_id], stored_generated=generated)
            for table_id in self._tables
        }
        ignored = {table_id for table_id, kinds in view.ignored_kinds.items() if Kind.INSERT in kinds}
        self._sources = {id_: source for id_, source in found.items() if source is not None and id_ not in ignored}
        self._numbers: dict[int, int] = {}  # of the tables that are listed, which stay the same

    def run(self) -> bool:
        """Return whether all is loaded; False: it was stopped. Raises UpstreamError, and what the sink raises."""
        while not self.stop.is_set():
            loads = self.sink.loads()
            self._numbers = {load.table_id: number for number, load in enumerate(loads)}
            left = unfinished(loads, self._sources)
            if not left:
                # What is not complete was dropped upstream, or is no longer replicated. The borders of the others are
                # of no use any more, and a position's document has them in each transaction.
                ended = [one for one in loads if self.sink.wants is Wants.CHANGES or not one.is_complete]
                if ended:
                    self.sink.put_loads([TableLoad(one.table_id, (), 1, one.part) for one in ended])
                return True
            self.progress.begin([load for load in loads if load.table_id in self._sources])
            undivided = [load for load in left if load.borders is None]
            if self.distribute is None or undivided or sum(load.left for load in left) < DISTRIBUTED_RANGES:
                self.load(undivided or left)
            else:
                self.distribute(shares(left))
        return False

    def load(self, left: list[TableLoad]) -> None:
        """Divide these tables, or load these parts of tables. Raises as `run`."""
        failures = 0
        outage = Outage(_log, "upstream does not answer: trying again", "upstream answers again")
        while left and not self.stop.is_set():
            try:
                load = self._continue(left[0])
                left[:1] = [] if load is None or load.is_complete else [load]
                failures = 0
                outage.over()
            except UpstreamDown as error:
                failures += 1
                if failures == TRIES_MAX:
                    raise
                outage.failed(error=str(error), failures=failures)
                self.stop.wait(self.pause_s)
            except (SnapshotGone, DefinitionChanged) as error:
                raise type(error)(
                    f"{error}; this load cannot be continued: empty the destination, delete its rows in "
                    f"tidb_binlog.drainer_position and drainer_ddl, and begin anew"
                ) from error

    def _continue(self, load: TableLoad) -> TableLoad | None:
        """Do one step of a table's load: create all tables, divide the table, or load its next range. Return the state
        after it; None if it was divided."""
        if load.table_id == SCHEMA_ID:
            self._create(load)
            return replace(load, loaded=1)
        source = self._sources[load.table_id]
        if load.borders is None:
            with self.upstream.at(self.sink.commit_ts) as snapshot:
                ranges = []
                for one in snapshot.divided(source):
                    ranges.append(one)
                    self.progress.find(len(ranges))
            borders = tuple(one.upper for one in ranges if one.upper is not None)
            self.sink.put_loads([replace(load, borders=borders)] if self.distribute is None else parts(load, borders))
            crash_point("load.divided")
            self.progress.divide()
            return None
        self._load(source, load)
        self.progress.load()
        return replace(load, loaded=load.loaded + 1)

    def _load(self, source: Source, load: TableLoad) -> None:
        """Write the rows of the next range and record it as loaded. One that is recorded is not written again."""
        sink, of = self.sink, next_range(load)
        ts = sink.commit_ts

        def works() -> Iterator[Any]:
            self.progress.read(0, 0)
            crash_point("load.range")
            with self.upstream.at(ts) as snapshot:
                rows, read_bytes = 0, snapshot.read_bytes
                for columns in snapshot.read(source, of):
                    if not len(columns[0]):  # a rule leaves all rows out
                        continue
                    if sink.wants is Wants.CHANGES:
                        place = (self._numbers[load.table_id] << TABLE_SHIFT) + (load.loaded << RANGE_SHIFT) + rows
                        yield reads(source, columns, ts, place)
                    else:
                        yield inserts(source, columns, ts, sink.format)
                    rows += len(columns[0])
                    self.progress.read(rows, snapshot.read_bytes - read_bytes)

        sink.apply_pieces(Pieces(ts, ts, works, (load.table_id, load.part, load.loaded)), self.schema_version)

    def _create(self, schema: TableLoad) -> None:
        ts = self.sink.commit_ts
        with self.upstream.at(ts) as snapshot:
            snapshot.check_ids(self._sources)
        for info in self.databases:
            try:
                self._run(database(info, ts))
            except DdlFailed as error:  # the user may create only the databases of tables
                _log.warning("an upstream database is not created", database=info.name, error=str(error))
        for_readers = self.sink.wants is Wants.CHANGES
        for step in self._databases_of_tables(ts) if for_readers else ():
            self._run(step)
        created: set[tuple[tuple[str, str], ...]] = set()
        for table_id, table in self._tables.items():
            step = creation(table_id, table, ts)
            if for_readers and step.touched_names in created:  # several tables of upstream are one
                continue
            created.add(step.touched_names)
            sql = self.rewrite.text_for(step.job.id, 0)
            if sql != ():
                self._run(step if sql is None else replace(step, sql=sql, rewritten=True))
        if for_readers:  # they run a DDL after the rows with its commit_ts
            self.sink.advance(ts + 1, self.schema_version)
        self.sink.put_loads([TableLoad(table_id) for table_id in self._sources], done=schema)
        _log.info("tables of the first load created", tables=len(self._tables), at=ts)

    def _databases_of_tables(self, ts: int) -> Iterator[Ddl]:
        """Return the steps that create the tables' databases that are not in `databases`: the filter or a route names
        only tables of them. A consumer cannot run CREATE TABLE without them."""
        first: dict[str, int] = {}
        for table_id, table in sorted(self._tables.items()):
            first.setdefault(table.schema, table_id)
        for schema in first.keys() - {info.name for info in self.databases}:
            step = database(DBInfo(_OWN_ID + first[schema], schema, "", ""), ts)
            yield replace(step, query=f"CREATE DATABASE IF NOT EXISTS {quoted(schema)}")

    def _run(self, step: Ddl) -> None:
        """Once: the sink marks it as any job."""
        if not self.sink.job_done(step.job.id):
            self.sink.ddl(step, may_exist=step.may_exist)


def next_range(load: TableLoad) -> Range:
    """The first range of a divided table, or of a part of it, that is not loaded."""
    borders = (load.lower, *(load.borders or ()), load.upper)
    return Range(borders[load.loaded], borders[load.loaded + 1])


def parts(load: TableLoad, borders: Sequence[Border]) -> list[TableLoad]:
    """Divide a table's load by the borders of its ranges into parts of PART_RANGES ranges at most."""
    ends: tuple[Any, ...] = (None, *borders, None)
    begins = range(0, len(borders) + 1, PART_RANGES)
    found = (ends[begin : begin + PART_RANGES + 1] for begin in begins)
    return [
        replace(load, borders=tuple(inner), part=part, lower=lower, upper=upper)
        for part, (lower, *inner, upper) in enumerate(found)
    ]


def shares(parts: Sequence[TableLoad]) -> list[list[TableLoad]]:
    """Divide parts among tasks, which get PART_RANGES ranges each, or less."""
    found: list[list[TableLoad]] = []
    count = PART_RANGES
    for part in parts:
        if count + part.left > PART_RANGES:
            found.append([])
            count = 0
        found[-1].append(part)
        count += part.left
    return found


def reads(source: Source, columns: Sequence[Any], ts: int, place: int) -> ChangeSegment:
    """Rows for a sink that wants every change: inserts whose start_ts is their commit_ts, which no transaction has.
    `columns`: their decoded values; `place`: of the first row, among all rows of the load."""
    count = len(columns[0])
    stamps, numbers = np.full(count, ts, np.uint64), np.arange(count)
    changes = Changes(source.codec, Kind.INSERT, stamps, stamps, numbers + place, numbers, None, tuple(columns))
    return ChangeSegment(ts, ts, (changes,), count, 0)


def inserts(source: Source, columns: Sequence[Any], ts: int, format_: Format) -> SegmentWork:
    """The work that inserts rows. `columns`: their decoded values."""
    codec, count = source.codec, len(columns[0])
    if codec.shape.foldable:
        identity = identities(codec.layout.key, codec.column_types, columns)
        order = pc.sort_indices(identity)
        packed = format_.packed_rows(codec.column_types, columns).take(order)
        kinds = np.full(count, int(Kind.INSERT), np.int64)
        net = NetColumns(format_, identity.take(order), kinds, packed)
        return SegmentWork(ts, ts, (Folded(codec.shape, net),), Ordered(()), count, 0)
    pairs = zip(codec.column_types, columns, strict=True)
    rows = enumerate(zip(*[format_.literals(of, column.to_pylist()) for of, column in pairs], strict=True))
    changes = tuple(KeyChange(codec.shape, Kind.INSERT, None, row, ts, number) for number, row in rows)
    return SegmentWork(ts, ts, (), Ordered(changes), count, 0)


def creation(table_id: int, table: TableVersions, ts: int) -> Ddl:
    """The step that creates a table as the destination has it at this position. Its job's id is none that upstream
    gives. Raises UnsupportedType."""
    schema, info = table.schema, table.current if table.applied is None else table.applied.info
    job = Job(-table_id, ActionType.CREATE_TABLE, schema_name=schema, table_name=info.name, table_info=info)
    job = replace(job, schema_version=table.versions[-1])
    change = TableChange(None, Located(table_id, schema, info))
    return _with_text(Ddl(job, ts, False, schema, "", (), "", 0, (change,), may_exist=True, by_rules=True))


def database(info: DBInfo, ts: int) -> Ddl:
    """The step that creates a database: a table may be created in it later. Its id is no table's."""
    job = Job(-info.id, ActionType.CREATE_SCHEMA, schema_name=info.name, db_info=info)
    return _with_text(Ddl(job, ts, False, info.name, "", (), "", 0, ()))


def _with_text(step: Ddl) -> Ddl:
    """Return the step with its SQL statement as `query`, which Kafka messages and files contain."""
    return replace(step, query="; ".join(generated(step, Dialect()) or ()))


@dataclass(frozen=True, slots=True)
class LoadTask:
    """Loads parts of tables from an executor, over connections of its own. Picklable. `sink`: see
    base.LoadsOnExecutors; `connect`: opens a session upstream at a TSO; `schemas`: upstream's databases of the tables
    by id; `rows`, `size`: accumulators of the rows and bytes that were read."""

    sink: Callable[[], NetSink]
    connect: Callable[[int], Snapshot]
    view: PackedView
    schemas: Mapping[int, str]
    schema_version: int
    rows: Any
    size: Any

    def __call__(self, parts: list[TableLoad]) -> None:
        """Raises as FirstLoad.run."""
        schemas = {part.table_id: self.schemas[part.table_id] for part in parts}
        view, progress, stop = self.view.opened(), LoadProgress(), threading.Event()
        with contextlib.closing(Upstream(self.connect)) as upstream, contextlib.ExitStack() as stack:
            sink = self.sink()
            stack.callback(sink.close, clean=False)
            load = FirstLoad(sink, view, schemas, upstream, progress, schema_version=self.schema_version, stop=stop)
            load.load(parts)
        self.rows.add(progress.rows)
        self.size.add(progress.bytes)
