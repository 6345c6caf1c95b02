"""Applies a distributed batch: a large batch without DDL, folded and applied on executors under a recorded intent
(rules 15, 16).

A stream that keeps its unique keys is never refused (rules 12 and 21). If the destination refuses a row, the batch
stays open, because a committed chunk cannot be undone: the error names the row, its transaction and the range. Rows of
a sound stream may violate a key that a DDL is dropping; from the start of such a DDL batches are applied in the driver
(Pipeline.driver_from).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from binlog.errors import BinlogError
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger

from drainer.apply.batch_planner import Mode, PlannedBatch, only
from drainer.apply.fold_order import (
    DistributedJob,
    MicroBatch,
    PackedView,
    ReadOrder,
    binlogs,
    cut_version,
    read_order,
    slots_of_batch,
)
from drainer.apply.in_driver import PullLarge
from drainer.apply.progress import Decisions, Progress, Stopped
from drainer.batch.served import ServedBinlog
from drainer.pumps.watermark import together
from drainer.schema.errors import ColumnGoing, TableUnverified, UnknownColumn
from drainer.schema.provider import LoopSchemaProvider
from drainer.schema.view import SchemaView
from drainer.sink.base import AnySink, Intent, ParallelSink, Receipt, SlotWriter
from drainer.sink.errors import DataError, DestinationDown
from drainer.sink.retry import TASK_RETRY_S, TASK_RETRY_S_MAX, RetryDeadline

_log = get_logger(__name__)

# While a slot is applied it uses a connection to the destination, and a server writes fewer rows per second over many
# connections than over a few (bench.planner). With a server of many processors, set worker-count higher.
SLOTS_MAX = 16


class NotDistributed(BinlogError):
    """A batch that was read to be distributed but must be applied in the driver. Nothing of it was applied; it must be
    planned again."""


class BatchRefused(BinlogError):
    """A batch does not begin at the destination's position, or is divided in a way that this version does not know."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a distributed batch is divided if there is no open intent. `slots`: the number of slots, 0: twice the number
    of concurrent tasks, at most SLOTS_MAX, and never more than the sink allows (slots_of_batch); `digest`: digest
    of the filters, which choose the rows; `whole`: only complete transactions can be seen (rule 33)."""

    slots: int
    chunk_rows: int
    digest: str
    whole: bool = False


@dataclass(eq=False)
class DistributedBatches:
    """Applies one batch after another through executors. `open_intent`: an intent that was started and not completed,
    by this process or an earlier one; it is applied first, divided as it was recorded (rule 17). `pull`: reads binlogs
    from the pumps in the driver, without Spark. `stop`: once set, no job is run again. `driver_until`: no batch is
    distributed up to this commit_ts, because the destination may refuse something before it."""

    sink: AnySink
    provider: LoopSchemaProvider
    progress: Progress
    cut: Cut
    open_intent: Intent | None
    pull: PullLarge | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    decisions: Decisions = field(default_factory=Decisions)
    driver_until: int = 0

    def __post_init__(self) -> None:
        self._slots = slots_of_batch(self.sink, self.cut.slots)
        self._packed: tuple[SchemaView, PackedView] | None = None

    @property
    def _cut_version(self) -> int:
        return cut_version(self.sink, whole=self.cut.whole)

    def use_parallelism(self, tasks: int) -> None:
        """The number of concurrent tasks, which is known after Spark's start and changes with its executors."""
        if not self.cut.slots:
            self._slots = slots_of_batch(self.sink, min(2 * tasks, SLOTS_MAX))

    def fold_order(self, plan: PlannedBatch) -> ReadOrder | None:
        """How the tasks that read a distributed batch fold it. None if the batch must be readable twice: it may have to
        be applied in the driver, or it is open and an unknown column of its rows must be skipped, as it was when the
        batch was started.
        """
        open_and_unsure = plan.intent is not None and not self.provider.complete
        if plan.mode is not Mode.DISTRIBUTED or open_and_unsure or self._leaves_out(plan):
            return None
        return self._order(self._intent(plan).slots)

    def read(self, plan: PlannedBatch, micro_batch: MicroBatch) -> None:
        """Pull and fold a batch that has a `fold`. This changes nothing, so the previous batch may be applied at the
        same time. Raises NotDistributed if rows need a schema that is not known yet (rule 14): the batch is then
        planned again with the schema known by then, or in the driver."""
        assert plan.fold is not None
        try:
            micro_batch.read(plan.fold, folded=True)
        except (TableUnverified, UnknownColumn) as error:
            if plan.intent is not None:
                raise
            if not isinstance(error, TableUnverified) or not self.provider.verify(error):
                self.driver_until = plan.until_ts
            raise NotDistributed(f"batch ({plan.after_ts}, {plan.until_ts}] is planned again: {error}") from error

    def run(self, plan: PlannedBatch, micro_batch: MicroBatch) -> bool:
        """Apply the whole batch, or raise with the intent open. False: nothing was done, it must be applied in the
        driver; NotDistributed if that is impossible because it was read folded."""
        if self._leaves_out(plan):
            if plan.fold is None:
                return False
            raise NotDistributed(
                f"batch ({plan.after_ts}, {plan.until_ts}] is planned again: a transaction of it is to be skipped"
            )
        intent = self._intent(plan)
        if plan.fold is not None:
            self.read(plan, micro_batch)
        elif not self.provider.complete and not self._decodable(plan, micro_batch, intent):
            return False
        order = plan.fold or self._order(intent.slots)
        if plan.intent is None and order.cut_version != self._cut_version:
            raise NotDistributed(
                f"batch ({plan.after_ts}, {plan.until_ts}] is planned again: it is to be cut otherwise now"
            )
        since = self.provider.schema.unenforced_from  # it may have become known since the batch was planned (rule 12)
        if plan.intent is None and since is not None and since < plan.until_ts:
            if plan.fold is None:
                return False
            raise NotDistributed(f"batch ({plan.after_ts}, {plan.until_ts}] is planned again: a DDL is dropping a key")
        # The intent is stored before a slot is written: from here on the range is finished as the intent says, by this
        # drainer or the next. A writer that finds conflicts makes commit return another one, for a round of all slots.
        writer: SlotWriter[Any] | None = self._parallel().begin(intent)
        self.open_intent = intent
        crash_point("drainer.after_intent")
        rows = left_out = 0
        while writer is not None:
            job = DistributedJob(order, intent, writer, plan.fold is not None, together(plan.planned.values()))
            try:
                receipts = self._written(micro_batch, job)
            except DataError as error:
                start_ts = self._start_ts(plan, micro_batch, error.commit_ts) if error.commit_ts else 0
                error.name_in_batch(start_ts, plan.after_ts, plan.until_ts)
                raise
            rows = max(rows, sum(receipt.rows for receipt in receipts))
            left_out = max([left_out, *(receipt.left_out for receipt in receipts)])
            receipts = [receipt for receipt in receipts if receipt.chunks or receipt.detail]
            crash_point("drainer.before_commit")
            writer = self._parallel().commit(intent, receipts, self.provider.schema.applied_version)
        self.open_intent = None
        self.progress.position_ts = intent.until_ts
        self.progress.rows += rows
        self.progress.left_out += left_out
        return True

    def _written(self, micro_batch: MicroBatch, job: DistributedJob) -> Sequence[Receipt]:
        """Run a job, again and again while its tasks give up because the destination fails, each time later. What they
        have committed stays committed, and the next run skips it.

        Raises Stopped, and DestinationDown if it fails for as long as the sink retries."""
        retry_for_s, job = self._parallel().retry_for_s, replace(job, retry_for_s=TASK_RETRY_S / 2)

        def once() -> Sequence[Receipt]:
            nonlocal job
            job = replace(job, retry_for_s=min(2 * job.retry_for_s, TASK_RETRY_S_MAX))
            return micro_batch.distribute(job)

        patience = RetryDeadline("batch", retry_for_s, self.stop)
        try:
            return patience.repeat(once, (DestinationDown,) if retry_for_s else ())
        except DestinationDown as error:
            if retry_for_s and self.stop.is_set():
                raise Stopped("stopped while slots failed") from error
            raise

    def _start_ts(self, plan: PlannedBatch, micro_batch: MicroBatch, commit_ts: int) -> int:
        """The start_ts of a transaction of the batch, 0 if it cannot be determined."""
        merged: list[ServedBinlog] = []
        try:
            if plan.fold is None:
                merged = list(binlogs(micro_batch.messages()))
            elif self.pull is not None:
                with self.pull(only(plan, commit_ts), self.progress) as pulled:
                    merged = pulled
        except BinlogError as failed:
            _log.warning(
                "cannot determine which transaction the destination refused", commit_ts=commit_ts, why=str(failed)
            )
        return next((one.start_ts for one in merged if one.commit_ts == commit_ts), 0)

    def _leaves_out(self, plan: PlannedBatch) -> bool:
        """Whether a transaction of the batch is to be skipped (ignore-txn-commit-ts, or a request), which only a batch
        in the driver does."""
        ignored = self.provider.schema.policy.ignored_ts | self.decisions.skips
        return plan.intent is None and any(plan.after_ts < ts <= plan.until_ts for ts in ignored)

    def _intent(self, plan: PlannedBatch) -> Intent:
        if plan.intent is None:
            cut = self.cut
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
                0 if cut.whole else cut.chunk_rows,
                self._cut_version,
                cut.digest,
                pumps,
                counts,
            )
        if plan.intent.hash_version != self._cut_version or plan.intent.digest != self.cut.digest:
            raise BatchRefused(
                f"the destination holds an unfinished batch ({plan.intent.after_ts}, {plan.intent.until_ts}] that was "
                f"cut with other filters, another consistency or by another version of the drainer: start once with "
                f"those to finish it"
            )
        return plan.intent

    def _order(self, slots: int) -> ReadOrder:
        """With the current schema, which is packed once."""
        view = self.provider.schema.view()
        if self._packed is None or self._packed[0] is not view:
            self._parallel().prepare(view)
            self._packed = view, PackedView.of(view)
        return read_order(self.sink, self._packed[1], slots, whole=self.cut.whole)

    def _parallel(self) -> ParallelSink[Any]:
        parallel = self.sink.parallel
        assert parallel is not None, f"a batch for {self.sink.name} is distributed, and only the driver writes there"
        return parallel

    def _decodable(self, plan: PlannedBatch, micro_batch: MicroBatch, intent: Intent) -> bool:
        """Whether executors can decode the whole batch. After the intent is recorded the batch cannot be shortened any
        more, so rows that must wait, or need a DDL first, are found before. An open intent of an earlier start has
        passed this check: a column that is unknown now was skipped then, and is skipped again."""
        while True:
            try:
                micro_batch.check(self._order(intent.slots))
            except TableUnverified as error:
                if plan.intent is not None:
                    for table_id in error.table_ids:
                        self.provider.schema.verify(table_id, error.schema_version)
                elif not self.provider.verify(error):
                    _log.info("the batch is applied by the driver alone", why=str(error))
                    return False
            except (ColumnGoing, UnknownColumn) as error:
                if plan.intent is None:
                    _log.info("the batch is applied by the driver alone", why=str(error))
                    return False
                if isinstance(error, ColumnGoing):
                    raise
                self.provider.schema.skip_column(error.table_id, error.column_id, error.schema_version)
            else:
                return True
