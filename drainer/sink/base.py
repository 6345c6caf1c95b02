"""The interface between the pipeline and a destination. See docs/architecture.md, "Exactly once".

A destination is a *sink*. No other package of the drainer depends on a particular sink. A sink declares which rows it
needs (`wants`):

    NET      the last state of each key between two DDLs, and the ordered changes of tables without one
    CHANGES  every change of every row, in upstream's order, as columns

The position stored in the sink decides what has been applied (correctness rule 17). The states of a sink:

    open ──► ready ──apply / advance / ddl──► ready ──► close
               │ begin(intent)
               ▼
             distributed: write every slot with the SlotWriter ──commit(intent, receipts)──► again, or ready

`open` recovers from a crash, except for an open intent. `Position.intent` then holds the range that must be applied
first, divided exactly as it was recorded, and the pipeline continues with `begin(position.intent)`.

A distributed batch is written as follows:

    writer = sink.begin(intent)
    while writer is not None:
        receipts = [writer.write(slot, segment) for each slot]        # in executors
        writer = sink.commit(intent, receipts, schema_version)

Between `begin` and `commit` a slot may be written several times, by attempts that do not know of one another. Only what
a receipt of the last round names, or what the sink's own marks count, is committed. A sink that needs several rounds
(for example, one that deletes conflicting rows before it inserts) returns the next round's writer from `commit`. As
with the writer and committer of stream processors, writers store no position and the driver writes no rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, runtime_checkable

from drainer.batch.work import Pieces, SegmentWork
from drainer.changes import ChangeSegment
from drainer.sink.errors import DestinationRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from drainer.changes.decode import Changes
    from drainer.changes.vector import Ints
    from drainer.row.codec import Format
    from drainer.schema.steps import Ddl
    from drainer.schema.view import SchemaView

TableName = tuple[str, str]  # database, table


@dataclass(frozen=True, slots=True)
class Identity:
    """Identifies the changefeed that a position belongs to. Two changefeeds of one cluster may share a destination.
    `node_id` identifies the drainer, so that after a restart it may take over from its earlier process."""

    cluster_id: int
    changefeed: str
    node_id: str


@dataclass(frozen=True, slots=True)
class Intent:
    """The range that a distributed batch is about to apply, and how it is divided (rule 16).

    The range is (after_ts, until_ts]. It is divided into `slots` slots by the stable hash `hash_version`, with at most
    `chunk_rows` rows in a transaction (0: each slot is one transaction). `digest`: digest of the filters that choose
    the rows. `pumps`: the pumps that have binlogs of the range (empty: any). `counts`: parallel to `pumps`, the number
    of binlogs of each (-1 or missing: not known).

    A batch that continues after a crash uses these values instead of the current configuration. With other values the
    finished and the remaining chunks together would not hold each row of the range once."""

    after_ts: int
    until_ts: int
    slots: int
    chunk_rows: int
    hash_version: int
    digest: str
    pumps: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()


# Stands for all tables of a first load: its one range is to create them, and to list those that are to be loaded.
SCHEMA_ID: Final = 0


@dataclass(frozen=True, slots=True)
class TableLoad:
    """How far the first load of a table is, or of a part of one, which another task may load. `table_id`: upstream's,
    or SCHEMA_ID. `borders`: those between its ranges, in the order of its key; None: it is not divided yet. `loaded`:
    how many of its ranges, from the first one, are loaded. `part`: the part's number; `lower`, `upper`: its outer
    borders; None: it has the table's first or last rows."""

    table_id: int
    borders: tuple[tuple[str, ...], ...] | None = None
    loaded: int = 0
    part: int = 0
    lower: tuple[str, ...] | None = None
    upper: tuple[str, ...] | None = None

    @property
    def left(self) -> int:
        """How many ranges are left; 0 if they are not known."""
        return 0 if self.borders is None else len(self.borders) + 1 - self.loaded

    @property
    def is_complete(self) -> bool:
        return self.borders is not None and self.left <= 0


def unfinished(loads: Iterable[TableLoad], known: Collection[int]) -> list[TableLoad]:
    """The loads that are left, those of tables that are not divided first, in the order of their ids. `known`: ids of
    the tables that are replicated: a table that upstream has dropped, or that is no longer replicated, is not
    loaded."""
    left = [load for load in loads if not load.is_complete and (load.table_id == SCHEMA_ID or load.table_id in known)]
    return sorted(left, key=lambda load: (load.borders is not None, load.table_id, load.part))


@dataclass(frozen=True, slots=True)
class Verification:
    """The last comparison of a table of the destination with upstream's. `table_id`: upstream's, of merged tables the
    lowest; `table`: its name at the destination; `checked_ts`: the TSO of both sides; `differences`: how many rows, and
    parts of the definition, differed; `verified_ts`: the last TSO at which none did. A TSO of 0: there is none yet."""

    table_id: int
    table: str
    verified_ts: int
    checked_ts: int
    differences: int = 0

    def after(self, before: Verification | None) -> Verification:
        """Return this one with the `verified_ts` of the one before it, if it found differences; if the table was not
        compared, the one before it."""
        if self.verified_ts or before is None:
            return self
        return replace(self, verified_ts=before.verified_ts) if self.checked_ts else before


