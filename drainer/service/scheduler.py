"""Asks the pumps and the batch planner, again and again, what the next batch is. The shell around batch_planner.py.

It lives on the event loop; the stream reader's questions come from another thread
(drainer.spark.source.planner_server) and are
answered there. At most one batch is planned and not yet applied.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from binlog.errors import BinlogError, PumpUnavailable
from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage

from drainer.apply.batch_planner import Advance, Ask, Mode, Plan, Sizes, absent, altered, decide, first_limits, resume
from drainer.apply.fold_order import ReadOrder
from drainer.pipeline import Pipeline
from drainer.pumps.health import AWAY_WARN_S, HeldBack, held_by_prewrite
from drainer.pumps.survey import PumpSet
from drainer.pumps.watermark import Limits, PumpRange, Watermark

LONG_POLL_S = 0.2
PAUSE_S = 0.05
HELD_BACK_PAUSE_S = 0.2
ADVANCE_EVERY_S = 3.0
SHARES_TRIED = 3

_log = get_logger(__name__)


@dataclass(slots=True)
class Outlook:
    """What is known of what lies ahead, for the status page. `applied_ts`: everything at or below it has been
    applied, because it was applied or because there is nothing: at or above the destination's position."""

    watermark_ts: int = 0
    applied_ts: int = 0
    pumps: int = 1
    held_back: str = ""
    held_by: str = ""
    held_since: float | None = None
    watermark_at: float = 0.0


