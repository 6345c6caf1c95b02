"""The spread way: a large batch without DDL, folded and applied on executors under a recorded intent (rules 15, 16)."""

from __future__ import annotations

from dataclasses import dataclass

from binlog.crashpoint import crash_point
from binlog.errors import BinlogError
from binlog.log import get_logger

from drainer.coordinator import Mode, Plan
from drainer.feed import Feed, SpreadJob
from drainer.inline import SchemaSupply
from drainer.order.slot import HASH_VERSION
from drainer.progress import Progress
from drainer.pumps.count import together
from drainer.reading import FoldOrder, PackedView
from drainer.schema.errors import TableUnverified, UnknownColumn
from drainer.schema.view import SchemaView
from drainer.sink.protocol import Destination, Intent, SpreadTarget

_log = get_logger(__name__)

# A slot is a connection to the destination while it is applied, and a server takes less over many than over a few
# (bench.planner): whose has processors for more sets worker-count.
SLOTS_MAX = 16


class BatchRefused(BinlogError):
    """A batch that does not begin where the destination stands, or is cut in a way this build does not know."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a spread batch is cut when there is no open intent. `slots` 0: twice the tasks that run at once, at most
    SLOTS_MAX; `digest`: of the filters, which choose the rows."""

    slots: int
    chunk_rows: int
    digest: str


class Spreading:
    """Applies one batch after another through executors. `open_intent`: one that was begun and not finished, of this
    life or of an earlier one; it comes first, cut as it is recorded (rule 17)."""

    def __init__(
        self, destination: Destination, supply: SchemaSupply, progress: Progress, cut: Cut, intent: Intent | None
    ) -> None:
        self._destination = destination
        self._supply = supply
        self._progress = progress
        self._cut = cut
        self._slots = cut.slots
        self.open_intent = intent
        self._packed: tuple[SchemaView, PackedView] | None = None

    def use_parallelism(self, tasks: int) -> None:
        """How many tasks run at once, which only a started Spark knows, and which changes with its executors."""
        if not self._cut.slots:
            self._slots = min(2 * tasks, SLOTS_MAX)

    def fold_order(self, plan: Plan) -> FoldOrder | None:
        """What the tasks that read a spread batch can do at once, which saves a way through the JVM. None where rows
        may turn out to need a schema that is not known yet: then the batch must be readable twice."""
        if plan.mode is not Mode.SPREAD or not self._supply.complete or self._leaves_out(plan):
            return None
        return self._order(self._intent(plan).slots)

    def run(self, plan: Plan, feed: Feed) -> bool:
        """Apply the whole batch, or raise with the intent open. False: nothing was done, it must go inline."""
        if self._leaves_out(plan):
            return False
        intent = self._intent(plan)
        if not self._supply.complete and not self._decodable(plan, feed, intent):
            return False
        target: SpreadTarget | None = self._destination.begin(intent)
        self.open_intent = intent
        crash_point("drainer.after_intent")
        rows = 0
        while target is not None:
            order = plan.fold or self._order(intent.slots)
            job = SpreadJob(order, intent, target, plan.fold is not None, together(plan.planned.values()))
            results = feed.spread(job)
            rows = max(rows, sum(result.rows for result in results))
            target = self._destination.next_phase(intent, results)
        crash_point("drainer.before_finish")
        self._destination.finish(intent, self._supply.schema.applied_version)
        self.open_intent = None
        self._progress.position_ts = intent.until_ts
        self._progress.rows += rows
        return True

    def _leaves_out(self, plan: Plan) -> bool:
        """Whether a transaction of the batch is to be passed over (ignore-txn-commit-ts): the inline way does that."""
        ignored = self._supply.schema.policy.ignored_ts
        return plan.intent is None and any(plan.after_ts < ts <= plan.until_ts for ts in ignored)

    def _intent(self, plan: Plan) -> Intent:
        if plan.intent is None:
            cut = self._cut
            planned = sorted(plan.planned.items())
            pumps = tuple(node_id for node_id, _ in planned)
            counts = tuple(-1 if found is None else found.count for _, found in planned)
            # What tasks fold at once is cut when the batch is planned; executors may have come or gone since.
            slots = plan.fold.slots if plan.fold is not None else self._slots
            return Intent(plan.after_ts, plan.until_ts, slots, cut.chunk_rows, HASH_VERSION, cut.digest, pumps, counts)
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
        return FoldOrder(self._packed[1], self._destination.dialect, slots)

    def _decodable(self, plan: Plan, feed: Feed, intent: Intent) -> bool:
        """Whether executors can decode the whole batch. Once the intent is recorded it cannot be cut any more, so what
        must wait, or needs a DDL first, is found out before. An open intent of an earlier life passed this: a column
        that is unknown now was left out then, and is again."""
        while True:
            try:
                feed.check(self._order(intent.slots))
            except TableUnverified as error:
                if plan.intent is not None:
                    for table_id in error.table_ids:
                        self._supply.schema.verify(table_id, error.schema_version)
                elif not self._supply.verify(error):
                    _log.info("a batch is not spread", why=str(error))
                    return False
            except UnknownColumn as error:
                if plan.intent is None:
                    _log.info("a batch is not spread", why=str(error))
                    return False
                self._supply.schema.leave_out(error.table_id, error.column_id, error.schema_version)
            else:
                return True
