"""What the pipeline asks of a destination, and what it gets back. See docs/architecture.md, "Exactly once".

A destination is a *sink*. It says what it wants of the rows (`wants`), and nothing else in the drainer knows its name:

    NET      the last state of each key between two DDLs, and the ordered changes of tables without one
    CHANGES  every change of every row, in upstream's order, as columns

The sink's position is the truth (correctness rule 17). It lives like this:

    open ──► ready ──apply / advance / ddl──► ready ──► close
               │ begin(intent)
               ▼
             spread: write every slot with the SlotWriter ──commit(intent, receipts)──► again, or ready

`open` settles what a crash left behind, except an open intent: `Position.intent` then holds the range that must
come first, cut exactly as it says, and the pipeline goes on at `begin(position.intent)`.

A caller of the parallel way needs no more than this:

    writer = sink.begin(intent, ahead)
    while writer is not None:
        receipts = [writer.write(slot, segment) for each slot]        # in executors
        writer = sink.commit(intent, receipts, schema_version)

What is written between `begin` and `commit` may be repeated, by attempts that know nothing of one another; only what a
receipt of the last round names, or the sink's own marks count, is committed. A sink that cannot write everything in one
round (rows must go before others come) answers `commit` with the next round's writer. As with a stream processor's
writer and committer, the writers hold no position and the driver writes no rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from drainer.batch.work import Pieces, Probe, SegmentWork
from drainer.changes.change_segment import ChangeSegment

if TYPE_CHECKING:
    from drainer.changes.decode import Changes
    from drainer.changes.vector import Ints
    from drainer.row.format import Format
    from drainer.schema.steps import Ddl
    from drainer.schema.view import SchemaView

TableName = tuple[str, str]  # database, table


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose position this is. Two changefeeds of one cluster may share a destination; `node_id` names the
    drainer that asks, so that a restart may take over from its own former life."""

    cluster_id: int
    changefeed: str
    node_id: str


@dataclass(frozen=True, slots=True)
class Intent:
    """What a spread batch is about to apply, and how it is cut (rule 16): (after_ts, until_ts] in `slots` slots by
    the stable hash `hash_version`, at most `chunk_rows` rows a transaction, rows chosen by the filters whose
    digest is `digest`, from `pumps`, which are those that hold rows of it (empty: any), each of them as many binlogs as
    `counts` says in its place (-1, or nothing there: not known). A batch that goes on after a crash uses these, not
    today's configuration: with other rows the chunks that are done would be others."""

    after_ts: int
    until_ts: int
    slots: int
    chunk_rows: int
    hash_version: int
    digest: str
    pumps: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FirstStart:
    """Of a destination without a position: it is asked which of `tables` it holds. Where it holds none of them it
    begins at `empty_ts`, if that is given."""

    tables: tuple[TableName, ...] = ()
    empty_ts: int | None = None

    def begin_ts(self, initial_ts: int, missing: Sequence[TableName]) -> int:
        """Where to begin, when `missing` of the tables are not there."""
        return initial_ts if self.empty_ts is None or len(missing) < len(self.tables) else self.empty_ts

    def missing(self, there: Collection[TableName]) -> tuple[TableName, ...]:
        """Those that are not among `there`; names ignore case, as they do upstream."""
        lowered = {(schema.lower(), table.lower()) for schema, table in there}
        return tuple(name for name in self.tables if (name[0].lower(), name[1].lower()) not in lowered)


@dataclass(frozen=True, slots=True)
class Position:
    """Where the destination stands. `fresh`: it had no position of ours before this `open`, and `missing` of the
    tables that it was asked for; `settled`: ids of DDL jobs that a crash had left half-way and `open` found to be done
    (their position is already included)."""

    commit_ts: int
    schema_version: int
    intent: Intent | None
    fresh: bool
    settled: tuple[int, ...] = ()
    missing: tuple[TableName, ...] = ()


NO_QUESTION = FirstStart()
ADVANCE_EVERY_S = 3.0


class Wants(StrEnum):
    """What a sink takes between two DDLs."""

    NET = "net"
    CHANGES = "changes"