@dataclass(frozen=True, slots=True)
class FirstStart:
    """Where a destination without a position begins. It is asked which of `tables` it has. If it has none of them, it
    begins at `empty_ts`, if that is given. `loads`: with a first load, which it records before its position."""

    tables: tuple[TableName, ...] = ()
    empty_ts: int | None = None
    loads: bool = False

    def begin_ts(self, initial_ts: int, missing: Sequence[TableName]) -> int:
        """Return the commit_ts to begin at, given the tables that the destination does not have. Raises
        DestinationRefused if a first load would find rows there."""
        if self.loads and len(missing) < len(self.tables):
            there = sorted(set(self.tables) - set(missing))
            named = ", ".join(f"{schema}.{table}" for schema, table in there[:5])
            raise DestinationRefused(
                f"a first load needs a destination without the tables that it creates; {len(there)} of them are there, "
                f"such as {named}: drop them, or begin the stream without a load"
            )
        return initial_ts if self.empty_ts is None or len(missing) < len(self.tables) else self.empty_ts

    def missing(self, there: Collection[TableName]) -> tuple[TableName, ...]:
        """Return the tables that are not in `there`. Case is ignored in names, as it is upstream."""
        lowered = {(schema.lower(), table.lower()) for schema, table in there}
        return tuple(name for name in self.tables if (name[0].lower(), name[1].lower()) not in lowered)


@dataclass(frozen=True, slots=True)
class Position:
    """The position that `open` found. `fresh`: the destination had no position of this changefeed before. `missing`:
    which of the tables of FirstStart the destination does not have. `loads`: those of a first load, complete or not.
    `verifications`: the last comparisons with upstream."""

    commit_ts: int
    schema_version: int
    intent: Intent | None
    fresh: bool
    missing: tuple[TableName, ...] = ()
    loads: tuple[TableLoad, ...] = ()
    verifications: tuple[Verification, ...] = ()


NO_QUESTION = FirstStart()
ADVANCE_EVERY_S = 3.0


class Wants(StrEnum):
    """Which rows a sink needs between two DDLs."""

    NET = "net"
    CHANGES = "changes"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The outcome of writing one slot. `chunks`: the number of units (transactions, files) that hold it; `skipped`: how
    many of them an earlier attempt had committed. `detail`: data for the sink's `commit`, in a format of the sink.
    `left_out`: how many transactions of the whole batch loopback-control left out."""

    slot: int
    rows: int
    chunks: int
    skipped: int
    detail: str = ""
    left_out: int = 0


S_contra = TypeVar("S_contra", contravariant=True)


class SlotWriter(Protocol[S_contra]):
    """Writes one slot, in the driver or in an executor. Picklable; holds no connection."""

    def write(self, slot: int, segment: S_contra, retry_for_s: float = math.inf) -> Receipt:
        """Write one slot's part of the intent's range. Any attempt may be repeated or killed.

        Raises Fenced if another driver has taken over, DestinationDown if the server does not answer for `retry_for_s`
        seconds or for as long as the configuration allows, and the DataErrors of `apply`."""
        ...


class Slotting(Protocol):
    """Assigns changes to slots, for a sink that wants every change. Picklable. The assignment is part of a recorded
    intent: it must depend on nothing but the change, and a different assignment needs a different `version` (rule 16).
    Net rows are always assigned by their key (drainer/changes/slot_blob.py)."""

    @property
    def version(self) -> int: ...

    @property
    def count(self) -> int:
        """The number of slots."""
        ...

    @property
    def is_fixed(self) -> bool:
        """Whether every batch has exactly `count` slots. Otherwise `count` is the maximum."""
        ...

    def slots_of(self, changes: Changes, slots: int) -> Sequence[Ints]:
        """Return arrays of slot numbers in [0, slots), each with one element per change. A change belongs to every slot
        that it has in any of the arrays. Changes whose order matters must share a slot."""
        ...


class Sink(Protocol[S_contra]):
    """A destination of segments. Used by one thread; all methods block."""

    @property
    def name(self) -> str:
        """The kind and address of the destination, without a password, for logs and errors."""
        ...

    @property
    def parallel(self) -> ParallelSink[S_contra] | None:
        """The sink itself if executors may write to it. None: the driver writes everything through `apply`."""
        ...

    @property
    def commit_ts(self) -> int:
        """The position after this sink's last operation."""
        ...

    def open(self, identity: Identity, initial_ts: int, first: FirstStart = NO_QUESTION) -> Position:
        """Take the destination over for this changefeed: fence off the previous drainer, resolve a DDL that a
        crash interrupted, and return the position. `initial_ts` and `first` are used only if no position is
        stored (rule 17).

        Raises LockHeld, DdlUndecided, DestinationDown, DestinationRefused."""
        ...

    def apply(self, segment: S_contra, schema_version: int) -> None:
        """Write (after_ts, until_ts] in ONE transaction that also moves the position from after_ts to until_ts.

        Raises Fenced, PositionMoved, UniqueConflict, RowMissing, ValueChanged, DestinationDown."""
        ...

    def apply_pieces(self, pieces: Pieces[S_contra], schema_version: int) -> None:
        """Like `apply`, for a transaction that is too large for one value: write one piece after another, in ONE
        transaction.

        Raises what `apply` raises, and what iterating over `pieces.works` raises; then nothing was written."""
        ...

    def ddl(self, step: Ddl, *, may_exist: bool = False) -> None:
        """Run (or record) a DDL exactly once, and move the position to step.commit_ts.

        `may_exist`: the job started before the initial position, so the initial copy of the destination may already
        contain its effect. Only then are errors such as "table exists" (D-LD-14) treated as success.
        Raises DdlFailed, DdlUndecided, Fenced, DestinationDown."""
        ...

    def advance(self, commit_ts: int, schema_version: int) -> None:
        """Move the position to commit_ts. There are no rows for this destination up to there."""
        ...

    def job_done(self, job_id: int) -> bool:
        """Whether this DDL job has been run. A job that was run early is skipped at its own place (rule 14)."""
        ...

    def loads(self) -> list[TableLoad]:
        """Return how far the loads of a first load are."""
        ...

    def put_loads(self, loads: Sequence[TableLoad], done: TableLoad | None = None) -> None:
        """Store the state of these loads and count one more range of `done` as loaded, in one transaction. Raises
        Fenced, PositionMoved."""
        ...

    def interrupt(self) -> None:
        """Make every present and future wait for an unreachable destination end with DestinationDown. May be called
        from any thread. Operations that succeed are not affected."""
        ...

    def close(self, *, clean: bool) -> None:
        """Release the destination. `clean`: everything that was read has been applied, so its rows are a consistent
        state of upstream (`consistent`, D-CP-07)."""
        ...


