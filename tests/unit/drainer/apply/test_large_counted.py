"""Rule 22 for large transactions: the driver pulls them past Spark, and what it pulls is compared all the same."""

from __future__ import annotations

import asyncio

import pytest
from binlog.runtime.security import Security

from drainer.apply.batch_planner import Mode, PlannedBatch, Sizes
from drainer.apply.large_transaction import LargePuller
from drainer.apply.micro_batch import MicroBatch
from drainer.pipeline import Pipeline
from drainer.pumps.watermark import Counted, RangeDiffers
from tests.support.row_case import transaction
from tests.support.schema_case import ts
from tests.unit.drainer.apply.test_distributed_failures import T, put, standing
from tests.unit.drainer.apply.test_rule_22 import Drainer, TaskBatch, drainer, moved, row

LARGE_BYTES = 400
SIZES = [
    pytest.param(Sizes(distributed_bytes_max=0, large_bytes_min=LARGE_BYTES), id="driver"),
    pytest.param(Sizes(distributed_bytes_min=1, parallelism=2, large_bytes_min=LARGE_BYTES), id="distributed"),
]
WHOLE = transaction([(T, put(key, key)) for key in range(100, 150)], commit_ts=ts(50), version=2)


async def planned(made: Drainer) -> tuple[PlannedBatch, Pipeline]:
    plan, pipeline = await made.plan()
    pipeline._pull_large = LargePuller(1, Security())
    return plan, pipeline


async def run(pipeline: Pipeline, plan: PlannedBatch) -> None:
    feed: MicroBatch = TaskBatch(plan)
    await asyncio.to_thread(pipeline.run, plan, feed)


async def drained(made: Drainer) -> list[Mode]:
    """Batch after batch, until the position is behind everything."""
    modes = []
    while (made.store.commit_ts or 0) < ts(900):
        plan, pipeline = await planned(made)
        await run(pipeline, plan)
        modes.append(plan.mode)
        await made.end()
    return modes


@pytest.mark.parametrize("sizes", SIZES)
async def test_large_transaction_on_two_pumps_beside_small_one_is_counted(sizes: Sizes) -> None:
    """Rows before it and behind it on both pumps; a third pump has it, too."""
    async with drainer(sizes) as made:
        await made.add("a", row(1), WHOLE, row(60))
        beside = transaction([(T, put(200, 200))], commit_ts=ts(50), start_ts=ts(50) - 1, version=2)
        await made.add("b", row(2), WHOLE, beside, row(61))
        await made.add("c", WHOLE)
        assert Mode.LARGE in await drained(made)
        assert standing(made.store) == [(key, key) for key in (1, 2, 60, 61, *range(100, 150), 200)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("silent", ["a", "b"])
async def test_large_transaction_not_served_by_counting_pump_is_refused(sizes: Sizes, silent: str) -> None:
    """Also where another pump serves the same transaction; once it is served all is there."""
    async with drainer(sizes) as made:
        await made.add("a", WHOLE)
        await made.add("b", WHOLE)
        made.pumps[silent].unserved = {ts(50)}
        plan, pipeline = await planned(made)
        assert plan.mode is Mode.LARGE and plan.planned == dict.fromkeys("ab", Counted(1, len(WHOLE)))
        with pytest.raises(RangeDiffers, match=rf"pump {silent} .*planned with 1 binlog .* but 0 binlogs"):
            await run(pipeline, plan)
        assert not moved(made.store)
        made.pumps[silent].unserved = set()
        await run(pipeline, plan)
        assert len(standing(made.store)) == 50


async def test_large_binlog_lost_before_driver_is_refused() -> None:
    """What was pulled is counted once more behind the file it lay in."""
    async with drainer(SIZES[0].values[0]) as made:  # type: ignore[arg-type]
        await made.add("a", WHOLE)
        plan, pipeline = await planned(made)
        with pytest.raises(RangeDiffers, match=r"planned with 1 binlog .* 0 binlogs .* to the driver"):
            await asyncio.to_thread(pipeline._in_driver.run, plan, [])
        assert not moved(made.store)