@dataclass(frozen=True, slots=True)
class Applied:
    """One transaction's outcome. `rows`: net rows and changes written; `repeated`: the transaction was found to be
    committed already (its answer had been lost)."""

    rows: int
    statements: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of one slot. `chunks` units (transactions, files) hold all of it, `skipped` of them were committed by
    an earlier attempt. `detail`: what the sink's `commit` must know of it, in the sink's own words; for it alone."""

    slot: int
    rows: int
    chunks: int
    skipped: int
    detail: str = ""


S_contra = TypeVar("S_contra", contravariant=True)


class SlotWriter(Protocol[S_contra]):
    """Writes one slot from wherever it is called; picklable, holds no connection."""

    def write(self, slot: int, segment: S_contra) -> Receipt:
        """Write one slot's part of the intent's range; any attempt may be repeated or killed.

        Raises Fenced when another driver has taken over, DestinationDown when the server does not answer for
        long, and the DataErrors of `apply`."""
        ...


class Examiner(Protocol):
    """Looks at the destination before a spread batch is begun, from wherever it is called; picklable, holds no
    connection, writes nothing."""

    def conflict(self, probes: Sequence[Probe]) -> str:
        """Which row is in the way of a value that the batch brings, '' if none is (rule 21).

        Raises DestinationDown when the server does not answer for long."""
        ...


@dataclass(frozen=True, slots=True)
class Examination:
    """What a sink asks for before an intent is recorded (rule 21): rows of the tables `ahead` (by id) come with `begin`
    and in no slot, and `examiner` is asked about the unique values that all the others bring."""

    ahead: frozenset[int]
    examiner: Examiner


class Slotting(Protocol):
    """Who belongs into which slot, where the sink wants every change; picklable. What it says of a change is part of a
    recorded cut: it must not depend on anything but the change, and another answer needs another `version` (rule 16).
    Net rows fold by key and are always cut by it (drainer/order/slot.py)."""

    @property
    def version(self) -> int: ...

    @property
    def count(self) -> int | None:
        """How many slots there are; None: as many as suit the executors."""
        ...

    @property
    def is_fixed(self) -> bool:
        """Whether every batch has `count` slots; else it is the most that one may have."""
        ...

    def slots_of(self, changes: Changes, slots: int) -> Sequence[Ints]:
        """Arrays of slots from 0 to below `slots`, each with one element for each change: a change belongs to all that
        it has there, once to each. Changes that must keep their order share one."""
        ...


class Sink(Protocol[S_contra]):
    """A destination that takes segments. One thread uses it; all methods block."""

    @property
    def name(self) -> str:
        """For logs and errors: kind and address, no password."""
        ...

    @property
    def parallel(self) -> ParallelSink[S_contra] | None:
        """Itself, where executors may write into it; None: everything goes through `apply`."""
        ...

    @property
    def commit_ts(self) -> int:
        """The position, as of the last thing this sink did."""
        ...

    def open(self, identity: Identity, initial_ts: int, first: FirstStart = NO_QUESTION) -> Position:
        """Take the destination for this changefeed, fence off whoever had it, settle a crashed DDL, and say where
        it stands; `initial_ts` and `first` are used only where no position is found (rule 17).

        Raises LockHeld, DdlUndecided, DestinationDown, DestinationRefused."""
        ...

    def apply(self, segment: S_contra, schema_version: int) -> Applied:
        """Write (after_ts, until_ts] in ONE transaction that also moves the position from after_ts to until_ts.

        Raises Fenced, PositionMoved, UniqueConflict, RowMissing, ValueChanged, DestinationDown."""
        ...

    def apply_pieces(self, pieces: Pieces[S_contra], schema_version: int) -> Applied:
        """As `apply`, of a transaction too large to be one value: one piece after another, all in ONE transaction.

        Raises what `apply` raises, and what `pieces.works` raises while it gives them; then nothing was written."""
        ...

    def ddl(self, step: Ddl, *, may_exist: bool = False) -> None:
        """Run a DDL exactly once, or write it down, and move the position to step.commit_ts.

        `may_exist`: the job started before the initial position, so that its effect may already be in the
        destination's first copy; only then are errors such as "table exists" (D-LD-14) taken for done.
        Raises DdlFailed, DdlUndecided, Fenced, DestinationDown."""
        ...

    def advance(self, commit_ts: int, schema_version: int) -> None:
        """Move the position over a stretch without rows for this destination: nothing up to there is missing."""
        ...

    def job_done(self, job_id: int) -> bool:
        """Whether this DDL job has been run here (an early one is skipped at its own place, rule 14)."""
        ...

    def interrupt(self) -> None:
        """From any thread: whatever waits for the destination to come back gives up with DestinationDown, now and
        from now on. Work that is going well is not disturbed."""
        ...

    def close(self, *, clean: bool) -> None:
        """Give the destination back. `clean`: everything read was applied, `consistent` upstream (D-CP-07)."""
        ...


class ParallelSink(Protocol[S_contra]):
    """The part of a sink that executors write through."""

    def examination(self, view: SchemaView) -> Examination | None:
        """What must be looked at before rows of these tables are spread; None: nothing."""
        ...

    def begin(self, intent: Intent, ahead: S_contra | None = None) -> SlotWriter[S_contra]:
        """Record the intent, or go on with the open one (which must be equal), and open its marks.

        `ahead`: rows that are written in the transaction that records the intent, so that an open one has them. Raises
        the DataErrors of `apply`; then nothing was written and no intent is open."""
        ...

    def commit(self, intent: Intent, receipts: Sequence[Receipt], schema_version: int) -> SlotWriter[S_contra] | None:
        """After every slot has been written once: None when the range is complete and the position stands at
        intent.until_ts, with the intent closed, all in one transaction; else the writer with which every slot must be
        written once more before `commit` is called again."""
        ...


class NetSink(Sink[SegmentWork], Protocol):
    """A sink of rows as they are in the end."""

    @property
    def wants(self) -> Literal[Wants.NET]: ...

    @property
    def format(self) -> Format:
        """What makes rows for `apply` (drainer/batch/work.py) of what they hold."""
        ...


class ChangeSink(Sink[ChangeSegment], Protocol):
    """A sink of every change."""

    @property
    def wants(self) -> Literal[Wants.CHANGES]: ...

    @property
    def slotting(self) -> Slotting: ...

    @property
    def stored_generated(self) -> bool:
        """Whether images have stored generated columns, too; virtual ones are in no row."""
        ...

    @property
    def advance_s(self) -> float:
        """How often, in seconds, `advance` is to be called while there are no rows."""
        ...


AnySink = NetSink | ChangeSink


def advance_s(sink: AnySink) -> float:
    """How often a sink without rows to write is told how far it is."""
    return sink.advance_s if sink.wants is Wants.CHANGES else ADVANCE_EVERY_S


Segment = Any  # a SegmentWork or a ChangeSegment, as the sink wants; drainer/apply/segments.py makes both
