"""What the pipeline asks of a destination, and what it gets back. See docs/architecture.md, "Exactly once".

The destination's position is the truth (correctness rule 17). A destination lives like this:

    open ──► ready ──apply / advance / ddl──► ready ──► close
               │ begin(intent)
               ▼
             spread: run every slot with the SpreadTarget ──next_phase──► again, or finish ──► ready

`open` settles what a crash left behind, except an open intent: `Position.intent` then holds the range that must
come first, cut exactly as it says, and the pipeline goes on at `begin(position.intent)`.

A loop over phases is all a caller of the spread way needs:

    target = destination.begin(intent, ahead)
    while target is not None:
        results = [target.apply(slot, work) for each slot]        # in executors
        target = destination.next_phase(intent, results)
    destination.finish(intent, schema_version)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from drainer.batch.work import Pieces, Probe, SegmentWork
    from drainer.row.format import Format
    from drainer.schema.steps import Ddl

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


class Phase(StrEnum):
    """How the folded rows of a spread batch are written (rule 12). A batch starts DIRECT; when an untouched row
    stands in the way of a unique key it goes through DELETE and INSERT, all slots together, one after the other."""

    DIRECT = "direct"
    DELETE = "delete"
    INSERT = "insert"


@dataclass(frozen=True, slots=True)
class Applied:
    """One transaction's outcome. `rows`: net rows and ordered changes written; `repeated`: the transaction was found
    to be committed already (its answer had been lost)."""

    rows: int
    statements: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class SlotResult:
    """One slot in one phase. `chunks` transactions hold all of it, `skipped` of them were committed by an earlier
    attempt. `surprise` names the table and key that stopped the DIRECT phase, '' when none did."""

    slot: int
    rows: int
    chunks: int
    skipped: int
    surprise: str = ""


class SpreadTarget(Protocol):
    """Writes one slot from wherever it is called; picklable, holds no connection."""

    @property
    def phase(self) -> Phase: ...

    def apply(self, slot: int, work: SegmentWork) -> SlotResult:
        """Apply one slot's rows of the intent's range in marked chunks; any attempt may be repeated or killed.

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


class Destination(Protocol):
    """A place that takes segments. One thread uses it; all methods block."""

    @property
    def name(self) -> str:
        """For logs and errors: kind and address, no password."""
        ...

    @property
    def format(self) -> Format:
        """What makes rows for `apply` (drainer/batch/work.py) of what they hold."""
        ...

    @property
    def spreads(self) -> bool:
        """Whether begin/next_phase/finish may be used; otherwise everything goes through `apply`."""
        ...

    @property
    def commit_ts(self) -> int:
        """The position, as of the last thing this destination did."""
        ...

    def open(self, identity: Identity, initial_ts: int, first: FirstStart = NO_QUESTION) -> Position:
        """Take the destination for this changefeed, fence off whoever had it, settle a crashed DDL, and say where
        it stands; `initial_ts` and `first` are used only where no position is found (rule 17).

        Raises LockHeld, DdlUndecided, DestinationDown, DestinationRefused."""
        ...

    def apply(self, work: SegmentWork, schema_version: int) -> Applied:
        """Write (after_ts, until_ts] in ONE transaction that also moves the position from after_ts to until_ts.

        Raises Fenced, PositionMoved, UniqueConflict, RowMissing, ValueChanged, DestinationDown."""
        ...

    def apply_pieces(self, pieces: Pieces, schema_version: int) -> Applied:
        """As `apply`, of a transaction too large to be one value: one piece after another, all in ONE transaction.

        Raises what `apply` raises, and what `pieces.works` raises while it gives them; then nothing was written."""
        ...

    def examiner(self) -> Examiner:
        """For the executors, before `begin`."""
        ...

    def begin(self, intent: Intent, ahead: SegmentWork | None = None) -> SpreadTarget:
        """Record the intent, or go on with the open one (which must be equal), and open its marks.

        `ahead`: rows that are written in the transaction that records the intent, so that an open one has them. Raises
        the DataErrors of `apply`; then nothing was written and no intent is open."""
        ...

    def next_phase(self, intent: Intent, results: Sequence[SlotResult]) -> SpreadTarget | None:
        """After every slot has been applied once: None when the range is complete, else the target with which
        every slot must be applied again."""
        ...

    def finish(self, intent: Intent, schema_version: int) -> None:
        """Move the position to intent.until_ts, close the intent and throw its marks away, in one transaction."""
        ...

    def ddl(self, step: Ddl, *, may_exist: bool = False) -> None:
        """Run a DDL's statements exactly once and move the position to step.commit_ts.

        `may_exist`: the job started before the initial position, so that its effect may already be in the
        destination's first copy; only then are errors such as "table exists" (D-LD-14) taken for done.
        Raises DdlFailed, DdlUndecided, Fenced, DestinationDown."""
        ...

    def advance(self, commit_ts: int, schema_version: int) -> None:
        """Move the position over a stretch without rows for this destination."""
        ...

    def job_done(self, job_id: int) -> bool:
        """Whether this DDL job has been run here (an early one is skipped at its own place, rule 14)."""
        ...

    def interrupt(self) -> None:
        """From any thread: whatever waits for the destination to come back gives up with DestinationDown, now and
        from now on. Work that is going well is not disturbed."""
        ...

    def close(self, *, clean: bool) -> None:
        """Give the destination back. `clean`: everything read was applied (D-CP-07)."""
        ...