class ParallelSink(Protocol[S_contra]):
    """The methods of a sink that executors can write to."""

    @property
    def retry_for_s(self) -> float:
        """For how many seconds slots that raise DestinationDown are written again; 0: they are not."""
        ...

    def prepare(self, view: SchemaView) -> None:
        """Called with each new view before rows of its tables are divided into slots, while another thread may be
        writing the batch before."""
        ...

    def begin(self, intent: Intent) -> SlotWriter[S_contra]:
        """Record the intent, or continue with the open one, which must be equal to it, and create its marks."""
        ...

    def commit(self, intent: Intent, receipts: Sequence[Receipt], schema_version: int) -> SlotWriter[S_contra] | None:
        """Complete the range after every slot has been written: move the position to intent.until_ts and close the
        intent, in one transaction, and return None. If the sink needs another round, return the writer with which every
        slot must be written before `commit` is called again."""
        ...


class NetSink(Sink[SegmentWork], Protocol):
    """A sink of net rows: the last state of each key."""

    @property
    def wants(self) -> Literal[Wants.NET]: ...

    @property
    def format(self) -> Format:
        """Converts decoded values to the rows that `apply` receives (drainer/batch/work.py)."""
        ...


class ChangeSink(Sink[ChangeSegment], Protocol):
    """A sink of every change."""

    @property
    def wants(self) -> Literal[Wants.CHANGES]: ...

    @property
    def slotting(self) -> Slotting: ...

    @property
    def stored_generated(self) -> bool:
        """Whether rows include stored generated columns. Virtual generated columns are never included."""
        ...

    @property
    def advance_s(self) -> float:
        """The interval, in seconds, at which `advance` is to be called while there are no rows."""
        ...


AnySink = NetSink | ChangeSink


@runtime_checkable
class ChecksTables(Protocol):
    """A sink whose settings name columns."""

    def check_tables(self, view: SchemaView) -> None:
        """Of every table that is replicated, when the drainer starts. Raises ConfigError naming a table that does not
        fit the settings."""
        ...


@runtime_checkable
class DerivesDdl(Protocol):
    """A sink that makes a DDL's statements from its job alone: an operator's text has no effect."""

    @property
    def derives_ddl(self) -> Literal[True]: ...


@runtime_checkable
class UsesSpark(Protocol):
    """A sink that works in Spark's session itself. `session`: waits for it; set before `open`."""

    session: Callable[[], SparkSession] | None

    def release(self) -> None:
        """End everything that uses the session, which is stopped next. Called by another thread, perhaps before
        `open`."""
        ...


@runtime_checkable
class BuildsIndexes(Protocol):
    """A sink that builds indexes beside the stream."""

    def building(self) -> list[str]:
        """Return what is being built now, each with its time. Any thread may call it."""
        ...


@runtime_checkable
class LoadsOnExecutors(Protocol):
    """A sink of which a first load can be divided among tasks."""

    def for_tasks(self) -> Callable[[], NetSink]:
        """Return what makes in a task a sink that loads ranges at this one's position. Picklable."""
        ...


def advance_s(sink: AnySink) -> float:
    """Return the interval, in seconds, at which `advance` is called while there are no rows."""
    return sink.advance_s if sink.wants is Wants.CHANGES else ADVANCE_EVERY_S


Segment = Any  # a SegmentWork or a ChangeSegment, as the sink wants; drainer/apply/fold_order.py makes both
