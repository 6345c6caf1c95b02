"""Applies a spread batch: a large batch without DDL, folded and applied on executors under a recorded intent (rules 15,
16).

A stream that keeps its unique keys is never refused (rules 12 and 21). If the destination refuses a row, the batch
stays open, because a committed chunk cannot be undone: the error names the row, its transaction and the range. Rows of
a sound stream may violate a key that a DDL is dropping; from the start of such a DDL batches are inline
(Pipeline.inline_from).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from binlog.errors import BinlogError
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger

from drainer.apply.batch_planner import Mode, Plan, only
from drainer.apply.fold_order import PackedView, ReadOrder
from drainer.apply.inline import SchemaSupply
from drainer.apply.large_transaction import PullLarge
from drainer.apply.micro_batch import MicroBatch, SpreadJob, binlogs
from drainer.apply.progress import Progress, Stopped
from drainer.apply.segments import segments_for
from drainer.batch.binlog import ServedBinlog
from drainer.pumps.range_count import together
from drainer.schema.errors import ColumnGoing, TableUnverified, UnknownColumn
from drainer.schema.view import SchemaView
from drainer.sink.base import AnySink, Intent, ParallelSink, Receipt, SlotWriter
from drainer.sink.errors import DataError, DestinationDown
from drainer.sink.retry import TASK_RETRY_S, TASK_RETRY_S_MAX, Patience

T = TypeVar("T")

_log = get_logger(__name__)

# While a slot is applied it uses a connection to the destination, and a server writes fewer rows per second over many
# connections than over a few (bench.planner). With a server of many processors, set worker-count higher.
SLOTS_MAX = 16


class NotSpread(BinlogError):
    """A batch that was read to be spread but must be inline. Nothing of it was applied; it must be planned again."""


class BatchRefused(BinlogError):
    """A batch does not begin at the destination's position, or is divided in a way that this version does not know."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a spread batch is divided if there is no open intent. `slots`: the number of slots, 0: twice the number of
    concurrent tasks, at most SLOTS_MAX, and never more than the sink allows (Segments.slots_max); `digest`: digest of
    the filters, which choose the rows."""

    slots: int
    chunk_rows: int
    digest: str


class Spreading:
    """Applies one batch after another through executors. `open_intent`: an intent that was started and not completed,
    by this process or an earlier one; it is applied first, divided as it was recorded (rule 17). `inline_until`: no
    batch is spread up to this commit_ts, because the destination may refuse something before it."""

    def __init__(
        self,
        destination: AnySink,
        supply: SchemaSupply,
        progress: Progress,
        cut: Cut,
        intent: Intent | None,
        pull: PullLarge | None = None,
        *,
        stop: threading.Event | None = None,
        task_retry_s: float = TASK_RETRY_S,
    ) -> None:
        """`pull`: pulls binlogs to the driver without Spark. `stop`: when it is set, no job is repeated any more.
        `task_retry_s`: for how long a task retries before it gives up and the job is repeated."""
        self._pull = pull
        self._stop = stop or threading.Event()
        self._task_retry_s = task_retry_s
        self._sink = destination
        self._segments = segments_for(destination)
        self._supply = supply
        self._progress = progress
        self._cut = cut
        self._slots = self._segments.slots or self._at_most(cut.slots)
        self.open_intent = intent
        self.inline_until = 0
        self._packed: tuple[SchemaView, PackedView] | None = None

    def use_parallelism(self, tasks: int) -> None:
        """The number of concurrent tasks, which is known after Spark's start and changes with its executors."""
        if not self._cut.slots and self._segments.slots is None:
            self._slots = self._at_most(min(2 * tasks, SLOTS_MAX))

    def _at_most(self, slots: int) -> int:
        return min(slots, self._segments.slots_max or slots)

    def fold_order(self, plan: Plan) -> ReadOrder | None:
        """How the tasks that read a spread batch fold it. None if the batch must be readable twice: it may become
        inline, or it is open and an unknown column of its rows must be skipped, as it was when the batch was started.
        """
        open_and_unsure = plan.intent is not None and not self._supply.complete
        if plan.mode is not Mode.SPREAD or open_and_unsure or self._leaves_out(plan):
            return None
        return self._order(self._intent(plan).slots)

    def read(self, plan: Plan, micro_batch: MicroBatch) -> None:
        """Pull and fold a batch that has a `fold`. This changes nothing, so the previous batch may be applied at the
        same time. Raises NotSpread if rows need a schema that is not known yet (rule 14): the batch is then planned
        again with the schema known by then, or as inline."""
        assert plan.fold is not None
        try:
            micro_batch.read(plan.fold, folded=True)
        except (TableUnverified, UnknownColumn) as error:
            if plan.intent is not None:
                raise
            if not isinstance(error, TableUnverified) or not self._supply.verify(error):
                self.inline_until = plan.until_ts
            raise NotSpread(f"batch ({plan.after_ts}, {plan.until_ts}] is planned again: {error}") from error

    def run(self, plan: Plan, micro_batch: MicroBatch) -> bool:
        """Apply the whole batch, or raise with the intent open. False: nothing was done, it must be applied inline;
        NotSpread if that is impossible because it was read folded."""
        if self._leaves_out(plan):
            return False
        intent = self._intent(plan)
        if plan.fold is not None:
            self.read(plan, micro_batch)
        elif not self._supply.complete and not self._decodable(plan, micro_batch, intent):
            return False
        order = plan.fold or self._order(intent.slots)
        if plan.intent is None and order.cut_version != self._segments.cut_version:
            raise NotSpread(f"batch ({plan.after_ts}, {plan.until_ts}] is planned again: it is to be cut otherwise now")
        if self._may_be_refused(plan):
            if plan.fold is None:
                return False
            raise NotSpread(f"batch ({plan.after_ts}, {plan.until_ts}] is planned again: a DDL is dropping a key")
        writer: SlotWriter[Any] | None = self._parallel().begin(intent)
        self.open_intent = intent
        crash_point("drainer.after_intent")
        rows = 0
        while writer is not None:
            job = SpreadJob(order, intent, writer, plan.fold is not None, together(plan.planned.values()))
            try:
                receipts = self._repeated(partial(_written, micro_batch, job))
            except DataError as error:
                self._name(error, plan, micro_batch)
                raise
            rows = max(rows, sum(receipt.rows for receipt in receipts))
            crash_point("drainer.before_commit")
            writer = self._parallel().commit(intent, receipts, self._supply.schema.applied_version)
        self.open_intent = None
        self._progress.position_ts = intent.until_ts
        self._progress.rows += rows
        return True

    def _repeated(self, job: Callable[[float], T]) -> T:
        """Run a job, again and again while its tasks give up because the destination fails. What they have committed
        stays committed, and the next run skips it. `job` is called with the time after which a task gives up.

        Raises Stopped, and DestinationDown if it fails for as long as the sink retries."""
        patience = Patience("batch", self._parallel().retry_for_s, self._stop)
        task_s = self._task_retry_s
        while True:
            try:
                found = job(task_s)
            except DestinationDown as error:
                if not self._parallel().retry_for_s:
                    raise
                try:
                    patience.failed(error)
                except DestinationDown as last:
                    raise (Stopped("stopped while slots failed") if self._stop.is_set() else last) from error
                task_s = min(2 * task_s, TASK_RETRY_S_MAX)
            else:
                patience.over()
                return found

    def _name(self, error: DataError, plan: Plan, micro_batch: MicroBatch) -> None:
        """Add to an error which batch it is, and which transaction of it was refused, if that is known."""
        start_ts = self._start_ts(plan, micro_batch, error.commit_ts) if error.commit_ts else 0
        error.name_in_batch(start_ts, plan.after_ts, plan.until_ts)

    def _start_ts(self, plan: Plan, micro_batch: MicroBatch, commit_ts: int) -> int:
        """The start_ts of a transaction of the batch, 0 if it cannot be determined."""
        merged: list[ServedBinlog] = []
        try:
            if plan.fold is None:
                merged = list(binlogs(micro_batch.messages()))
            elif self._pull is not None:
                with self._pull(only(plan, commit_ts), self._progress) as pulled:
                    merged = pulled
        except BinlogError as failed:
            _log.warning(
                "cannot determine which transaction the destination refused", commit_ts=commit_ts, why=str(failed)
            )
        return next((one.start_ts for one in merged if one.commit_ts == commit_ts), 0)

    def _leaves_out(self, plan: Plan) -> bool:
        """Whether a transaction of the batch is to be skipped (ignore-txn-commit-ts), which only an inline batch
        does."""
        ignored = self._supply.schema.policy.ignored_ts
        return plan.intent is None and any(plan.after_ts < ts <= plan.until_ts for ts in ignored)

    def _may_be_refused(self, plan: Plan) -> bool:
        """Whether a job has become known since the batch was planned because of which it must be inline (rule 12)."""
        since = self._supply.schema.unenforced_from
        return plan.intent is None and since is not None and since < plan.until_ts

    def _intent(self, plan: Plan) -> Intent:
        if plan.intent is None:
            cut = self._cut
            planned = sorted(plan.planned.items())
            pumps = tuple(node_id for node_id, _ in planned)
            counts = tuple(-1 if found is None else found.count for _, found in planned)
            # A batch that tasks fold while reading is divided when it is planned; the number of executors may have
            # changed since.
            slots = plan.fold.slots if plan.fold is not None else self._slots
            return Intent(
                plan.after_ts,
                plan.until_ts,
                slots,
                cut.chunk_rows,
                self._segments.cut_version,
                cut.digest,
                pumps,
                counts,
            )
        if plan.intent.hash_version != self._segments.cut_version or plan.intent.digest != self._cut.digest:
            raise BatchRefused(
                f"the destination holds an unfinished batch ({plan.intent.after_ts}, {plan.intent.until_ts}] that was "
                f"cut with other filters or by another version of the drainer: start once with those to finish it"
            )
        return plan.intent

    def _order(self, slots: int) -> ReadOrder:
        return self._segments.order(self._packed_view(), slots)

    def _packed_view(self) -> PackedView:
        """The current schema, packed."""
        view = self._supply.schema.view()
        if self._packed is None or self._packed[0] is not view:
            self._parallel().prepare(view)
            self._packed = view, PackedView.of(view)
        return self._packed[1]

    def _parallel(self) -> ParallelSink[Any]:
        parallel = self._sink.parallel
        assert parallel is not None, f"a batch for {self._sink.name} is spread, and only the driver writes there"
        return parallel

    def _decodable(self, plan: Plan, micro_batch: MicroBatch, intent: Intent) -> bool:
        """Whether executors can decode the whole batch. After the intent is recorded the batch cannot be shortened any
        more, so rows that must wait, or need a DDL first, are found before. An open intent of an earlier start has
        passed this check: a column that is unknown now was skipped then, and is skipped again."""
        while True:
            try:
                micro_batch.check(self._order(intent.slots))
            except TableUnverified as error:
                if plan.intent is not None:
                    for table_id in error.table_ids:
                        self._supply.schema.verify(table_id, error.schema_version)
                elif not self._supply.verify(error):
                    _log.info("the batch is applied by the driver alone", why=str(error))
                    return False
            except (ColumnGoing, UnknownColumn) as error:
                if plan.intent is None:
                    _log.info("the batch is applied by the driver alone", why=str(error))
                    return False
                if isinstance(error, ColumnGoing):
                    raise
                self._supply.schema.skip_column(error.table_id, error.column_id, error.schema_version)
            else:
                return True


def _written(micro_batch: MicroBatch, job: SpreadJob, task_s: float) -> Sequence[Receipt]:
    return micro_batch.spread(replace(job, retry_for_s=task_s))
