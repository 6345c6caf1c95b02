"""Changes to slots: one slot has all of a partition, so that a task alone writes it, in order.

A change belongs to the slots of both its images: a row that moves to another partition leaves one and comes to another.
What a slot makes of its changes is, of each partition that is its own, what a task would make that had all of them;
`part_of_slot` leaves the rest out. There is one exception. Where updates stay whole (`raw`) and their partition is not
chosen by the handle key, an event that sums up several changes of a row in one transaction may have a later old image,
or be an update and not an insert.

A topic that has tables dispatched by conflict is in one slot, with whatever else goes there: who belongs together is
known only from all rows of a table, and a partition that several tables share must be one task's.
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
    """See sink.base.Slotting. `count`: the most slots that a batch may have. What it says depends on the dispatcher's
    rules and on how many partitions each topic has: a sink records both with an intent, and goes on with them."""

    dispatcher: Dispatcher
    count: int
    version: int = SLOTTING_VERSION
    is_fixed: bool = False
    _events: RowEvents = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_events", RowEvents(selectors=self.dispatcher.router.selectors))

    def slots_of(self, changes: Changes, slots: int) -> Sequence[Ints]:
        """Raises DispatchError."""
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
    """The slot of each partition of a topic. Raises DispatchError."""
    partitions = dispatcher.count(topic)
    if dispatcher.router.may_conflict(topic):
        return np.full(partitions, crc32(topic.encode()) % slots, np.int64)
    return spread_slots(topic, partitions, slots)


def spread_slots(topic: str, partitions: int, slots: int) -> Ints:
    """All slots have as many, or one more than others. Where topics begin differs, so that those of few partitions are
    not all in the first slots."""
    found: Ints = (crc32(topic.encode()) + np.arange(partitions, dtype=np.int64)) % slots
    return found


def part_of_slot(events: Sequence[RowChanges], dispatcher: Dispatcher, slot: int, slots: int) -> list[Routes]:
    """Of a slot's events those that it writes. Raises as `Dispatcher.routes`."""
    found = []
    for routes in dispatcher.routes(events):
        mine = slots_of_topic(dispatcher, routes.topic, slots)[routes.partitions] == slot
        if mine.all():
            found.append(routes)
        elif mine.any():
            found.append(routes.where(mine))
    return found
