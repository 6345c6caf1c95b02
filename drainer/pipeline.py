"""The flow of a batch, top to bottom as in the picture: pulled messages in, rows and DDLs at the destination.

    plan ─► inline:  messages ─► binlogs in commit order ─► walk ─┬► Rows ─► fold ─► destination.apply
                                                                  └► Ddl ─────────► destination.ddl
         └► spread:  begin(intent) ─► executors: fold ─► by slot ─► apply with marks ─► finish

The destination's position is the truth: a batch that stops half-way goes on from there, and never ends unfinished.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from binlog import envelope
from binlog.crashpoint import crash_point
from binlog.errors import BinlogError
from binlog.log import get_logger

from drainer.batch import Batch, read_batch
from drainer.coordinator import Mode, Plan
from drainer.order.errors import KeyCollision
from drainer.order.fold import FoldBuilder
from drainer.order.slot import HASH_VERSION
from drainer.pumps.pull import payloads
from drainer.reading import FoldOrder, PackedView
from drainer.row.decode import Decoder
from drainer.schema.errors import JobUnknown, UnknownColumn
from drainer.schema.schema import Schema
from drainer.schema.view import SchemaView
from drainer.segment import walk
from drainer.sink.errors import UniqueConflict
from drainer.sink.protocol import Destination, Dialect, Intent, SlotResult, SpreadTarget
from drainer.step import Ddl, Fence, Merged, Rows, Step

WAIT_FIRST_S = 0.2
WAIT_MAX_S = 5.0

_log = get_logger(__name__)


class Stopped(BinlogError):
    """The daemon is stopping while a batch waits for something; its range is read again at the next start."""


class BatchRefused(BinlogError):
    """A batch that does not begin where the destination stands, or is cut in a way this build does not know."""


@dataclass(frozen=True, slots=True)
class SpreadJob:
    """What executors need to know. Picklable. `folded`: the tasks that read the batch have carried out `order`."""

    order: FoldOrder
    intent: Intent
    target: SpreadTarget
    folded: bool


class Feed(Protocol):
    """One batch as Spark holds it."""

    def messages(self) -> Iterable[tuple[str, bytes]]:
        """(pump, message of a pull) of the whole batch, in any order, brought to the driver."""
        ...

    def check(self, order: FoldOrder) -> None:
        """Fold the whole batch on executors and throw it away. Raises what decoding raises."""
        ...

    def spread(self, job: SpreadJob) -> Sequence[SlotResult]:
        """Fold on executors, bring slots together, and run `job.target` on every slot."""
        ...


class SchemaSupply(Protocol):
    """The schema keeper as a synchronous caller sees it (drainer.schema.keeper.SchemaKeeper)."""

    @property
    def schema(self) -> Schema: ...

    @property
    def complete(self) -> bool: ...

    def prepare(self, batch: Batch) -> None: ...

    def missing(self, error: JobUnknown) -> bool: ...

    def judge(self, error: UnknownColumn) -> bool: ...


@dataclass(frozen=True, slots=True)
class Cut:
    """How a spread batch is cut when there is no open intent. `slots` 0: twice the tasks that run at once; `digest`: of
    the filters, which choose the rows."""

    slots: int
    chunk_rows: int
    digest: str


@dataclass(slots=True)
class Progress:
    """What has been done since the start, and what a batch waits for now. Read by the status page."""

    position_ts: int = 0
    last_ddl: str = ""
    rows: int = 0
    ddls: int = 0
    batches: dict[str, int] = field(default_factory=lambda: {"inline": 0, "spread": 0})
    duplicates: int = 0
    waiting_for: str = ""
    last_mode: str = ""
    last_bytes: int = 0


class Pipeline:
    """Takes one batch after another. `run` blocks until the batch is applied whole, or raises; `stop` makes one
    that waits for something give up with Stopped."""

    def __init__(
        self,
        destination: Destination,
        schema: SchemaSupply,
        cut: Cut,
        *,
        position_ts: int,
        intent: Intent | None = None,
    ) -> None:
        self._destination = destination
        self._supply = schema
        self._cut = cut
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._decoder: Decoder | None = None
        self._packed: tuple[SchemaView, PackedView] | None = None
        self._open_intent = intent
        self._apart: frozenset[tuple[int, int]] = frozenset()
        self._loose: tuple[SchemaView, int | None] | None = None
        self.progress = Progress(position_ts=position_ts)

    @property
    def position_ts(self) -> int:
        """Where the destination stands."""
        return self.progress.position_ts

    @property
    def open_intent(self) -> Intent | None:
        """A spread batch that was begun and not finished: it comes first, cut as it is recorded (rule 17)."""
        return self._open_intent

    @property
    def schema_version(self) -> int:
        """Rows up to this version need no DDL that has not run, and no job that is not known."""
        view = self._supply.schema.view()
        settled = view.settled_version
        return min(settled, view.ddl_due_version - 1) if view.ddl_due_version else settled

    @property
    def loose_from(self) -> int | None:
        """From this ts on batches must be inline: upstream may not check a unique key any more (rule 12), and only
        there two rows of one key are kept apart and the key's drop is brought forward."""
        schema = self._supply.schema
        view = schema.view()
        if self._loose is None or self._loose[0] is not view:
            self._loose = (view, schema.loose_from)
        return self._loose[1]

    def use_parallelism(self, tasks: int) -> None:
        """How many tasks run at once, which only a started Spark knows."""
        if not self._cut.slots:
            self._cut = replace(self._cut, slots=2 * tasks)

    @property
    def dialect(self) -> Dialect:
        return self._destination.dialect

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """No batch begins any more; one that waits for something gives up."""
        self._stop.set()

    def fold_order(self, plan: Plan) -> FoldOrder | None:
        """What the tasks that read a spread batch can do at once, which saves a way through the JVM. None where rows
        may turn out to need a schema that is not known yet: then the batch must be readable twice."""
        if plan.mode is not Mode.SPREAD or not self._supply.complete:
            return None
        return self._order(self._intent(plan).slots)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """While no batch is being applied."""
        with self._lock:
            yield

    def run(self, plan: Plan, feed: Feed) -> None:
        """Apply a whole batch. Raises BatchRefused, Stopped, and what the destination and the schema raise."""
        with self._lock:
            if self._stop.is_set():
                raise Stopped("stopped before the batch began")
            self._check_start(plan)
            begin_s, rows = time.monotonic(), self.progress.rows
            self.progress.last_mode, self.progress.last_bytes = plan.mode, plan.batch_bytes
            if plan.mode is Mode.SPREAD:
                self._spread(plan, feed)
            else:
                self._inline(plan, feed)
            self.progress.batches[plan.mode] += 1
            _log.debug(
                "batch applied",
                mode=plan.mode,
                source_bytes=plan.batch_bytes,
                tasks=len(plan.tasks),
                rows=self.progress.rows - rows,
                seconds=round(time.monotonic() - begin_s, 3),
                until_ts=plan.until_ts,
            )

    def advance(self, commit_ts: int) -> None:
        """Nothing lies up to `commit_ts`: move the position there."""
        with self._lock:
            self._destination.advance(commit_ts, self._supply.schema.applied_version)
            self.progress.position_ts = commit_ts

    def _check_start(self, plan: Plan) -> None:
        if plan.after_ts != self.progress.position_ts:
            raise BatchRefused(
                f"batch ({plan.after_ts}, {plan.until_ts}] does not begin at the destination's position "
                f"{self.progress.position_ts}"
            )

    # --- inline -------------------------------------------------------------------------------------------------

    def _inline(self, plan: Plan, feed: Feed) -> None:
        merged = [binlog for pump, message in feed.messages() for binlog in binlogs(pump, message)]
        batch = read_batch(merged, after_ts=plan.after_ts, until_ts=plan.until_ts)
        self.progress.duplicates += batch.duplicates
        wait = _Wait(self._stop, self.progress)
        while True:
            batch = batch.after(self.progress.position_ts)
            self._supply.prepare(batch)
            try:
                for step in walk(batch, self._supply.schema, job_done=self._destination.job_done):
                    self._apply(step)
            except JobUnknown as error:
                wait.unless(self._supply.missing(error), error)
            except UnknownColumn as error:
                wait.unless(self._supply.judge(error), error)
            except UniqueConflict as error:
                self._drop_first(error, batch.after(self.progress.position_ts))
            else:
                wait.over()
                return

    def _drop_first(self, error: UniqueConflict, rest: Batch) -> None:
        """Upstream is dropping the key that refuses rows of `rest`: that job runs before them (rule 12). Raises the
        error where no job is known to drop the key."""
        place = {"schema": error.schema, "table": error.table, "key": error.key}
        job = self._supply.schema.job_that_drops(**place)
        if job is None:
            unknown = JobUnknown(job_id=None, version=None, commit_ts=rest.until_ts, final_ts=rest.after_ts)
            job = self._supply.schema.job_that_drops(**place) if self._supply.missing(unknown) else None
        if job is None:
            raise error
        _log.warning("a unique key is dropped before its DDL's place", job_id=job.id, why=str(error))
        first = min(item.schema_version for item in rest.items if item.ddl is None)
        self._supply.schema.bring_forward(job, first)

    def _apply(self, step: Step) -> None:
        version = self._supply.schema.applied_version
        match step:
            case Rows():
                builder = FoldBuilder(self._decoder_for(step.view))
                builder.add_all(binlog.payload for binlog in step.binlogs)
                work = builder.finish(step.after_ts, step.until_ts)
                self._destination.apply(work, version)
                self.progress.rows += work.change_count
                self.progress.position_ts = step.until_ts
                crash_point("drainer.after_apply")
            case Ddl():
                self._destination.ddl(step, may_exist=step.may_exist)
                self.progress.ddls += 1
                self.progress.last_ddl = step.query[:200]
                self.progress.position_ts = step.commit_ts
                _log.info("DDL applied", query=step.query[:500], job_id=step.job.id, commit_ts=step.commit_ts)
                crash_point("drainer.after_ddl")
            case Fence():
                self._destination.advance(step.until_ts, version)
                self.progress.position_ts = step.until_ts

    def _decoder_for(self, view: SchemaView) -> Decoder:
        """A schema gives the same view until it changes, and a decoder's codecs are worth keeping."""
        if self._decoder is None or self._decoder.view is not view:
            self._decoder = Decoder(view, self._destination.dialect)
        return self._decoder

    # --- spread -------------------------------------------------------------------------------------------------

    def _spread(self, plan: Plan, feed: Feed) -> None:
        intent = self._intent(plan)
        if not self._supply.complete and not self._decodable(plan, feed, intent):
            self._inline(plan, feed)
            return
        target: SpreadTarget | None = self._destination.begin(intent)
        self._open_intent = intent
        crash_point("drainer.after_intent")
        rows = 0
        while target is not None:
            order = plan.fold or self._order(intent.slots)
            try:
                results = feed.spread(SpreadJob(order, intent, target, folded=plan.fold is not None))
            except KeyCollision as error:
                self._keep_apart(error, again=plan.fold is None)
                continue
            rows = max(rows, sum(result.rows for result in results))
            target = self._destination.next_phase(intent, results)
        crash_point("drainer.before_finish")
        self._destination.finish(intent, self._supply.schema.applied_version)
        self._open_intent, self._apart = None, frozenset()
        self.progress.position_ts = intent.until_ts
        self.progress.rows += rows

    def _intent(self, plan: Plan) -> Intent:
        if plan.intent is None:
            cut = self._cut
            return Intent(plan.after_ts, plan.until_ts, cut.slots, cut.chunk_rows, HASH_VERSION, cut.digest)
        if plan.intent.hash_version != HASH_VERSION or plan.intent.digest != self._cut.digest:
            raise BatchRefused(
                f"the destination holds an unfinished batch ({plan.intent.after_ts}, {plan.intent.until_ts}] that was "
                f"cut with other filters or by another version of the drainer: start once with those to finish it"
            )
        return plan.intent

    def _order(self, slots: int) -> FoldOrder:
        view = self._supply.schema.view()
        if self._packed is None or self._packed[0] is not view:
            self._packed = (view, PackedView.of(view))
        return FoldOrder(self._packed[1], self._destination.dialect, slots, self._apart)

    def _decodable(self, plan: Plan, feed: Feed, intent: Intent) -> bool:
        """Whether executors can decode the whole batch. Once the intent is recorded it cannot be cut any more, so what
        must wait, or needs a DDL first, is found out before. An open intent of an earlier life passed this: a column
        that is unknown now was left out then, and is again."""
        while True:
            try:
                feed.check(self._order(intent.slots))
            except UnknownColumn as error:
                if plan.intent is None:
                    _log.info("a batch is not spread", why=str(error))
                    return False
                self._supply.schema.leave_out(error.table_id, error.column_id, error.schema_version)
            else:
                return True

    def _keep_apart(self, error: KeyCollision, *, again: bool) -> None:
        """Two rows live under one key of a slot, which was found before that slot wrote anything, in this life and in
        any before: from now on its changes are applied one by one. `again`: with the same feed; else the error ends
        the query, and the next one reads the open batch anew."""
        if error.place in self._apart:
            raise BatchRefused(f"applied in order, and still: {error}") from error
        _log.warning("keys are applied in order", why=str(error), slot=error.place[1])
        self._apart |= {error.place}
        if not again:
            raise error


class _Wait:
    """Pauses between attempts, longer each time, visibly; gives up when the daemon stops."""

    def __init__(self, stop: threading.Event, progress: Progress) -> None:
        self._stop = stop
        self._progress = progress
        self._pause_s = WAIT_FIRST_S

    def unless(self, go_on: bool, why: BinlogError) -> None:
        if go_on:
            return
        if not self._progress.waiting_for:
            _log.warning("a batch waits", why=str(why))
        self._progress.waiting_for = str(why)
        if self._stop.wait(self._pause_s):
            raise Stopped(f"stopped while waiting: {why}")
        self._pause_s = min(self._pause_s * 2, WAIT_MAX_S)

    def over(self) -> None:
        self._progress.waiting_for = ""


def binlogs(pump: str, message: bytes) -> Iterable[Merged]:
    """The binlogs of one message of a pull."""
    for payload in payloads(message):
        found = envelope.scan(payload)
        yield Merged(found.commit_ts, found.start_ts, pump, payload)
