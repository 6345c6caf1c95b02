"""The pipeline of a batch: pulled messages in, rows and DDLs applied at the destination.

    plan ─► in the driver:  messages ─► binlogs in commit order ─► walk ─┬► Rows ─► fold ─► destination.apply
                                                                  └► Ddl ─────────► destination.ddl
         ├► large:   spool ─► as in the driver, the large transaction in pieces: destination.apply_pieces
         └► distributed:  executors: fold ─► by slot ─► begin(intent) ─► write ─► commit
                     └──── read ─────────────┘     └─ run, after the batch before ─┘

Only the destination's position counts: a batch that fails is continued from there.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
from binlog.runtime.log import get_logger

from drainer.apply.batch_planner import Mode, PlannedBatch
from drainer.apply.distributed import BatchRefused, Cut, DistributedBatches
from drainer.apply.fold_order import MicroBatch, ReadOrder, binlogs
from drainer.apply.in_driver import InDriver, PullLarge
from drainer.apply.progress import Decisions, Progress, Stopped
from drainer.row.transaction import PIECE_BYTES_MAX
from drainer.schema.provider import LoopSchemaProvider
from drainer.schema.view import SchemaView
from drainer.sink.base import AnySink, Intent
from drainer.sink.retry import FAILURES, TRIES_REPORTED

# Return freed memory to the operating system after a large transaction.
#
# glibc keeps blocks of some MiB that were freed, because it expects them to be allocated again. The driver allocates
# such blocks for a large transaction, and nothing of that size between two of them. Workers keep theirs, which the
# next batch uses (drainer.spark.startup.worker_imports).


def return_freed_memory() -> None:
    """Return what glibc and Arrow keep of freed memory. After a transaction of 150 MiB this was 25 to 50 MiB and took
    less than 3 ms of CPU."""
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # another libc
        ctypes.CDLL(None).malloc_trim(0)


STOP_POLL_S = 0.2

_log = get_logger(__name__)


class Pipeline:
    """Applies batches in order. `run` blocks until the batch is completely applied, or raises; after `stop` a waiting
    batch raises Stopped."""

    def __init__(
        self,
        destination: AnySink,
        schema: LoopSchemaProvider,
        cut: Cut,
        *,
        position_ts: int,
        intent: Intent | None = None,
        pull_large: PullLarge | None = None,
        piece_bytes_max: int = PIECE_BYTES_MAX,
        decisions: Decisions | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pull_large`: pulls the binlogs of a LARGE plan to the driver. The driver decodes at most `piece_bytes_max`
        bytes of a large binlog at a time."""
        self._pull_large = pull_large
        self._destination = destination
        self._provider = schema
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._driver_from: tuple[SchemaView, int | None] | None = None
        self.progress = Progress(position_ts=position_ts)
        self.decisions = decisions or Decisions()
        self._in_driver = InDriver(
            destination,
            schema,
            self.progress,
            self._stop,
            piece_bytes_max=piece_bytes_max,
            decisions=self.decisions,
            monotonic=monotonic,
        )
        self._distributed = DistributedBatches(
            destination, schema, self.progress, cut, intent, pull_large, stop=self._stop, decisions=self.decisions
        )

    @property
    def position_ts(self) -> int:
        """The destination's position."""
        return self.progress.position_ts

    @property
    def open_intent(self) -> Intent | None:
        """A distributed batch that was begun and not finished; it must be finished first, as recorded (rule 17)."""
        return self._distributed.open_intent

    @property
    def schema_version(self) -> int:
        """Rows up to this schema version need no pending DDL and no unknown job."""
        view = self._provider.schema.view()
        settled = view.settled_version
        return min(settled, view.ddl_due_version - 1) if view.ddl_due_version else settled

    @property
    def driver_from(self) -> int | None:
        """From this ts on batches must be applied in the driver: TiDB may not enforce a unique key (rule 12), and only
        batches in the driver can run the drop of the key early; or rows before it need a schema that is not known (rule
        14). None: no such ts."""
        if self.position_ts < self._distributed.driver_until:
            return self.position_ts
        schema = self._provider.schema
        view = schema.view()
        if self._driver_from is None or self._driver_from[0] is not view:
            self._driver_from = (view, schema.unenforced_from)
        return self._driver_from[1]

    def use_parallelism(self, tasks: int) -> None:
        """Set the number of concurrent tasks, known once Spark runs; it changes with its executors."""
        self._distributed.use_parallelism(tasks)

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """Begin no further batch; a waiting one raises Stopped."""
        self._stop.set()

    def fold_order(self, plan: PlannedBatch) -> ReadOrder | None:
        """Return what the tasks that read a batch also fold; None: nothing."""
        return self._distributed.fold_order(plan)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Hold the pipeline while inside; waits for the current batch to end."""
        with self._lock:
            yield

    def read(self, plan: PlannedBatch, micro_batch: MicroBatch) -> None:
        """Read a batch before its turn, while the preceding one is applied. Only for a batch with a `fold`, which
        depends on nothing but the schema; other batches are left alone. Applies nothing. Raises NotDistributed and the
        errors of reading and decoding."""
        if plan.fold is None or self._stop.is_set():
            return
        self._distributed.read(plan, micro_batch)

    def read_failed(self, error: BaseException) -> None:
        """Show the error of `read` on the status page. Call this only if the error is known not to follow from another
        one: when the preceding batch fails, reading is cancelled."""
        if not isinstance(error, Stopped):
            FAILURES.failed("batch", error, tries=TRIES_REPORTED)

    def run(self, plan: PlannedBatch, micro_batch: MicroBatch) -> None:
        """Apply a complete batch. Raises BatchRefused, Stopped, and the errors of the destination and the schema."""
        with self._turn():
            if plan.after_ts != self.progress.position_ts:
                raise BatchRefused(
                    f"batch ({plan.after_ts}, {plan.until_ts}] does not begin at the destination's position "
                    f"{self.progress.position_ts}"
                )
            begin_s, rows = time.monotonic(), self.progress.rows
            self.progress.last_mode, self.progress.last_bytes = plan.mode, plan.batch_bytes
            with self._reported():
                mode = self._run(plan, micro_batch)
            self.decisions.passed(self.progress.position_ts)
            self.progress.batches[mode] += 1
            self.progress.read_bytes += plan.batch_bytes
            _log.debug(
                "batch applied",
                mode=mode,
                source_bytes=plan.batch_bytes,
                tasks=len(plan.tasks),
                rows=self.progress.rows - rows,
                seconds=round(time.monotonic() - begin_s, 3),
                until_ts=plan.until_ts,
            )

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the lock. If another thread holds the pipeline (`quiet`), do not wait for it once a stop is requested:
        that thread stops the query, which ends only after its batch.
        """
        while not self._lock.acquire(timeout=STOP_POLL_S):
            if self._stop.is_set():
                raise Stopped("stopped before the batch began")
        try:
            if self._stop.is_set():
                raise Stopped("stopped before the batch began")
            yield
        finally:
            self._lock.release()

    def _run(self, plan: PlannedBatch, micro_batch: MicroBatch) -> Mode:
        """Apply the batch; returns the mode that was used."""
        if plan.mode is Mode.LARGE:
            assert self._pull_large is not None, "a LARGE plan needs pull_large"
            try:
                with self._pull_large(plan, self.progress) as merged:
                    self._in_driver.run(plan, merged)
            finally:
                return_freed_memory()
            return Mode.LARGE
        if plan.mode is Mode.DISTRIBUTED:
            self._in_driver.store_position()
            if self._distributed.run(plan, micro_batch):
                return Mode.DISTRIBUTED
        self._in_driver.run(plan, list(binlogs(micro_batch.messages())))
        return Mode.DRIVER

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Report the current batch to the status page: since when it is applied, and why it fails until it succeeds."""
        self.progress.batch_since_s = time.time()
        try:
            yield
            FAILURES.clear("batch")
        except Stopped:
            raise
        except Exception as error:
            FAILURES.failed("batch", error, tries=TRIES_REPORTED)
            raise
        finally:
            self.progress.batch_since_s = 0.0

    def advance(self, commit_ts: int) -> None:
        """Advance the position to `commit_ts`; there is nothing to apply up to it. A position never decreases, because
        binlogs above it would be applied twice."""
        with self._lock:
            if commit_ts < self.progress.position_ts:
                return
            self._destination.advance(commit_ts, self._provider.schema.applied_version)
            self.progress.position_ts = commit_ts
            self.decisions.passed(commit_ts)

    def store_position(self) -> None:
        """Store the position in the destination if that has been put off (ranges that loopback-control left out)."""
        with self._lock:
            self._in_driver.store_position()
