"""Schedules batches: surveys the pumps and plans the next batch. The I/O around batch_planner.py.

It runs on the event loop. The stream reader's questions arrive in another thread (drainer.spark.source.planner);
that thread waits for the answer. While a distributed batch is applied, the next one may be planned if it is distributed
too. Otherwise at most one batch is planned and not yet applied.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from binlog.errors import BinlogError, PumpUnavailable
from binlog.runtime.log import Outage, get_logger
from binlog.runtime.waiting import is_set_within

from drainer.apply.batch_planner import (
    Ask,
    Mode,
    MovePosition,
    PlannedBatch,
    Sizes,
    absent,
    altered,
    ceiling,
    decide,
    driver_limits,
    final,
    first_limits,
    resume,
)
from drainer.apply.fold_order import ReadOrder
from drainer.pipeline import Pipeline
from drainer.pumps.survey import AWAY_WARN_S, HeldBack, PumpSet, held_by_prewrite
from drainer.pumps.watermark import BatchLimits, PumpRange, Watermark
from drainer.sink.base import ADVANCE_EVERY_S

LONG_POLL_S = 0.2
PAUSE_S = 0.05
HELD_BACK_PAUSE_S = 0.2
LOOK_S = 1.0
SHARES_TRIED = 3

_log = get_logger(__name__)


@dataclass(slots=True)
class WatermarkState:
    """Watermark and progress, for the status page. `applied_ts`: everything at or below it is applied or empty; at or
    above the destination's position. `held_since`: unix seconds. `at_ceiling`: all that may be applied now is applied,
    although the pumps may have more (delay, stop-at)."""

    watermark_ts: int = 0
    applied_ts: int = 0
    pumps: int = 1
    held_back: str = ""
    held_by: str = ""
    held_since: float | None = None
    at_ceiling: bool = False


@dataclass(slots=True)
class Steering:
    """What an operator has asked of the running drainer; used on the event loop only. None of it survives a restart
    (docs/operations.md, "Steering a running drainer").

    `stop_at_ts`: the drainer ends at this commit_ts, 0: it does not. `delay_ms`: batches end so long before the
    cluster's time. `paused_by`: who asked for the pause, "" while there is none; `paused_since_s`: unix seconds."""

    stop_at_ts: int = 0
    delay_ms: int = 0
    paused_by: str = ""
    paused_since_s: float = 0.0

    @property
    def paused(self) -> bool:
        return bool(self.paused_by)

    def pause(self, who: str) -> None:
        self.paused_by, self.paused_since_s = who, time.time()

    def resume(self) -> None:
        self.paused_by, self.paused_since_s = "", 0.0

    def admits(self, until_ts: int) -> bool:
        """Whether a batch that ends at `until_ts` may begin."""
        return not self.paused and not 0 < self.stop_at_ts < until_ts


class PlannedBatches:
    """The batches between plan and destination, shared by the scheduler and the runner of the query. Every field is
    replaced as a whole, so that each thread reads either the old value or the new one."""

    def __init__(self) -> None:
        # By until_ts. Owned by the event loop, which adds and removes; emptied by the thread that starts a query.
        self._planned: dict[int, PlannedBatch] = {}
        # Being applied, so that the next one may be read. Owned by the runner: set by Spark's thread that calls for the
        # batch, cleared by the thread that has applied it; cleared too by the thread that starts a query.
        self.begun: PlannedBatch | None = None

    def reset(self) -> None:
        """Forget all batches, because a query begins at the position."""
        self.begun, self._planned = None, {}

    def plan(self, plan: PlannedBatch, applied_ts: int) -> None:
        """Add a planned batch, and remove those up to `applied_ts`."""
        self._planned = {ts: one for ts, one in self._planned.items() if ts > applied_ts} | {plan.until_ts: plan}

    @property
    def end_ts(self) -> int:
        """The end of the last planned batch; 0: none."""
        return max(self._planned, default=0)

    def planned(self, until_ts: int) -> PlannedBatch | None:
        """Return the batch that ends at `until_ts`, if one is planned and not applied."""
        return self._planned.get(until_ts)


async def _no_clock() -> int:
    return 0


