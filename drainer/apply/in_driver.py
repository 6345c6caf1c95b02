"""Applies a batch in the driver: its DDLs in order, and each segment of rows between them in one transaction.

Large transactions are pulled by the driver without Spark, cut into pieces, and applied in one downstream transaction:

    pump ─ parts ─► spool (a file) ─► pieces: binlogs of a few MiB ─► fold ─┐
                                                   begin, fence ─► piece, piece, … ─► commit

Such a transaction is never held as one value; drainer.row.transaction explains why the pieces may be applied one after
another. If anything fails in between, the destination rolls back, and the transaction is applied from the start again.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter

from binlog.errors import DecodeError
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger
from binlog.runtime.security import Security

from drainer.apply.batch_planner import PlannedBatch
from drainer.apply.fold_order import RowDecoder, row_decoder
from drainer.apply.progress import Decisions, Progress, Refused, Wait
from drainer.batch.served import Batch, ServedBinlog, read_batch
from drainer.batch.work import Pieces, SegmentWork, shown_keys
from drainer.pumps.client import PART_BYTES_MAX
from drainer.pumps.pull import NotServed, Spool, give_back
from drainer.pumps.watermark import Counted, check
from drainer.row.transaction import PIECE_BYTES_MAX, LoopbackFilter, pieces, rows, scan
from drainer.schema.errors import ColumnGoing, JobUnknown, TableUnverified, UnknownColumn
from drainer.schema.provider import LoopSchemaProvider
from drainer.schema.segmenter import walk
from drainer.schema.steps import Advance, Ddl, Rows, Step
from drainer.schema.view import SchemaView
from drainer.sink.base import AnySink, Segment, advance_s
from drainer.sink.errors import DataError, DdlFailed, UniqueConflict

SAY_EVERY_S = 10.0

_log = get_logger(__name__)

PullLarge = Callable[[PlannedBatch, Progress], "contextlib.AbstractContextManager[list[ServedBinlog]]"]


@dataclass(slots=True)
class LongStep:
    """One step of a long operation, shown on the status page and periodically logged; ends with the block."""

    progress: Progress
    name: str
    total_bytes: int
    commit_ts: int
    begun_s: float = field(default_factory=time.monotonic)
    said_s: float = field(default_factory=time.monotonic)

    def __enter__(self) -> LongStep:
        self.progress.step, self.progress.step_bytes, self.progress.step_total = self.name, 0, self.total_bytes
        _log.info(f"{self.name} a large transaction", commit_ts=self.commit_ts, bytes=self.total_bytes)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            seconds = round(time.monotonic() - self.begun_s, 1)
            _log.info(f"{self.name} is done", commit_ts=self.commit_ts, seconds=seconds)
        self.progress.step, self.progress.step_bytes, self.progress.step_total = "", 0, 0

    def add(self, size: int) -> None:
        self.progress.step_bytes += size
        now_s = time.monotonic()
        if now_s - self.said_s >= SAY_EVERY_S:
            self.said_s = now_s
            _log.info(
                f"{self.name} a large transaction",
                commit_ts=self.commit_ts,
                bytes=self.progress.step_bytes,
                of=self.total_bytes,
            )


@dataclass(frozen=True, slots=True)
class LargePuller:
    """Pulls the ranges of a LARGE plan from pumps of one cluster."""

    cluster_id: int
    security: Security

    @contextlib.contextmanager
    def __call__(self, plan: PlannedBatch, progress: Progress) -> Iterator[list[ServedBinlog]]:
        """The binlogs of the plan's ranges, for as long as the block lasts. Raises NotServed and what Spool raises."""
        with contextlib.closing(Spool()) as spool:
            with LongStep(progress, "pulling", plan.batch_bytes, plan.until_ts) as step:
                spool.pull(plan.large, cluster_id=self.cluster_id, security=self.security, on_bytes=step.add)
            found = list(spool.binlogs(PART_BYTES_MAX))
            for node_id in plan.holders:
                if not any(one.pump == node_id and one.commit_ts == plan.until_ts for one in found):
                    raise NotServed(node_id, plan.until_ts)
            yield found


@dataclass(frozen=True, slots=True)
class Section:
    """Binlogs of (after_ts, until_ts] for one downstream transaction; `large`: applied in pieces."""

    after_ts: int
    until_ts: int
    binlogs: tuple[ServedBinlog, ...]
    large: bool


