"""A destination in memory, for tests of the pipeline: real rules of position, epoch and jobs, no server.

A `Store` stands for the server: destinations opened on one Store after another see what the former left, so that a
test can drop a destination in the middle and open the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from drainer.batch.work import KeyChange, Kind, Literals, Pieces, SegmentWork, upsert
from drainer.row.codec import Format
from drainer.schema.steps import Ddl
from drainer.schema.view import SchemaView
from drainer.sink.base import (
    NO_QUESTION,
    FirstStart,
    Identity,
    Intent,
    Position,
    Receipt,
    SlotWriter,
    TableName,
    Wants,
)
from drainer.sink.document_position import Document, DocumentPositionStore
from drainer.sink.errors import Fenced, PositionMoved, RowMissing
from drainer.sink.mysql.rows.format import SQL_TEXT
from drainer.sink.position import DONE, JobMark, PositionStore, refusal, take_over

_STAGE: Final = "direct"


@dataclass
class Store:
    """The state that a server would store. `rows`: foldable tables by net row's identity; `bags`: keyless tables as
    lists; `slots`: those of the open range that are written; `log`: every operation, in order: ("rows", after, until) |
    ("ddl", job id, commit_ts) | ("advance", ts)."""

    document: Document = field(default_factory=Document)
    rows: dict[TableName, dict[bytes, object]] = field(default_factory=dict)
    bags: dict[TableName, list[Literals]] = field(default_factory=dict)
    slots: set[int] = field(default_factory=set)
    log: list[tuple[object, ...]] = field(default_factory=list)

    @property
    def position(self) -> PositionStore:
        return DocumentPositionStore(self.document, "memory")

    @property
    def commit_ts(self) -> int | None:
        return self.document.stored.commit_ts if self.document.stored is not None else None

    @property
    def intent(self) -> Intent | None:
        return self.document.stored.intent if self.document.stored is not None else None

    @property
    def jobs(self) -> set[int]:
        return set(self.document.jobs)

    def write(self, work: SegmentWork) -> int:
        """Write all rows of a work, or none of them if one is refused."""
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

    def _one(self, change: KeyChange) -> None:
        bag = self.bags.setdefault((change.shape.schema, change.shape.table), [])
        if change.shape.upserts:
            _upsert(bag, change)
            return
        if change.kind is not Kind.INSERT:
            if change.old not in bag:
                raise RowMissing.of(change.shape, f"no row {change.old!r}")
            bag.remove(change.old)
        if change.new is not None:
            bag.append(change.new)


def _upsert(bag: list[Literals], change: KeyChange) -> None:
    """Apply changes by rule 21: a row to delete may be missing, and a written row replaces every row that has one of
    its unique values."""
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
class MemorySlotWriter:
    """Writes a slot in one step. A slot that has been written is skipped."""

    store: Store
    epoch: int
    intent: Intent

    def write(self, slot: int, segment: SegmentWork, retry_for_s: float = math.inf) -> Receipt:
        position = self.store.position
        position.hold(self.epoch)
        if self.store.intent != self.intent:
            raise Fenced(f"range {self.intent} is finished")
        if slot in self.store.slots:
            return Receipt(slot, 0, 1, 1)
        rows = self.store.write(segment)
        self.store.slots.add(slot)
        return Receipt(slot, rows, 1, 0)


class MemorySink:
    """See base.NetSink and base.ParallelSink."""

    wants: Final = Wants.NET

    def __init__(
        self,
        store: Store | None = None,
        *,
        format_: Format = SQL_TEXT,
        distributed_jobs: bool = True,
        retry_for_s: float = 600.0,
    ) -> None:
        self.store = store or Store()
        self.retry_for_s = retry_for_s
        self._format = format_
        self._is_distributed = distributed_jobs
        self._epoch = 0

    @property
    def name(self) -> str:
        return "memory:"

    @property
    def format(self) -> Format:
        return self._format

    @property
    def parallel(self) -> MemorySink | None:
        return self if self._is_distributed else None

    @property
    def commit_ts(self) -> int:
        return self.store.commit_ts or 0

    def open(self, identity: Identity, initial_ts: int, first: FirstStart = NO_QUESTION) -> Position:
        there = {*self.store.rows, *self.store.bags}
        self._epoch, position = take_over(self.store.position, identity.node_id, initial_ts, first, there)
        return position

    def apply(self, work: SegmentWork, schema_version: int) -> None:
        self._check(work.after_ts)
        self.store.write(work)
        self._move(work.after_ts, work.until_ts, schema_version)
        self.store.log.append(("rows", work.after_ts, work.until_ts))

    def apply_pieces(self, pieces: Pieces[SegmentWork], schema_version: int) -> None:
        self._check(pieces.after_ts)
        self.store.write_all(pieces.works())
        self._move(pieces.after_ts, pieces.until_ts, schema_version)
        self.store.log.append(("pieces", pieces.after_ts, pieces.until_ts))

    def prepare(self, view: SchemaView) -> None:
        """Nothing depends on the tables."""

    def begin(self, intent: Intent) -> SlotWriter[SegmentWork]:
        position = self.store.position
        if self.store.intent is None:
            self._check(intent.after_ts)
            position.write_intent(epoch=self._epoch, intent=intent, stage=_STAGE)
        elif self.store.intent != intent:
            raise PositionMoved(f"range {self.store.intent} is open and must be finished as it was cut, not {intent}")
        return MemorySlotWriter(self.store, self._epoch, intent)

    def commit(self, intent: Intent, receipts: Sequence[Receipt], schema_version: int) -> None:
        position = self.store.position
        position.clear_intent(epoch=self._epoch, intent=intent, schema_version=schema_version)
        self.store.slots.clear()
        self.store.log.append(("rows", intent.after_ts, intent.until_ts))

    def ddl(self, step: Ddl, *, may_exist: bool = False) -> None:
        self._move(self.commit_ts, step.commit_ts, step.job.schema_version)
        self.store.position.mark_job(JobMark(step.job.id, DONE, step.commit_ts))
        self.store.log.append(("ddl", step.job.id, step.commit_ts))

    def advance(self, commit_ts: int, schema_version: int) -> None:
        self._move(self.commit_ts, commit_ts, schema_version)
        self.store.log.append(("advance", commit_ts))

    def job_done(self, job_id: int) -> bool:
        return self.store.position.job(job_id) is not None

    def interrupt(self) -> None:
        """Nothing here waits."""

    def close(self, *, clean: bool) -> None:
        self._epoch = -1

    def _check(self, after_ts: int) -> None:
        """Check the epoch and the position, as a server's fence does before rows are written."""
        stored = self.store.position.read()
        if stored is None or (stored.epoch, stored.commit_ts, stored.intent) != (self._epoch, after_ts, None):
            raise refusal(self.store.position, epoch=self._epoch, after_ts=after_ts, until_ts=after_ts)

    def _move(self, after_ts: int, until_ts: int, schema_version: int) -> None:
        self.store.position.move(epoch=self._epoch, after_ts=after_ts, until_ts=until_ts, schema_version=schema_version)