class Scheduler:
    """Plans until `stop`. With --until-now nothing above the watermark of the start is planned, with `steering` nothing
    above its end and its delay (`now_ts`: the cluster's time), and nothing during a pause. `on_reached` is called once
    everything up to the end is applied. `finish_without`: node ids of pumps whose rows the operator abandons for an
    unfinished batch."""

    def __init__(
        self,
        pumps: PumpSet,
        pipeline: Pipeline,
        sizes: Sizes,
        *,
        loop: asyncio.AbstractEventLoop,
        until_now: bool = False,
        finish_without: Sequence[str] = (),
        advance_every_s: float = ADVANCE_EVERY_S,
        on_reached: Callable[[], None] = lambda: None,
        steering: Steering | None = None,
        now_ts: Callable[[], Awaitable[int]] = _no_clock,
    ) -> None:
        self._pumps = pumps
        self._pipeline = pipeline
        self._sizes = sizes
        self._loop = loop
        self._until_now = until_now
        self._finish_without = frozenset(finish_without)
        self.steering = steering or Steering()
        self._now_ts = now_ts
        self._until_now_ts: int | None = None
        self._on_reached = on_reached
        self.batches = PlannedBatches()
        self._waits_for: PlannedBatch | None = None
        self._ahead: tuple[int, BatchLimits, asyncio.Task[Watermark]] | None = None
        self._advance_every_s = advance_every_s
        self._advanced_at = 0.0
        self._looked_at = 0.0
        self._share = 0
        self._stopping = asyncio.Event()
        self._query = 0  # the number of the query that runs
        self._asking = asyncio.Lock()
        texts = ("the watermark does not advance", "the watermark advances again")
        self._held_outage = Outage(_log, *texts, quiet_s=AWAY_WARN_S)
        self._held_by_prewrite = Outage(_log, *texts)  # logged at once: it has been pending for HOLDS_MS
        self.watermark_state = WatermarkState(applied_ts=pipeline.position_ts)

    def use_parallelism(self, tasks: int) -> None:
        """Set the number of concurrent tasks, known once Spark runs; it changes with its executors."""
        self._sizes = replace(self._sizes, parallelism=tasks)

    def stop(self) -> None:
        """Stop planning; the batch in flight continues."""
        self._stopping.set()

    # --- called from the reader's thread ------------------------------------------------------------------------

    def for_query(self) -> Callable[[int], int]:
        """Return `next_until` for a query that begins at the position. No batch is being applied, and earlier queries
        have ended: their questions have no effect from now on. A reader may still ask, or wait for an answer, when its
        query has ended.
        """
        self._query += 1
        self.batches.reset()
        return partial(self.next_until, query=self._query)

    def next_until(self, start_ts: int, query: int = 0) -> int:
        """Return the end of the next batch; `start_ts` if there was none within LONG_POLL_S."""
        plan = asyncio.run_coroutine_threadsafe(self._next(query), self._loop).result()
        return start_ts if plan is None else plan.until_ts

    def tasks(self, start_ts: int, until_ts: int) -> tuple[tuple[tuple[PumpRange, ...], ...], ReadOrder | None]:
        plan = self.batches.planned(until_ts)
        if plan is None:
            raise BinlogError(f"tasks for ({start_ts}, {until_ts}] asked, but no batch is planned that ends there")
        return plan.tasks, plan.fold

    # --- on the loop --------------------------------------------------------------------------------------------

    async def _next(self, query: int) -> PlannedBatch | None:
        # One question at a time, because a question of a query that has ended may still advance the position or make a
        # plan.
        async with self._asking:
            return await self._next_of(query)

    async def _next_of(self, query: int) -> PlannedBatch | None:
        end = time.monotonic() + LONG_POLL_S
        if query != self._query:
            return None
        while not self._stopping.is_set():
            pause_s = PAUSE_S
            begun = self.batches.begun
            plan = None
            try:
                if self.steering.paused:
                    pause_s = HELD_BACK_PAUSE_S
                    await self._look()
                else:
                    plan = await (self._poll() if begun is None else self._poll_next(begun))
            except HeldBack as error:
                self._held_back(error)
                pause_s = HELD_BACK_PAUSE_S
            if query != self._query:
                return None
            # A pause or an end may have been asked for while it was planned.
            if plan is not None and self.steering.admits(plan.until_ts):
                if plan.mode is Mode.DISTRIBUTED:
                    self._survey_ahead(plan)
                self.batches.plan(plan, self._pipeline.position_ts)
                return plan
            if time.monotonic() >= end:
                return None
            await is_set_within(pause_s, self._stopping)
        await asyncio.sleep(LONG_POLL_S)
        return None

    async def _poll(self) -> PlannedBatch | None:
        """Return the batch after the position, or None."""
        after_ts = self._pipeline.position_ts
        intent = self._pipeline.open_intent
        if intent is None and await self._at_ceiling():
            return None
        asked = self._first_limits()
        watermark = await self._ahead_result(after_ts, asked) or await self._survey(after_ts, asked)
        if intent is not None:
            resumed = resume(watermark, intent, self._sizes)
            return resumed if resumed is None else self._folded(self._check_unaltered(await self._counted(resumed)))
        match await self._decide(after_ts, asked, watermark):
            case PlannedBatch() as plan:
                plan = await self._counted(plan)
                if not (self.steering.delay_ms and _has_none(plan)):
                    return self._folded(plan)
                await self._advance(plan.until_ts)
            case MovePosition(until_ts):
                if not after_ts and watermark.purged_ts:
                    _log.warning(
                        "older binlogs may have been purged; starting from the oldest that remain", after_ts=until_ts
                    )
                await self._advance(until_ts)
            case _:
                await self._check_reached()
        return None

    async def _look(self) -> None:
        """During a pause: ask the pumps from time to time, for the status page."""
        if time.monotonic() - self._looked_at >= LOOK_S:
            self._looked_at = time.monotonic()
            limits = driver_limits(self._sizes, pumps=self.watermark_state.pumps)
            await self._survey(self._pipeline.position_ts, limits)

    async def _ceiling(self) -> int | None:
        delay_ms = self.steering.delay_ms
        return ceiling(self._final_ts, delay_ms, await self._now_ts() if delay_ms else 0)

    @property
    def _final_ts(self) -> int | None:
        return final(self._until_now_ts, self.steering.stop_at_ts)

    async def _at_ceiling(self) -> bool:
        """Return whether everything that may be applied now is applied. If the end is reached, stop."""
        ceiling_ts = await self._ceiling()
        state = self.watermark_state
        state.at_ceiling = ceiling_ts is not None and ceiling_ts <= state.applied_ts
        if state.at_ceiling:
            final_ts = self._final_ts
            if final_ts is not None and self._pipeline.position_ts < final_ts <= state.applied_ts:
                await self._advance(final_ts)
            await self._check_reached()
        return state.at_ceiling

    async def _poll_next(self, begun: PlannedBatch) -> PlannedBatch | None:
        """Return the batch after one that is being applied, if it may be read already. It must be distributed, because
        then nothing between the two batches changes the schema. Return None if it must wait until that batch is
        applied: a DDL, a large transaction, a batch that is too small, or a question that can only be settled at the
        position (rule 2: pumps that return)."""
        if begun is self._waits_for:
            return None
        after_ts, asked = begun.until_ts, self._first_limits()
        try:
            watermark = await self._ahead_result(after_ts, asked) or await self._survey(after_ts, asked)
            found = await self._decide(after_ts, asked, watermark)
            if isinstance(found, PlannedBatch) and found.mode is Mode.DISTRIBUTED:
                plan = self._folded(await self._counted(found))
                if plan.fold is not None:
                    return plan
        except HeldBack:
            pass  # the survey is repeated at the position, and the reason is reported then
        self._waits_for = begun
        return None

    def _folded(self, plan: PlannedBatch) -> PlannedBatch:
        return replace(plan, fold=self._pipeline.fold_order(plan)) if plan.mode is Mode.DISTRIBUTED else plan

    async def _decide(
        self, after_ts: int, asked: BatchLimits, watermark: Watermark
    ) -> PlannedBatch | MovePosition | None:
        """Return the decision that follows from the answers, and from the answers to further surveys."""
        shares_left = SHARES_TRIED
        ceiling_ts = await self._ceiling()
        while True:
            decision = decide(
                watermark,
                after_ts=after_ts,
                asked=asked,
                sizes=self._sizes,
                ceiling_ts=ceiling_ts,
                driver_from=self._pipeline.driver_from,
                another_share=shares_left > 0,
            )
            match decision:
                case Ask(limits):
                    asked, shares_left = limits, shares_left - 1
                    watermark = await self._survey(after_ts, asked)
                case _:
                    if isinstance(decision, PlannedBatch) and decision.mode is Mode.DISTRIBUTED:
                        self._share = asked.batch_bytes_max
                    return decision

    def _first_limits(self) -> BatchLimits:
        """Return the limits of the first survey. The size that gave a full batch last time is tried again. With a delay
        a survey is small at first: pumps have the binlogs of the whole delay, of which the next ones are needed."""
        asked = first_limits(
            self._sizes, schema_version=self._pipeline.schema_version, pumps=self.watermark_state.pumps
        )
        if self.steering.delay_ms:
            least = driver_limits(self._sizes, pumps=self.watermark_state.pumps)
            return replace(asked, batch_bytes_max=least.batch_bytes_max)
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
                f"it is offline, and the unfinished batch ({intent.after_ts}, {intent.until_ts}] needs its rows: start "
                "the pump again; if its disk is lost, start the drainer with "
                f'finish-without = ["{gone[0]}"] in [syncer], which may lose rows of other pumps in that batch too',
            )

    async def _counted(self, plan: PlannedBatch) -> PlannedBatch:
        """Return the plan with the counts of each pull, requested from pumps whose batch end differs from the plan's
        (rule 22: planned binlogs are pulled)."""

        async def counted(part: PumpRange) -> PumpRange:
            if part.planned is not None:
                return part
            return replace(part, planned=await self._pumps.count(part))

        async def all_of(parts: Sequence[PumpRange]) -> tuple[PumpRange, ...]:
            return tuple(await asyncio.gather(*map(counted, parts)))

        # Concurrently, to need one round trip only.
        large, *tasks = await asyncio.gather(all_of(plan.large), *map(all_of, plan.tasks))
        return replace(plan, tasks=tuple(tasks), large=large)

    def _check_unaltered(self, plan: PlannedBatch) -> PlannedBatch:
        """Rule 16: an open batch must be finished with the rows with which it was begun. Raises HeldBack."""
        found = altered(plan, self._finish_without)
        if found is None:
            return plan
        node_id, before, now = found
        raise HeldBack(
            node_id,
            f"it held {before} binlogs of the unfinished batch ({plan.after_ts}, {plan.until_ts}] when it began, "
            f"and holds {now} now: check its log for lost or late binlogs; to finish the batch with what it holds now, "
            f'start the drainer with finish-without = ["{node_id}"] in [syncer], which may lose rows of that batch',
        )

    async def _survey(self, after_ts: int, asked: BatchLimits) -> Watermark:
        watermark = await self._pumps.survey(after_ts=after_ts, limits=asked)
        self._check_pumps(watermark)
        watermark_state = self.watermark_state
        held = held_by_prewrite(watermark)
        if held is not None:
            self._held_back(held[0], since=time.time() - held[1])
        else:
            self._held_outage.over()
            self._held_by_prewrite.over()
            watermark_state.held_back, watermark_state.held_by, watermark_state.held_since = "", "", None
        watermark_state.watermark_ts = watermark.ts
        watermark_state.pumps = max(1, len(watermark.marks))
        if self._until_now and self._until_now_ts is None:
            self._until_now_ts = watermark.ts
            _log.info("draining up to the current watermark", until_ts=watermark.ts)
        return watermark

    def _survey_ahead(self, plan: PlannedBatch) -> None:
        """Survey for the next batch while this one is applied."""
        asked = self._first_limits()
        task = asyncio.create_task(self._survey(plan.until_ts, asked), name="look ahead")
        self._ahead = (plan.until_ts, asked, task)

    async def _ahead_result(self, after_ts: int, asked: BatchLimits) -> Watermark | None:
        """Wait for the survey that was started in advance. Return its watermark if it was made with these arguments,
        else None."""
        if self._ahead is None:
            return None
        ahead_ts, ahead_asked, task = self._ahead
        self._ahead = None
        await asyncio.wait((task,))
        if task.exception() is not None or (ahead_ts, ahead_asked) != (after_ts, asked):
            return None
        return task.result()

    async def _advance(self, until_ts: int) -> None:
        """Record that there are no binlogs up to `until_ts`. This is written to the destination every `advance_every_s`
        at most.
        """
        self.watermark_state.applied_ts = max(self.watermark_state.applied_ts, until_ts)
        last = self._final_ts is not None and until_ts >= self._final_ts
        if not last and time.monotonic() - self._advanced_at < self._advance_every_s:
            return
        await asyncio.to_thread(self._pipeline.advance, until_ts)
        self._advanced_at = time.monotonic()
        await self._check_reached()

    def applied(self) -> None:
        """Note that a batch has been applied. Called from any thread."""
        self.batches.begun = None
        self.watermark_state.applied_ts = max(self.watermark_state.applied_ts, self._pipeline.position_ts)

    async def _check_reached(self) -> None:
        if self._final_ts is not None and self._pipeline.position_ts >= self._final_ts:
            await asyncio.to_thread(self._pipeline.store_position)
            self.stop()
            self._on_reached()

    def _held_back(self, error: HeldBack, *, since: float | None = None) -> None:
        """Record why the watermark does not advance. `since`: unix seconds, None: since the first call."""
        watermark_state = self.watermark_state
        if not isinstance(error.__cause__, PumpUnavailable):  # logged by the survey
            outage = self._held_outage if since is None else self._held_by_prewrite
            outage.failed(why=str(error))
        watermark_state.held_back, watermark_state.held_by = str(error), error.node_id
        watermark_state.held_since = since or watermark_state.held_since or time.time()


def _has_none(plan: PlannedBatch) -> bool:
    """Return whether the pumps counted no binlog in a planned range. One that ends at a ceiling may be empty although
    the pumps have later binlogs."""
    found = plan.planned.values()
    return plan.mode is Mode.DRIVER and all(one is not None and not one.count for one in found)
