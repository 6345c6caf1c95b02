"""Changes to slots: one slot has all of a partition, so that a task alone writes it, in order.

A change belongs to the slots of both its images: a row that moves to another partition leaves one and comes to another.
What a slot makes of its changes is, of each partition that is its own, what a task would make that had all of them;
`part_of_slot` leaves the rest out. There is one exception. Where updates stay whole (`raw`) and their partition is not
chosen by the handle key, an event that sums up several changes of a row in one transaction may have a later old image,
or be an update and not an insert.

Tables that are dispatched by conflict are each in one slot, whatever their partitions: who belongs together is known
only from all rows.
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
from drainer.dispatch.rules import Method
from drainer.protocol.row_changes import RowChanges

SLOTTING_VERSION: Final = 2


@dataclass(frozen=True)
class PartitionSlotting:
    """See sink.base.Slotting. `count`: the most slots that a batch may have. What it says depends on the dispatcher's
    rules and on how many partitions each topic has: a sink records both with an intent, and goes on with them."""

    dispatcher: Dispatcher
    count: int
    version: int = SLOTTING_VERSION
    is_fixed: bool = False
    _events: RowEvents = field(default_factory=RowEvents, repr=False, compare=False)

    def slots_of(self, changes: Changes, slots: int) -> Sequence[Ints]:
        """Raises DispatchError."""
        table = self._events.table(changes.codec)
        rule = self.dispatcher.router.rule(table.schema, table.name)
        topic = rule.topic.topic(table.schema, table.name)
        if rule.method is Method.CONFLICT:
            return [np.full(len(changes), slot_of_table(topic, table.schema, table.name, slots), np.int64)]
        slot = slots_of_topic(topic, self.dispatcher.count(topic), slots)
        return [
            slot[self.dispatcher.image_partitions(table, rule, image, changes.commit_ts)]
            for image in (changes.old, changes.new)
            if image is not None
        ]


def slots_of_topic(topic: str, partitions: int, slots: int) -> Ints:
    """The slot of each of its partitions: all slots have as many, or one more than others. Where topics begin differs,
    so that those of few partitions are not all in the first slots."""
    found: Ints = (crc32(topic.encode()) + np.arange(partitions, dtype=np.int64)) % slots
    return found


def slot_of_table(topic: str, schema: str, table: str, slots: int) -> int:
    return crc32(f"{topic}\0{schema}\0{table}".encode()) % slots


def part_of_slot(events: Sequence[RowChanges], dispatcher: Dispatcher, slot: int, slots: int) -> list[Routes]:
    """Of a slot's events those that it writes. Raises as `Dispatcher.routes`."""
    found = []
    for routes in dispatcher.routes(events):
        table = routes.changes.table
        if dispatcher.router.rule(table.schema, table.name).method is Method.CONFLICT:
            if slot_of_table(routes.topic, table.schema, table.name, slots) == slot:
                found.append(routes)
            continue
        mine = slots_of_topic(routes.topic, dispatcher.count(routes.topic), slots)[routes.partitions] == slot
        if mine.any():
            found.append(routes.where(mine))
    return found
