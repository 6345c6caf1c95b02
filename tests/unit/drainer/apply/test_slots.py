"""How many slots a batch has: as many as suit the executors, unless the sink or the user says so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from drainer.apply.batch_planner import Mode, PlannedBatch
from drainer.apply.distributed import Cut, DistributedBatches
from drainer.apply.progress import Progress
from drainer.dispatch.dispatcher import Dispatcher, PartitionSlotting
from drainer.dispatch.rules import Router
from drainer.protocol.options import ProtocolOptions
from drainer.sink.base import Wants
from drainer.sink.file.format import ByTable

PLAN = PlannedBatch(1, 2, Mode.DISTRIBUTED, (), 10)


def by_partition(count: int) -> PartitionSlotting:
    router = Router([], "shop", protocol="open-protocol")
    return PartitionSlotting(Dispatcher(router, {"shop": 3}, ProtocolOptions("open-protocol").zone), count)


def slots(slotting: object, *, tasks: int, configured: int = 0) -> int:
    """Of a batch after Spark has told how many tasks run at once."""
    sink: Any = SimpleNamespace(wants=Wants.CHANGES, slotting=slotting)
    provider: Any = SimpleNamespace()
    distributed = DistributedBatches(sink, provider, Progress(1), Cut(configured, 10, ""), None)
    distributed.use_parallelism(tasks)
    return distributed._intent(PLAN).slots


@pytest.mark.parametrize(
    ("count", "tasks", "configured", "wanted"),
    [
        (16, 2, 0, 4),
        (16, 1, 0, 2),
        (16, 8, 0, 16),
        (16, 100, 0, 16),
        (3, 2, 0, 3),
        (1, 2, 0, 1),
        (16, 2, 7, 7),
        (5, 2, 7, 5),
        (100, 2, 40, 40),
    ],
)
def test_slots_of_partitioned_sink_follow_tasks_up_to_its_maximum(
    count: int, tasks: int, configured: int, wanted: int
) -> None:
    assert slots(by_partition(count), tasks=tasks, configured=configured) == wanted


def test_slots_of_sink_with_fixed_slots_are_all_used() -> None:
    assert slots(ByTable(1), tasks=8) == 1
    assert slots(ByTable(1), tasks=8, configured=5) == 1