class Scheduler:
    """Plans until `stop`. With a `ceiling` (--until-now) nothing above the watermark of the start is planned, and
    `on_reached` is called once everything up to there is applied. `finish_without`: pumps whose rows an operator gives
    up, where an unfinished batch needs them."""

    def __init__(
        self,
        pumps: PumpSet,
        pipeline: Pipeline,
        sizes: Sizes,
        *,
        loop: asyncio.AbstractEventLoop,
        until_now: bool = False,
        finish_without: Sequence[str] = (),
        on_reached: Callable[[], None] = lambda: None,
    ) -> None:
        self._pumps = pumps
        self._pipeline = pipeline
        self._sizes = sizes
        self._loop = loop
        self._until_now = until_now
        self._finish_without = frozenset(finish_without)
        self._ceiling_ts: int | None = None
        self._on_reached = on_reached
        self._plan: Plan | None = None
        self._ahead: tuple[int, Limits, asyncio.Task[Watermark]] | None = None
        self._advanced_at = 0.0
        self._share = 0
        self._stopping = asyncio.Event()
        told = ("nothing new can be applied", "the watermark moves again")
        self._standstill = Outage(_log, *told, quiet_s=AWAY_WARN_S)
        self._held_by_prewrite = Outage(_log, *told)  # which has waited before it counts (HOLDS_MS)
        self.outlook = Outlook(applied_ts=pipeline.position_ts)

    def use_parallelism(self, tasks: int) -> None:
        """How many tasks run at once, which only a started Spark knows, and which changes with its executors."""
        self._sizes = replace(self._sizes, parallelism=tasks)

    def stop(self) -> None:
        """Plan nothing any more; the batch in flight goes on."""
        self._stopping.set()

    @property
    def current(self) -> Plan | None:
        """The batch that is planned and not yet applied; None where the last question brought nothing."""
        return self._plan

    # --- called from the reader's thread ------------------------------------------------------------------------

    def next_until(self, start_ts: int) -> int:
        """Where the next batch ends, or `start_ts` after a moment in which there was none."""
        plan = asyncio.run_coroutine_threadsafe(self._next(), self._loop).result()
        return start_ts if plan is None else plan.until_ts

    def tasks(self, start_ts: int, until_ts: int) -> tuple[tuple[tuple[PumpRange, ...], ...], ReadOrder | None]:
        plan = self.current
        if plan is None or plan.until_ts != until_ts:
            planned = f"the batch ends at {plan.until_ts}" if plan else "nothing is planned"
            raise BinlogError(f"tasks for ({start_ts}, {until_ts}] asked, but {planned}")
        return plan.tasks, plan.fold

    # --- on the loop --------------------------------------------------------------------------------------------

    async def _next(self) -> Plan | None:
        end = time.monotonic() + LONG_POLL_S
        self._plan = None
        while not self._stopping.is_set():
            pause_s = PAUSE_S
            try:
                plan = await self._look()
            except HeldBack as error:
                self._held_back(error)
                plan, pause_s = None, HELD_BACK_PAUSE_S
            if plan is not None:
                if plan.mode is Mode.SPREAD:
                    plan = replace(plan, fold=self._pipeline.fold_order(plan))
                    self._look_ahead(plan)
                self._plan = plan
                return plan
            if time.monotonic() >= end:
                return None
            await self._pause(pause_s)
        await asyncio.sleep(LONG_POLL_S)
        return None

    async def _look(self) -> Plan | None:
        after_ts = self._pipeline.position_ts
        asked = self._first_limits()
        watermark = await self._ahead_of(after_ts, asked) or await self._survey(after_ts, asked)
        intent = self._pipeline.open_intent
        if intent is not None:
            plan = resume(watermark, intent, self._sizes)
            return plan if plan is None else self._unaltered(await self._counted(plan))
        shares_left = SHARES_TRIED
        while True:
            decision = decide(
                watermark,
                after_ts=after_ts,
                asked=asked,
                sizes=self._sizes,
                ceiling_ts=self._ceiling_ts,
                loose_from=self._pipeline.loose_from,
                another_share=shares_left > 0,
            )
            if asked.stop_at_schema:
                self._share = asked.batch_bytes_max
            match decision:
                case Ask(limits):
                    asked, shares_left = limits, shares_left - 1
                    watermark = await self._survey(after_ts, asked)
                case Advance(until_ts):
                    if not after_ts and watermark.purged_ts:
                        _log.warning("older binlogs may be gone, the oldest that are there begin it", after_ts=until_ts)
                    await self._advance(until_ts)
                    return None
                case Plan():
                    return await self._counted(decision)
                case None:
                    self._check_reached()
                    return None

    def _first_limits(self) -> Limits:
        """What to ask first. A share that made a full batch will probably make the next one."""
        asked = first_limits(self._sizes, schema_version=self._pipeline.schema_version, pumps=self.outlook.pumps)
        if self._share and asked.stop_at_schema:
            return replace(asked, batch_bytes_max=max(self._share, asked.batch_bytes_max))
        return asked

    def _check_pumps(self, watermark: Watermark) -> None:
        intent = self._pipeline.open_intent
        if intent is None:
            return
        gone = [node_id for node_id in absent(watermark, intent) if node_id not in self._finish_without]
        if gone:
            raise HeldBack(
                gone[0],
                f"it is offline, and the unfinished batch ({intent.after_ts}, {intent.until_ts}] needs its rows: bring "
                f'it back; if its disk is lost, start with finish-without = ["{gone[0]}"] in [syncer], which may lose '
                "rows of other pumps in that batch too",
            )

    async def _counted(self, plan: Plan) -> Plan:
        """The plan with what each pull must bring, asked again of pumps whose batch another pump has cut (rule 22)."""

        async def counted(part: PumpRange) -> PumpRange:
            if part.planned is not None or (part.extension and not part.ends_pulls):
                return part
            return replace(part, planned=await self._pumps.count(part))

        async def all_of(parts: Sequence[PumpRange]) -> tuple[PumpRange, ...]:
            return tuple(await asyncio.gather(*map(counted, parts)))

        # All pumps at once: one after another would be a way there and back for each of them.
        large, *tasks = await asyncio.gather(all_of(plan.large), *map(all_of, plan.tasks))
        return replace(plan, tasks=tuple(tasks), large=large)

    def _unaltered(self, plan: Plan) -> Plan:
        """Rule 16: an open batch is finished with the rows that it was begun with."""
        found = altered(plan, self._finish_without)
        if found is None:
            return plan
        node_id, before, now = found
        raise HeldBack(
            node_id,
            f"it held {before} binlogs of the unfinished batch ({plan.after_ts}, {plan.until_ts}] when that was begun, "
            f"and holds {now} now: look at its log for what it lost or took late; to finish the batch with what it "
            f'holds now, start with finish-without = ["{node_id}"] in [syncer], which may lose rows of that batch',
        )

    async def _survey(self, after_ts: int, asked: Limits) -> Watermark:
        watermark = await self._pumps.survey(after_ts=after_ts, limits=asked)
        self._check_pumps(watermark)
        outlook = self.outlook
        held = held_by_prewrite(watermark)
        if held is not None:
            self._held_back(held[0], since=time.time() - held[1])
        else:
            self._standstill.over()
            self._held_by_prewrite.over()
            outlook.held_back, outlook.held_by, outlook.held_since = "", "", None
        outlook.watermark_ts, outlook.watermark_at = watermark.ts, time.time()
        outlook.pumps = max(1, len(watermark.marks))
        if self._until_now and self._ceiling_ts is None:
            self._ceiling_ts = watermark.ts
            _log.info("draining up to the watermark of now", until_ts=watermark.ts)
        return watermark

    def _look_ahead(self, plan: Plan) -> None:
        """Under a backlog, ask about the next batch while this one is applied. What is final stays final."""
        asked = self._first_limits()
        task = asyncio.create_task(self._survey(plan.until_ts, asked), name="look ahead")
        self._ahead = (plan.until_ts, asked, task)

    async def _ahead_of(self, after_ts: int, asked: Limits) -> Watermark | None:
        """What was asked ahead, if it was this question and has an answer. It is over before another survey begins."""
        if self._ahead is None:
            return None
        ahead_ts, ahead_asked, task = self._ahead
        self._ahead = None
        await asyncio.wait((task,))
        if task.exception() is not None or (ahead_ts, ahead_asked) != (after_ts, asked):
            return None
        return task.result()

    async def _advance(self, until_ts: int) -> None:
        """Nothing lies up to `until_ts`. Written down only now and then: it saves the next start some reading."""
        self.outlook.applied_ts = max(self.outlook.applied_ts, until_ts)
        last = self._ceiling_ts is not None and until_ts >= self._ceiling_ts
        if not last and time.monotonic() - self._advanced_at < ADVANCE_EVERY_S:
            return
        await asyncio.to_thread(self._pipeline.advance, until_ts)
        self._advanced_at = time.monotonic()
        self._check_reached()

    def applied(self) -> None:
        """A batch has been applied."""
        self.outlook.applied_ts = max(self.outlook.applied_ts, self._pipeline.position_ts)

    def _check_reached(self) -> None:
        if self._ceiling_ts is not None and self._pipeline.position_ts >= self._ceiling_ts:
            self.stop()
            self._on_reached()

    def _held_back(self, error: HeldBack, *, since: float | None = None) -> None:
        """`since`: unix seconds, where something else tells it than the first time it is seen."""
        outlook = self.outlook
        if not isinstance(error.__cause__, PumpUnavailable):  # the survey tells of those
            outage = self._standstill if since is None else self._held_by_prewrite
            outage.failed(why=str(error))
        outlook.held_back, outlook.held_by = str(error), error.node_id
        outlook.held_since = since or outlook.held_since or time.time()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass
