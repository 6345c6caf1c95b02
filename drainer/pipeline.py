"""The flow of a batch, top to bottom as in the picture: pulled messages in, rows and DDLs at the destination.

    plan ─► inline:  messages ─► binlogs in commit order ─► walk ─┬► Rows ─► fold ─► destination.apply
                                                                  └► Ddl ─────────► destination.ddl
         ├► large:   spool ─► as inline, the large transaction in pieces: destination.apply_pieces
         └► spread:  examine ─► begin(intent) ─► executors: fold ─► by slot ─► write ─► commit

The destination's position is the truth: a batch that stops half-way goes on from there, and never ends unfinished.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from binlog.runtime.log import get_logger

from drainer.apply.batch_planner import Mode, Plan
from drainer.apply.distributed import BatchRefused, Cut, Spreading
from drainer.apply.fold_order import ReadOrder
from drainer.apply.inline import Inline, SchemaSupply
from drainer.apply.large_transaction import PullLarge
from drainer.apply.micro_batch import Feed, binlogs
from drainer.apply.progress import Progress, Stopped
from drainer.failures import TRIES_TOLD, TROUBLES
from drainer.row.transaction_pieces import PIECE_BYTES_MAX
from drainer.schema.view import SchemaView
from drainer.sink.base import AnySink, Intent

_log = get_logger(__name__)


class Pipeline:
    """Takes one batch after another. `run` blocks until the batch is applied whole, or raises; `stop` makes one
    that waits for something give up with Stopped."""

    def __init__(
        self,
        destination: AnySink,
        schema: SchemaSupply,
        cut: Cut,
        *,
        position_ts: int,
        intent: Intent | None = None,
        pull_large: PullLarge | None = None,
        piece_bytes_max: int = PIECE_BYTES_MAX,
    ) -> None:
        """`pull_large`: brings the binlogs of a LARGE plan to the driver, which decodes `piece_bytes_max` bytes of a
        large one at a time."""
        self._pull_large = pull_large
        self._destination = destination
        self._supply = schema
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._loose: tuple[SchemaView, int | None] | None = None
        self.progress = Progress(position_ts=position_ts)
        self._inline = Inline(destination, schema, self.progress, self._stop, piece_bytes_max=piece_bytes_max)
        self._spreading = Spreading(destination, schema, self.progress, cut, intent, pull_large)

    @property
    def position_ts(self) -> int:
        """Where the destination stands."""
        return self.progress.position_ts

    @property
    def open_intent(self) -> Intent | None:
        """A spread batch that was begun and not finished: it comes first, cut as it is recorded (rule 17)."""
        return self._spreading.open_intent

    @property
    def schema_version(self) -> int:
        """Rows up to this version need no DDL that has not run, and no job that is not known."""
        view = self._supply.schema.view()
        settled = view.settled_version
        return min(settled, view.ddl_due_version - 1) if view.ddl_due_version else settled

    @property
    def loose_from(self) -> int | None:
        """From this ts on batches must be inline: upstream may not check a unique key any more (rule 12), and only
        there the key's drop is brought forward; or something that follows may be refused (rule 21)."""
        if self.position_ts < self._spreading.inline_until:
            return self.position_ts
        schema = self._supply.schema
        view = schema.view()
        if self._loose is None or self._loose[0] is not view:
            self._loose = (view, schema.loose_from)
        return self._loose[1]

    def use_parallelism(self, tasks: int) -> None:
        """How many tasks run at once, which only a started Spark knows, and which changes with its executors."""
        self._spreading.use_parallelism(tasks)

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """No batch begins any more; one that waits for something gives up."""
        self._stop.set()

    def fold_order(self, plan: Plan) -> ReadOrder | None:
        """What the tasks that read a batch shall do with it at once."""
        return self._spreading.fold_order(plan)

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
            with self._told():
                mode = self._run(plan, feed)
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

    def _run(self, plan: Plan, feed: Feed) -> Mode:
        """The way it went."""
        if plan.mode is Mode.LARGE:
            assert self._pull_large is not None, "a LARGE plan needs somebody who pulls it"
            with self._pull_large(plan, self.progress) as merged:
                self._inline.run(plan, merged)
            return Mode.LARGE
        if plan.mode is Mode.SPREAD and self._spreading.run(plan, feed):
            return Mode.SPREAD
        self._inline.run(plan, list(binlogs(feed.messages())))
        return Mode.INLINE

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What the status page says of the batch under way: since when, and why it failed until one succeeds."""
        self.progress.batch_since_s = time.time()
        try:
            yield
        except Stopped:
            raise
        except Exception as error:
            TROUBLES.failed("batch", error, tries=TRIES_TOLD)
            raise
        else:
            TROUBLES.over("batch")
        finally:
            self.progress.batch_since_s = 0.0

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
