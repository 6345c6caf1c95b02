"""Rule 22, from plan to destination: what was planned for a range is what was pulled, and what came through Spark.

Pumps are real servers, reading and applying tasks are those of executors; only Spark between them is left out.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest
from binlog import envelope
from binlog.cluster.registry import NodeStatus, Registry, State
from binlog.runtime.security import Security

from drainer.apply.batch_planner import Mode, PlannedBatch, Sizes
from drainer.apply.fold_order import DistributedJob, ReadOrder
from drainer.apply.in_driver import LargePuller
from drainer.changes.slot_blob import HASH_VERSION, BlobError, Totals, split_totals, with_totals
from drainer.pipeline import Pipeline
from drainer.pumps.survey import PumpSet, dial_with
from drainer.pumps.watermark import BatchLimits, Counted, RangeDiffers
from drainer.service.scheduler import Scheduler
from drainer.sink.base import Intent, Receipt
from drainer.sink.errors import DestinationDown
from drainer.sink.position import Stored
from drainer.spark.errors import ErrorInTask, ErrorSeal
from drainer.spark.shuffle_apply import RESULT, SLOT, Apply, Fold, of_all_slots, receipts_of
from drainer.spark.source.executor import PullTask, read_task
from tests.support.memory_etcd import MemoryEtcd
from tests.support.memory_sink import Store
from tests.support.row_case import transaction
from tests.support.schema_case import BEGIN_TS, ts
from tests.support.stub_pump import StubPump
from tests.unit.drainer.apply.test_distributed_failures import T, life, put, standing

SLOTS = 4
DRIVER = Sizes(distributed_bytes_max=0)
DISTRIBUTED = Sizes(distributed_bytes_min=1, parallelism=2)
BOTH = pytest.mark.parametrize("sizes", [DRIVER, DISTRIBUTED], ids=["driver", "distributed"])

SEAL = ErrorSeal.new()
INTENT = Intent(BEGIN_TS, ts(900), SLOTS, 100, HASH_VERSION, "d")


def row(key: int) -> bytes:
    return transaction([(T, put(key, key))], commit_ts=ts(10 + key), version=2)


@dataclass
class TaskBatch:
    """A batch in the hands of executors' tasks. `lost`: places of record batches that Spark does not bring."""

    plan: PlannedBatch
    lost: tuple[int, ...] = ()
    check_only: bool = False

    def messages(self) -> Iterable[tuple[str, bytes]]:
        for batch in self._read():
            yield from zip(batch.column("pump").to_pylist(), batch.column("blob").to_pylist(), strict=True)

    def check(self, order: ReadOrder) -> None:
        raise AssertionError("the schema is complete")

    def read(self, order: ReadOrder, *, folded: bool) -> None:
        self._read()

    def distribute(self, job: DistributedJob) -> Sequence[Receipt]:
        batches = self._read()
        if not job.folded:
            batches = [folded for batch in batches for folded in Fold(job.order)(iter([batch]))]
        slots: dict[int, list[bytes]] = {slot: [] for slot in range(job.intent.slots)}
        for batch in batches:
            numbers = batch.column(SLOT).to_pylist()
            for slot, blob in zip(numbers, batch.column("blob").to_pylist(), strict=True):
                slots[slot].append(blob)
        apply = Apply(job, SEAL)
        results = [batch for slot, blobs in slots.items() for batch in apply(iter([_slotted(slot, blobs)]))]
        return receipts_of(pa.Table.from_batches(results, RESULT), job, SEAL)

    def _read(self) -> list[pa.RecordBatch]:
        tasks = [PullTask(ranges, 1, Security(), True, self.plan.fold, SEAL) for ranges in self.plan.tasks]
        try:
            found = list(itertools.chain.from_iterable(map(read_task, tasks)))
        except ErrorInTask as error:
            raise SEAL.unwrap(error) from error
        return [batch for place, batch in enumerate(found) if place not in self.lost]


