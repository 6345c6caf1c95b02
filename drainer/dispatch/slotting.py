"""Assigns changes to slots. All changes of a partition are in one slot, so that a single task writes the partition, in
order.

A change belongs to the slots of both its images: a row that moves to another partition leaves one slot and enters
another. For each of its own partitions, a slot computes the same events as a task that has all changes; `part_of_slot`
drops the events of other partitions. There is one exception. If updates stay updates (`raw`) and their partition is not
chosen by the handle key, an event that merges several changes of a row in one transaction may have a later old image,
or be an update instead of an insert.

A topic that has tables dispatched by conflict is in one slot, with all other tables of the topic: only all rows of a
table show which events belong together, and a partition that several tables share must be written by one task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

import numpy as np

from drainer.changes.decode import Changes
from drainer.changes.vector import Ints
from drainer.dispatch.dispatcher import Dispatcher, Routes
from drainer.dispatch.row_events import RowEvents
from drainer.protocol.row_changes import RowChanges

SLOTTING_VERSION: Final = 3


@dataclass(frozen=True)
class PartitionSlotting:
    """See sink.base.Slotting. `count`: the most slots that a batch may have. The slots depend on the dispatcher's rules
    and on the number of partitions of each topic. A sink records both with an intent, and continues an intent with the
    recorded values."""

    dispatcher: Dispatcher
    count: int
    version: int = SLOTTING_VERSION
    is_fixed: bool = False
    _events: RowEvents = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_events", RowEvents(selectors=self.dispatcher.router.selectors))

    def slots_of(self, changes: Changes, slots: int) -> Sequence[Ints]:
        """Return the slot of each change for each of its images. Raises DispatchError."""
        selection = self._events.selection(changes.codec)
        table = selection.table
        rule = self.dispatcher.router.rule(table.schema, table.name)
        topic = rule.topic.topic(table.schema, table.name)
        slot = slots_of_topic(self.dispatcher, topic, slots)
        if (slot == slot[0]).all():
            return [np.full(len(changes), slot[0], np.int64)]
        return [
            slot[self.dispatcher.image_partitions(table, rule, selection.of(image), changes.commit_ts)]
            for image in (changes.old, changes.new)
            if image is not None
        ]


def slots_of_topic(dispatcher: Dispatcher, topic: str, slots: int) -> Ints:
    """Return the slot of each partition of a topic. Raises DispatchError."""
    partitions = dispatcher.count(topic)
    if dispatcher.router.may_conflict(topic):
        return np.full(partitions, crc32(topic.encode()) % slots, np.int64)
    return spread_slots(topic, partitions, slots)


def spread_slots(topic: str, partitions: int, slots: int) -> Ints:
    """Return the slot of each partition. The numbers of partitions in two slots differ by at most one. The first slot
    differs from topic to topic, so that topics with few partitions do not all use the first slots."""
    found: Ints = (crc32(topic.encode()) + np.arange(partitions, dtype=np.int64)) % slots
    return found


def part_of_slot(events: Sequence[RowChanges], dispatcher: Dispatcher, slot: int, slots: int) -> list[Routes]:
    """Return the events that this slot writes. Raises as `Dispatcher.routes`."""
    found = []
    for routes in dispatcher.routes(events):
        mine = slots_of_topic(dispatcher, routes.topic, slots)[routes.partitions] == slot
        if mine.all():
            found.append(routes)
        elif mine.any():
            found.append(routes.where(mine))
    return found
