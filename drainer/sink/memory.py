"""A destination in memory, for tests of the pipeline: real rules of position, epoch and jobs, no server.

A `Store` stands for the server: destinations opened on one Store after another see what the former left, so that a
test can drop a destination in the middle and open the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from drainer.batch.work import Change, Kind, Literals, Pieces, Probe, SegmentWork
from drainer.order.upsert import upsert
from drainer.row.format import Format
from drainer.schema.steps import Ddl
from drainer.sink.base import (
    NO_QUESTION,
    Applied,
    Examiner,
    FirstStart,
    Identity,
    Intent,
    Phase,
    Position,
    SlotResult,
    SpreadTarget,
    TableName,
)
from drainer.sink.errors import Fenced, PositionMoved, RowMissing
from drainer.sink.mysql.rows.format import SQL_TEXT


@dataclass
class Store:
    """What a server would keep. `rows`: foldable tables by net row's identity; `bags`: keyless tables as lists;
    `log`: every thing done, in order: ("rows", after, until) | ("ddl", job id, commit_ts) | ("advance", ts)."""

    commit_ts: int | None = None
    schema_version: int = 0
    epoch: int = 0
    intent: Intent | None = None
    slots_done: set[int] = field(default_factory=set)
    jobs: set[int] = field(default_factory=set)
    rows: dict[TableName, dict[bytes, object]] = field(default_factory=dict)
    bags: dict[TableName, list[Literals]] = field(default_factory=dict)
    log: list[tuple[object, ...]] = field(default_factory=list)

    def write(self, work: SegmentWork) -> int:
        """All rows of one work, at once; none of them when one is refused."""
        return self.write_all((work,))

    def write_all(self, works: Iterable[SegmentWork]) -> int:
        rows = {name: dict(table) for name, table in self.rows.items()}
        bags = {name: list(bag) for name, bag in self.bags.items()}
        try:
            return sum(self._write(work) for work in works)
        except BaseException:
            self.rows, self.bags = rows, bags
            raise

    def _write(self, work: SegmentWork) -> int:
        for change in work.ordered.changes:
            self._one(change)
        for folded in work.folded:
            table = self.rows.setdefault((folded.shape.schema, folded.shape.table), {})
            for row in folded.rows:
                if row.row is None:
                    table.pop(row.identity, None)
                else:
                    table[row.identity] = row.row
        return len(work.ordered.changes) + sum(len(folded.rows) for folded in work.folded)

    def _one(self, change: Change) -> None:
        bag = self.bags.setdefault((change.shape.schema, change.shape.table), [])
        if change.shape.upserts:
            _upsert(bag, change)
            return
        if change.kind is not Kind.INSERT:
            if change.old not in bag:
                raise RowMissing(
                    f"{change.shape.schema}.{change.shape.table}: no row {change.old!r}",
                    schema=change.shape.schema,
                    table=change.shape.table,
                )
            bag.remove(change.old)
        if change.new is not None:
            bag.append(change.new)


def _upsert(bag: list[Literals], change: Change) -> None:
    """Rule 21: a row to take away may be missing, and one that comes takes away what is in its way."""
    shape = change.shape
    gone, put = upsert(change)
    if gone is not None:
        if shape.row_key:
            bag[:] = [row for row in bag if any(row[at] != gone[at] for at in shape.row_key)]
        elif gone in bag:
            bag.remove(gone)
    if put is not None:
        null = (None, b"NULL")
        for key in shape.unique:
            if not any(put[at] in null for at in key):
                bag[:] = [row for row in bag if any(row[at] != put[at] for at in key)]
        bag.append(put)


@dataclass
class MemorySpread:
    """Writes one slot at once; a slot that was written is skipped."""

    store: Store
    epoch: int
    intent: Intent
    phase: Phase = Phase.DIRECT

    def apply(self, slot: int, work: SegmentWork) -> SlotResult:
        if self.store.epoch != self.epoch or self.store.intent != self.intent:
            raise Fenced(f"slot {slot} of {self.intent} is not epoch {self.epoch}'s")
        if slot in self.store.slots_done:
            return SlotResult(slot, 0, 1, 1)
        rows = self.store.write(work)
        self.store.slots_done.add(slot)
        return SlotResult(slot, rows, 1, 0)


@dataclass(frozen=True)
class NothingInTheWay:
    """There are no unique keys here but those by which rows fold."""

    def conflict(self, probes: Sequence[Probe]) -> str:
        return ""


class MemoryDestination:
    """See protocol.Destination."""

    def __init__(self, store: Store | None = None, *, format_: Format = SQL_TEXT, spreads: bool = True) -> None:
        self.store = store or Store()
        self._format = format_
        self._spreads = spreads
        self._epoch = 0

    @property
    def name(self) -> str:
        return "memory:"

    @property
    def format(self) -> Format:
        return self._format

    @property
    def spreads(self) -> bool:
        return self._spreads

    @property
    def commit_ts(self) -> int:
        return self.store.commit_ts or 0

    def open(self, identity: Identity, initial_ts: int, first: FirstStart = NO_QUESTION) -> Position:
        store = self.store
        fresh = store.commit_ts is None
        missing: tuple[TableName, ...] = ()
        if store.commit_ts is None:
            missing = first.missing({*store.rows, *store.bags})
            store.commit_ts = first.begin_ts(initial_ts, missing)
        store.epoch += 1
        self._epoch = store.epoch
        return Position(store.commit_ts, store.schema_version, store.intent, fresh, missing=missing)

    def apply(self, work: SegmentWork, schema_version: int) -> Applied:
        self._check(work.after_ts)
        rows = self.store.write(work)
        self._move(work.after_ts, work.until_ts, schema_version)
        self.store.log.append(("rows", work.after_ts, work.until_ts))
        return Applied(rows, rows)

    def apply_pieces(self, pieces: Pieces, schema_version: int) -> Applied:
        self._check(pieces.after_ts)
        rows = self.store.write_all(pieces.works())
        self._move(pieces.after_ts, pieces.until_ts, schema_version)
        self.store.log.append(("pieces", pieces.after_ts, pieces.until_ts))
        return Applied(rows, rows)

    def examiner(self) -> Examiner:
        return NothingInTheWay()

    def begin(self, intent: Intent, ahead: SegmentWork | None = None) -> SpreadTarget:
        store = self.store
        if store.intent is None:
            self._check(intent.after_ts)
            if ahead is not None:
                store.write(ahead)
            store.intent, store.slots_done = intent, set()
        elif store.intent != intent:
            raise PositionMoved(f"range {store.intent} is open and must be finished as it was cut, not {intent}")
        return MemorySpread(store, self._epoch, intent)

    def next_phase(self, intent: Intent, results: Sequence[SlotResult]) -> SpreadTarget | None:
        return None

    def finish(self, intent: Intent, schema_version: int) -> None:
        self.store.intent = None
        self._move(intent.after_ts, intent.until_ts, schema_version)
        self.store.log.append(("rows", intent.after_ts, intent.until_ts))

    def ddl(self, step: Ddl, *, may_exist: bool = False) -> None:
        self._move(self.commit_ts, step.commit_ts, step.job.schema_version)
        self.store.jobs.add(step.job.id)
        self.store.log.append(("ddl", step.job.id, step.commit_ts))

    def advance(self, commit_ts: int, schema_version: int) -> None:
        self._move(self.commit_ts, commit_ts, schema_version)
        self.store.log.append(("advance", commit_ts))

    def job_done(self, job_id: int) -> bool:
        return job_id in self.store.jobs

    def interrupt(self) -> None:
        """Nothing here waits."""

    def close(self, *, clean: bool) -> None:
        self._epoch = -1

    def _check(self, after_ts: int) -> None:
        if self.store.epoch != self._epoch:
            raise Fenced(f"epoch {self._epoch} was overtaken by {self.store.epoch}")
        if self.store.commit_ts != after_ts or self.store.intent is not None:
            raise PositionMoved(f"the position is {self.store.commit_ts}, not {after_ts}, or a range is open")

    def _move(self, after_ts: int, until_ts: int, schema_version: int) -> None:
        self._check(after_ts)
        self.store.commit_ts = until_ts
        self.store.schema_version = max(self.store.schema_version, schema_version)