def _slotted(slot: int, blobs: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({SLOT: [slot] * len(blobs), "blob": blobs})


@dataclass
class Drainer:
    """A scheduler and a pipeline over these pumps and a destination in memory."""

    sizes: Sizes
    store: Store = field(default_factory=Store)
    pumps: dict[str, StubPump] = field(default_factory=dict)
    registry: Registry = field(default_factory=lambda: Registry(MemoryEtcd()))
    finish_without: tuple[str, ...] = ()

    async def add(self, name: str, *payloads: bytes, resolved: int = 900, **more: bool) -> StubPump:
        pump = self.pumps[name] = StubPump(**more)
        pump.put(*payloads)
        pump.resolve(ts(resolved))
        await self.registry.create("pumps", NodeStatus(name, pump.host, State.ONLINE))
        return pump

    async def plan(self, until_ts: int = 0, *, looks: int = 50) -> tuple[PlannedBatch, Pipeline]:
        """A life begins, and the pumps are asked until there is a batch, up to `until_ts` at least."""
        self.life = life(self.store)
        self.set = PumpSet(self.registry, dial_with(1, Security()))
        loop = asyncio.get_running_loop()
        self.scheduler = Scheduler(
            self.set, self.life.pipeline, self.sizes, loop=loop, finish_without=self.finish_without
        )
        for _ in range(looks):
            plan = self.scheduler.batches.planned(await asyncio.to_thread(self.scheduler.next_until, 0))
            if plan is not None and plan.until_ts >= until_ts:
                return plan, self.life.pipeline
        raise AssertionError(self.scheduler.watermark_state)

    async def end(self) -> None:
        self.scheduler.stop()
        await asyncio.sleep(0)
        await self.set.close()


@asynccontextmanager
async def drainer(sizes: Sizes) -> AsyncIterator[Drainer]:
    made = Drainer(sizes)
    try:
        yield made
    finally:
        await made.end()
        for pump in made.pumps.values():
            await asyncio.to_thread(pump.stop)


async def run(pipeline: Pipeline, plan: PlannedBatch, lost: tuple[int, ...] = ()) -> None:
    await asyncio.to_thread(pipeline.run, plan, TaskBatch(plan, lost))


async def refused(made: Drainer, plan: PlannedBatch, wanted: str, lost: tuple[int, ...] = ()) -> None:
    """The batch stops, and nothing was written and the position has not moved."""
    with pytest.raises(RangeDiffers, match=wanted):
        await run(made.life.pipeline, plan, lost)
    store = made.store
    assert store.commit_ts == BEGIN_TS and not (store.rows or store.slots or store.log)


def opened(pumps: tuple[str, ...], *counts: int) -> Stored:
    """The position of a drainer that ended within a batch up to ts(60)."""
    return Stored(BEGIN_TS, 0, 1, intent=replace(INTENT, until_ts=ts(60), pumps=pumps, counts=counts), stage="direct")


@BOTH
async def test_pump_serving_less_than_planned_stops_batch(sizes: Sizes) -> None:
    """The batch stops with pump, range and both numbers, and nothing moves. Once the pump serves all, all is there."""
    async with drainer(sizes) as made:
        await made.add("a", *map(row, (1, 4)))
        bad = await made.add("b", *map(row, (2, 3)))
        bad.unserved = {ts(13)}
        plan, pipeline = await made.plan()
        assert plan.mode is (Mode.DRIVER if sizes is DRIVER else Mode.DISTRIBUTED)
        size = len(row(2)) + len(row(3))
        plan_text = rf"the range \({BEGIN_TS}, {ts(900)}\] was planned with 2 binlogs of {size} bytes, but 1 "
        await refused(made, plan, rf"pump b \({bad.host}\): {plan_text}")
        bad.unserved = set()
        await made.end()
        plan, pipeline = await made.plan()
        await run(pipeline, plan)
        assert standing(made.store) == [(key, key) for key in (1, 2, 3, 4)] and made.store.commit_ts == ts(900)


@BOTH
async def test_pump_serving_nothing_stops_batch(sizes: Sizes) -> None:
    """As a run of fakes once did: the stream ended, empty and well. What is pulled is compared before the batch is
    recorded, so it need not be finished."""
    async with drainer(sizes) as made:
        pump = await made.add("a", row(1))
        pump.unserved = {ts(11)}
        plan, _ = await made.plan()
        await refused(made, plan, "1 binlog of .* but 0 binlogs")
        assert made.store.intent is None


@BOTH
async def test_go_pump_serving_less_than_it_streamed_stops_batch(sizes: Sizes) -> None:
    async with drainer(sizes) as made:
        pump = await made.add("go", *map(row, (1, 2, 3, 4)), extension=False)
        plan, _ = await made.plan(ts(14))
        size = sum(len(row(key)) for key in (1, 2, 3, 4))
        assert plan.planned == {"go": Counted(4, size)} and plan.until_ts == ts(14)
        pump.unserved = {ts(12)}
        wanted = (
            "pump go .* 1 binlog of .* but 0" if sizes is DISTRIBUTED else f"pump go .* 4 binlogs of {size} .* but 3"
        )
        await refused(made, plan, wanted)


@BOTH
async def test_late_commit_between_plan_and_pull_is_in_next_plan(sizes: Sizes) -> None:
    async with drainer(sizes) as made:
        pump = await made.add("a", *map(row, (1, 3)))
        plan, pipeline = await made.plan()
        pump.put(row(2))
        await refused(made, plan, "2 binlogs .* but 3 binlogs")
        if sizes is DISTRIBUTED:
            stored = made.store.position.read()
            assert stored is not None
            made.store.document.stored = replace(stored, intent=None)  # the life below has begun nothing
        await made.end()
        plan, pipeline = await made.plan()
        await run(pipeline, plan)
        assert standing(made.store) == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize(
    "sizes", [DRIVER, DISTRIBUTED, replace(DISTRIBUTED, parallelism=8)], ids=["driver", "distributed", "more"]
)
async def test_pumps_are_counted_up_to_end_of_batch(sizes: Sizes) -> None:
    """Three pumps with three watermarks: of all but the slowest the first answer is for more than the batch."""
    async with drainer(sizes) as made:
        await made.add("slow", *map(row, range(1, 90, 3)), resolved=60)
        await made.add("quick", *map(row, range(2, 90, 3)), resolved=95)
        await made.add("idle", row(95), resolved=120)
        plan, pipeline = await made.plan()
        assert plan.until_ts == ts(60)
        wanted = {"slow": range(1, 51, 3), "quick": range(2, 51, 3), "idle": ()}
        for name, keys in wanted.items():
            assert plan.planned[name] == Counted(len(keys), sum(len(row(key)) for key in keys)), name
        assert all(part.planned is not None for task in plan.tasks for part in task)
        await run(pipeline, plan)
        assert standing(made.store) == sorted((key, key) for keys in wanted.values() for key in keys)


@BOTH
async def test_fakes_and_transactions_on_two_pumps_are_no_difference(sizes: Sizes) -> None:
    async with drainer(sizes) as made:
        fakes = [envelope.encode_fake(ts(n)) for n in range(20, 30)]
        await made.add("a", row(1), *fakes, row(30))
        await made.add("b", row(1), row(2))
        await made.add("go", row(3), *fakes, envelope.encode_fake(ts(899)), extension=False)
        plan, pipeline = await made.plan(ts(899))
        assert {name: part.count for name, part in plan.planned.items() if part} == {"a": 2, "b": 2, "go": 1}
        await run(pipeline, plan)
        assert standing(made.store) == [(1, 1), (2, 2), (3, 3), (30, 30)]


@BOTH
async def test_rows_lost_in_spark_stop_batch(sizes: Sizes) -> None:
    """Every task read all of its ranges, and one's rows are lost on the way."""
    async with drainer(sizes) as made:
        await made.add("a", *map(row, range(1, 20, 2)))
        await made.add("b", *map(row, range(2, 20, 2)))
        plan, _ = await made.plan()
        await refused(made, plan, r"was planned .* but .* (to the driver|through Spark to slot 0)", lost=(1,))
        recorded = replace(INTENT, pumps=("a", "b"), counts=(10, 9))
        assert made.store.intent == (recorded if sizes is DISTRIBUTED else None)


async def test_unfolded_rows_lost_in_spark_stop_batch() -> None:
    async with drainer(DISTRIBUTED) as made:
        await made.add("a", *map(row, range(1, 20, 2)))
        plan, pipeline = await made.plan()
        plan = replace(plan, fold=None)
        await refused(made, plan, "10 binlogs .* through Spark to slot 0", lost=(0,))
        await run(pipeline, plan)
        assert len(standing(made.store)) == 10


def test_slot_without_receipt_stops_batch() -> None:
    intent = Intent(10, 20, 3, 100, HASH_VERSION, "d")
    some = Receipt(1, 5, 1, 0)
    empty = [Receipt(slot, 0, 0, 0) for slot in (0, 2)]
    assert of_all_slots([some, *empty], intent) == [some]
    with pytest.raises(RangeDiffers, match=r"slots \[2\] of the batch \(10, 20\]"):
        of_all_slots([some, empty[0]], intent)


@dataclass(frozen=True)
class Unreachable:
    """A writer whose slot 2 gives up."""

    def write(self, slot: int, segment: object, retry_for_s: float) -> Receipt:
        if slot == 2:
            error = DestinationDown(f"slot {slot}: gave up after {retry_for_s:.0f} s: refused")
            error.failing_s = retry_for_s
            raise error
        return Receipt(slot, 1, 1, 0)


async def test_a_task_whose_slot_gives_up_ends_and_its_result_says_why() -> None:
    """Spark repeats no task, and the other slots of the batch are written."""
    async with drainer(DISTRIBUTED) as made:
        await made.add("a", *map(row, range(1, 11)))
        plan, _ = await made.plan()
        assert plan.fold is not None
        job = DistributedJob(plan.fold, INTENT, Unreachable(), folded=True, retry_for_s=12.0)
        with pytest.raises(DestinationDown, match=r"^slot 2: gave up after 12 s: refused$") as found:
            await asyncio.to_thread(TaskBatch(plan).distribute, job)
        assert found.value.failing_s == 12.0


def test_totals_of_part_are_in_every_slot() -> None:
    totals = Totals(7, 700, 2)
    marked = with_totals({1: b"blob"}, 3, totals)
    assert {slot: split_totals(one) for slot, one in marked.items()} == {
        0: (totals, b""), 1: (totals, b"blob"), 2: (totals, b""),
    }  # fmt: skip
    for end in range(24):
        with pytest.raises(BlobError, match="totals"):
            split_totals(marked[1][:end])


async def test_open_batch_is_counted_again_after_restart_and_finished() -> None:
    """After a restart nothing is known of its plan; each pump is asked for just its range."""
    async with drainer(DISTRIBUTED) as made:
        await made.add("a", *map(row, range(1, 90)))
        await made.add("b", row(95))
        made.store.document.stored = opened(("a",), 50)
        plan, pipeline = await made.plan()
        assert plan.intent is not None and plan.until_ts == ts(60)
        assert plan.planned == {"a": Counted(50, sum(len(row(key)) for key in range(1, 51)))}
        await run(pipeline, plan)
        assert made.store.commit_ts == ts(60) and len(standing(made.store)) == 50


@pytest.mark.parametrize("given_up", [(), ("a",)])
async def test_open_batch_holds_when_pump_holds_less_than_before(given_up: tuple[str, ...]) -> None:
    """Its chunks would be cut in other places (rule 16): it holds back by name and numbers, until an operator says."""
    async with drainer(DISTRIBUTED) as made:
        await made.add("a", *map(row, (1, 2)))
        made.store.document.stored = opened(("a",), 3)
        made.finish_without = given_up
        if given_up:
            plan, pipeline = await made.plan()
            await run(pipeline, plan)
            assert len(standing(made.store)) == 2
            return
        with pytest.raises(AssertionError, match=r"held 3 binlogs of the unfinished batch .* and holds 2 now"):
            await made.plan(looks=1)
        assert made.scheduler.watermark_state.held_by == "a"
        assert not made.store.rows


async def test_giving_up_one_pump_does_not_release_another() -> None:
    """Rule 16: both hold less than before, and the operator gave up one."""
    async with drainer(DISTRIBUTED) as made:
        await made.add("a", *map(row, (1, 2)))
        await made.add("b", *map(row, (3, 4)))
        made.store.document.stored = opened(("a", "b"), 3, 3)
        made.finish_without = ("a",)
        with pytest.raises(AssertionError, match=r"pump b: it held 3 binlogs of the unfinished batch"):
            await made.plan(looks=1)
        assert made.scheduler.watermark_state.held_by == "b"


async def test_open_batch_whose_only_pump_is_given_up_is_finished() -> None:
    """An operator forced it offline, for its disk is lost: no task reads, so no slot hears of totals."""
    async with drainer(DISTRIBUTED) as made:
        await made.add("b", row(70))
        made.store.document.stored = opened(("a",), 3)
        made.finish_without = ("a",)
        plan, pipeline = await made.plan()
        assert plan.intent is not None and plan.tasks == ()
        await run(pipeline, plan)
        assert made.store.commit_ts == ts(60) and made.store.intent is None


async def test_purge_between_survey_and_count_is_error() -> None:
    async with drainer(DRIVER) as made:
        await made.add("slow", resolved=60)
        quick = await made.add("quick", row(1), row(80), resolved=95)
        pumps = PumpSet(made.registry, dial_with(1, Security()))
        watermark = await pumps.survey(after_ts=BEGIN_TS, limits=BatchLimits(1 << 20))
        assert watermark.ts == ts(60)
        await pumps.close()
        quick.purged_ts = ts(50)
        with pytest.raises(Exception, match="may be gone"):
            await made.plan()


# Rule 22 for large transactions: the driver pulls them past Spark, and what it pulls is compared all the same.


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
        await refused(made, plan, f"pump {silent} .*planned with 1 binlog .* but 0 binlogs")
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
        assert made.store.commit_ts == BEGIN_TS and not made.store.rows