def sections(rows: Rows) -> list[Section]:
    """Split the rows before and after each commit_ts of a large transaction. Other binlogs of that commit_ts are in the
    same section, because a position cannot be between them."""
    runs: list[tuple[bool, list[ServedBinlog]]] = []
    for _, group in groupby(rows.binlogs, attrgetter("commit_ts")):
        same = list(group)
        large = any(one.is_large for one in same)
        if runs and not large and not runs[-1][0]:
            runs[-1][1].extend(same)
        else:
            runs.append((large, same))
    found: list[Section] = []
    for number, (large, binlogs) in enumerate(runs):
        after_ts = found[-1].until_ts if found else rows.after_ts
        until_ts = rows.until_ts if number == len(runs) - 1 else binlogs[-1].commit_ts
        found.append(Section(after_ts, until_ts, tuple(binlogs), large))
    return found


def works(
    section: Section, decoder: RowDecoder, progress: Progress, piece_bytes_max: int = PIECE_BYTES_MAX
) -> Iterator[Segment]:
    """The section's work piece by piece, in order. Raises as SegmentDecoder.segment."""
    total = sum(len(one.payload) for one in section.binlogs)
    with LongStep(progress, "applying", total, section.until_ts) as step:
        for one in section.binlogs:
            piece = decoder.transaction()
            for payload in _small(one, piece_bytes_max):
                yield piece(payload, section.after_ts, section.until_ts)
                step.add(len(payload))
                if isinstance(one.payload, memoryview):
                    give_back(one.payload)
                crash_point("drainer.mid_large")


def _small(one: ServedBinlog, piece_bytes_max: int) -> Iterable[bytes]:
    payload = one.payload
    if not isinstance(payload, memoryview):
        return (payload,)
    return pieces(payload, piece_bytes_max, release=lambda: give_back(payload))


# Splits a section of a batch into its transactions, for sections that must be applied one by one (rule 21: one outcome
# wherever a stream is cut). Pure.
def each_commit(section: Section) -> Iterator[Section]:
    """A section for each commit_ts, in order; together they cover the same range."""
    groups = [tuple(group) for _, group in groupby(section.binlogs, key=attrgetter("commit_ts"))]
    after_ts = section.after_ts
    for number, binlogs in enumerate(groups, start=1):
        until_ts = section.until_ts if number == len(groups) else binlogs[0].commit_ts
        yield replace(section, after_ts=after_ts, until_ts=until_ts, binlogs=binlogs)
        after_ts = until_ts


def counted(binlog: ServedBinlog, view: SchemaView, piece_bytes_max: int) -> dict[str, dict[str, int]]:
    """Return the number of rows of a transaction by table and kind. Raises DecodeError."""
    payload = binlog.payload
    found: dict[str, dict[str, int]] = {}
    for one in pieces(payload, piece_bytes_max) if isinstance(payload, memoryview) else (payload,):
        for _, table_id, kind, _ in rows(scan(one)):
            versions = view.tables.get(table_id)
            table = f"{versions.schema}.{versions.name}" if versions else f"not replicated, table id {table_id}"
            kinds = found.setdefault(table, {})
            kinds[kind.name.lower()] = kinds.get(kind.name.lower(), 0) + 1
    return found


def _check_arrived(plan: PlannedBatch, merged: Sequence[ServedBinlog]) -> None:
    """Rule 22: raises RangeDiffers if a pump delivered more or fewer binlogs than planned."""
    found: dict[str, list[int]] = {}
    for binlog in merged:
        found.setdefault(binlog.pump, []).append(len(binlog.payload))
    for node_id, planned in plan.planned.items():
        sizes = found.get(node_id, [])
        arrived = Counted(len(sizes), sum(sizes))
        pump_name = f"pump {node_id}"
        check(
            planned, arrived, pump_name=pump_name, after_ts=plan.after_ts, until_ts=plan.until_ts, where="to the driver"
        )


@dataclass(eq=False)
class InDriver:
    """Applies one batch after another from the driver. After errors that a newer schema may resolve, it waits and reads
    the schema again. `piece_bytes_max`: bytes of a large transaction to decode at a time."""

    destination: AnySink
    provider: LoopSchemaProvider
    progress: Progress
    stop: threading.Event
    piece_bytes_max: int
    decisions: Decisions
    monotonic: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._decoder: RowDecoder | None = None  # for the last view
        self._running_job = 0
        self._stored_s = -math.inf
        self._is_ahead = False

    def run(self, plan: PlannedBatch, merged: Sequence[ServedBinlog]) -> None:
        """Apply the whole batch. After an error, everything before it has been applied, and the position says how
        far."""
        merged = list(merged)
        _check_arrived(plan, merged)
        batch = read_batch(merged, after_ts=plan.after_ts, until_ts=plan.until_ts)
        self.progress.duplicates += batch.duplicates
        wait = Wait(self.stop, self.progress)
        while True:
            batch = self._without_skipped(batch.after(self.progress.position_ts))
            self.provider.prepare(batch)
            try:
                for step in walk(batch, self.provider.schema, job_done=self.destination.job_done):
                    self._apply(step)
            except JobUnknown as error:
                wait.unless(self.provider.missing(error), error)
            except UnknownColumn as error:
                wait.unless(self.provider.resolve_column(error), error)
            except TableUnverified as error:
                wait.unless(self.provider.verify(error), error)
            except ColumnGoing as error:
                job = self.provider.schema.job_that_drops_column(error.table_id, error.column_id)
                if job is None:
                    raise
                self.provider.schema.bring_forward(job, error.schema_version)
            except DdlFailed as error:
                self._ddl_refused(error)
            except DataError as error:
                self._rows_refused(error, wait, batch)
            else:
                wait.over()
                return

    def _without_skipped(self, batch: Batch) -> Batch:
        """Return the batch without the transactions that an operator skips, which are recorded first."""
        skips = self.decisions.skips
        leaving = [item for item in batch.items if item.ddl is None and item.commit_ts in skips] if skips else []
        for item in leaving:
            facts: dict[str, object] = {"start_ts": item.binlog.start_ts}
            try:
                facts["tables"] = counted(item.binlog, self.provider.schema.view(), self.piece_bytes_max)
            except DecodeError as error:  # perhaps the reason why it is skipped
                facts["unreadable"] = str(error)
            self.decisions.leaves_out(item.commit_ts, facts)
        if not leaving:
            return batch
        return replace(batch, items=tuple(i for i in batch.items if i.ddl is not None or i.commit_ts not in skips))

    def _ddl_refused(self, error: DdlFailed) -> None:
        """Wait for the decision of an operator, if the drainer is to wait; else raise the error, also if it is that of
        an earlier DDL, which the destination ran beside the stream and which is not walked again."""
        job_id, self._running_job = self._running_job, 0
        if not self.decisions.waits or error.job_id != job_id:
            raise error
        sql = self.decisions.wait(Refused(error.job_id, error.commit_ts, str(error)), self.stop, self.progress)
        if sql is not None:
            self.provider.schema.policy.rewrite.decide(error.job_id, sql)

    def _rows_refused(self, error: DataError, wait: Wait, batch: Batch) -> None:
        """Run the DDL that resolves the refusal, or wait for the decision of an operator; else raise the error."""
        try:
            if not isinstance(error, UniqueConflict):
                raise error
            wait.unless(self._drop_first(error, batch.after(self.progress.position_ts)), error)
        except DataError as last:
            if not self.decisions.waits or not last.commit_ts:
                raise
            self.decisions.wait(Refused(0, last.commit_ts, str(last)), self.stop, self.progress)

    def _drop_first(self, error: UniqueConflict, rest: Batch) -> bool:
        """Run the job that drops the key that refused rows of `rest` before these rows (rule 12). False: it may be a
        running job, which no source shows yet. Raises the error if no job drops the key."""
        unique_key = {"schema": error.schema, "table": error.table, "key": error.key}
        schema = self.provider.schema
        job = schema.job_that_drops(**unique_key)
        if job is None:
            unknown = JobUnknown(job_id=None, version=None, commit_ts=rest.until_ts, final_ts=rest.after_ts)
            job = schema.job_that_drops(**unique_key) if self.provider.missing(unknown) else None
        if job is None:
            if not self.provider.complete and rest.greatest_version > schema.view().known_version:
                return False
            raise error
        _log.warning(
            "running the DDL that drops a unique key before the rows that precede it, because they violate the key",
            job_id=job.id,
            why=str(error),
        )
        first = min(item.schema_version for item in rest.items if item.ddl is None)
        schema.bring_forward(job, first)
        return True

    def _apply(self, step: Step) -> None:
        version = self.provider.schema.applied_version
        match step:
            case Rows():
                if self._decoder is None or self._decoder.view is not step.view:
                    self._decoder = row_decoder(self.destination, step.view)
                for section in sections(step):
                    apply = self._apply_large if section.large else self._apply_rows
                    apply(section, self._decoder, version)
            case Ddl():
                self.store_position()
                self._running_job = step.job.id
                self.destination.ddl(step, may_exist=step.may_exist)
                self._running_job = 0
                self.progress.ddls += 1
                self.progress.last_ddl = step.query[:200]
                self.progress.position_ts = step.commit_ts
                _log.info("DDL applied", query=step.query[:500], job_id=step.job.id, commit_ts=step.commit_ts)
                crash_point("drainer.after_ddl")
            case Advance():
                self.destination.advance(step.until_ts, version)
                self.progress.position_ts = step.until_ts

    def _apply_rows(self, section: Section, decoder: RowDecoder, version: int) -> None:
        """Apply a section in one downstream transaction. If the destination refuses it, apply its transactions one by
        one: the error then names the transaction, and everything before it has been applied (rule 21)."""
        loopback = LoopbackFilter(decoder.view.marks)
        payloads = [*loopback.keep(bytes(one.payload) for one in section.binlogs)]  # none of them is large
        work: Segment = decoder.segment(payloads, section.after_ts, section.until_ts)
        if not work.change_count and self._may_run_ahead(decoder.view):
            self._is_ahead = True
            self.progress.position_ts = section.until_ts
            self.progress.left_out += loopback.left_out
            return
        self.store_position()
        try:
            self.destination.apply(work, version)
        except DataError as error:
            if work.commits > 1:
                _log.warning("a batch is applied transaction by transaction", why=str(error))
                for one in each_commit(section):
                    self._apply_rows(one, decoder, version)
                return
            first = next(one for one in section.binlogs if not loopback.is_marked(one.payload))
            keys = shown_keys(work, error.schema, error.table) if isinstance(work, SegmentWork) else ""
            error.name_transaction(first.commit_ts, first.start_ts, keys)
            raise
        self._applied(section, work.change_count)
        self.progress.left_out += loopback.left_out

    def _apply_large(self, section: Section, decoder: RowDecoder, version: int) -> None:
        """Apply one large transaction in pieces, in one downstream transaction."""
        self.store_position()
        loopback = LoopbackFilter(decoder.view.marks)
        kept = tuple(one for one in section.binlogs if not loopback.is_marked(one.payload))
        left_out = len(section.binlogs) - len(kept)
        section = replace(section, binlogs=kept)
        counts: list[int] = []

        def counted() -> Iterator[Segment]:
            counts.clear()
            for work in works(section, decoder, self.progress, self.piece_bytes_max):
                counts.append(work.change_count)
                yield work

        try:
            self.destination.apply_pieces(Pieces(section.after_ts, section.until_ts, counted), version)
        except DataError as error:
            first = section.binlogs[0]
            error.name_transaction(first.commit_ts, first.start_ts, "")
            raise
        self._applied(section, sum(counts))
        self.progress.left_out += left_out

    def _applied(self, section: Section, change_count: int) -> None:
        self.progress.rows += change_count
        self.progress.position_ts = section.until_ts
        self._stored_s = self.monotonic()

    def _may_run_ahead(self, view: SchemaView) -> bool:
        """Whether the position after a range without rows need not be stored at once. The stored position is a binlog
        of the destination. Where two drainers replicate two clusters into each other, the other one reads it and stores
        its own position, which this one reads: without a pause they would go on for ever, batch after batch."""
        return view.marks is not None and self.monotonic() < self._stored_s + advance_s(self.destination)

    def store_position(self) -> None:
        """Store the position after ranges without rows if that has not been done. Call it before anything is
        applied: that begins at the stored position."""
        if self._is_ahead:
            self.destination.advance(self.progress.position_ts, self.provider.schema.applied_version)
            self._is_ahead = False
