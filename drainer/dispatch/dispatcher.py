"""Assigns events to topics and partitions.

If the old and the new image of an update belong to different partitions, the update becomes a delete in the one and an
insert in the other. So all events of a row with these values are in one partition, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Final
from zlib import crc32

import numpy as np
import pyarrow as pa

from drainer.changes.decode import Changes, Columns
from drainer.changes.vector import Ints, Mask, Words
from drainer.dispatch import DispatchError
from drainer.dispatch.partition import Hashes, conflict_hashes, row_hashes, table_hashes
from drainer.dispatch.row_events import RowEvents, differ, halves_of
from drainer.dispatch.rules import Method, Router, Rule
from drainer.protocol.table import RowChanges, Table


@dataclass(frozen=True, slots=True)
class Routes:
    """Events of one table and kind in `topic`, and the partition of each."""

    changes: RowChanges
    topic: str
    partitions: Ints

    def __len__(self) -> int:
        return len(self.partitions)

    def where(self, chosen: Mask) -> Routes:
        return self if bool(chosen.all()) else self._at(np.flatnonzero(chosen))

    def by_partition(self) -> Routes:
        """Return the same events grouped by partition. Within a partition they keep their order."""
        if bool((np.diff(self.partitions) >= 0).all()):
            return self
        return self._at(np.argsort(self.partitions, kind="stable"))

    def _at(self, column_indexes: Ints) -> Routes:
        return Routes(self.changes.take(column_indexes), self.topic, self.partitions[column_indexes])


@dataclass(eq=False)
class Dispatcher:
    """Routes events. `partitions`: the number of partitions of each topic; the creator of the dispatcher may add topics
    later. `zone`: the time zone in which TIMESTAMPs are converted to text. `raw`: updates stay updates, in the
    partition of their new image (TiCDC's output-raw-change-event)."""

    router: Router
    partitions: Mapping[str, int]
    zone: tzinfo
    raw: bool = False

    def count(self, topic: str) -> int:
        """Return the number of partitions of a topic. Raises DispatchError if it is not known."""
        found = self.partitions.get(topic, 0)
        if found < 1:
            raise DispatchError(f"topic {topic}: the number of its partitions is not known")
        return found

    def routes(self, events: Sequence[RowChanges], *, is_piece: bool = False) -> list[Routes]:
        """Route all events of a segment, or of one slot of it (drainer/dispatch/slotting.py). `is_piece`: the segment
        has only a part of a transaction. Raises DispatchError, and DecodeError for a value that a column of its type
        cannot hold."""
        found: list[Routes] = []
        conflicting: dict[tuple[int, str], list[RowChanges]] = {}
        for changes in events:
            table = changes.table
            rule = self.router.rule(table.schema, table.name)
            if rule.method is Method.CONFLICT:
                conflicting.setdefault((table.id, table.schema), []).append(changes)
            else:
                found += self._route(changes, rule)
        for group in conflicting.values():
            topic = self.router.topic(group[0].table.schema, group[0].table.name)
            hashes = table_hashes(group, self.zone) if is_piece else conflict_hashes(group, self.zone)
            for changes, of_rows in zip(group, hashes, strict=True):
                found.append(Routes(changes, topic, self._modulo(of_rows, topic)))
        return found

    def image_partitions(self, table: Table, rule: Rule, columns: Columns, commit_ts: Words) -> Ints:
        """Return the partition of each image, for a rule that needs no other image to decide."""
        topic = rule.topic.topic(table.schema, table.name)
        if rule.method is Method.TS:
            return (commit_ts % np.uint64(self.count(topic))).astype(np.int64)
        return self._modulo(row_hashes(table, rule.column_indexes(table), columns, len(commit_ts), self.zone), topic)

    def _route(self, changes: RowChanges, rule: Rule) -> Iterator[Routes]:
        table = changes.table
        topic = rule.topic.topic(table.schema, table.name)
        partitions = self.image_partitions(table, rule, changes.image, changes.commit_ts)
        if self.raw or changes.old is None or changes.new is None:
            yield Routes(changes, topic, partitions)
            return
        each = np.arange(len(changes))
        changed = np.flatnonzero(differ(changes.old, changes.new, rule.column_indexes(table), each, each))
        if not len(changed):
            yield Routes(changes, topic, partitions)
            return
        some = pa.array(changed)
        old = tuple(column.take(some) for column in changes.old)
        before = self.image_partitions(table, rule, old, changes.commit_ts[changed])
        moves = before != partitions[changed]
        moved = changed[moves]
        stays = np.ones(len(changes), np.bool_)
        stays[moved] = False
        if stays.any():
            yield Routes(changes, topic, partitions).where(stays)
        if len(moved):
            deletes, inserts = halves_of(changes, moved)
            yield Routes(deletes, topic, before[moves])
            yield Routes(inserts, topic, partitions[moved])

    def _modulo(self, hashes: Hashes, topic: str) -> Ints:
        return (hashes % np.uint32(self.count(topic))).astype(np.int64)


# Assigns changes to slots. All changes of a partition are in one slot, so that a single task writes the partition, in
# order.
#
# A change belongs to the slots of both its images: a row that moves to another partition leaves one slot and enters
# another. For each of its own partitions, a slot computes the same events as a task that has all changes;
# `part_of_slot` drops the events of other partitions. There is one exception. If updates stay updates (`raw`) and
# their partition is not chosen by the handle key, an event that merges several changes of a row in one transaction
# may have a later old image, or be an update instead of an insert.
#
# A topic that has tables dispatched by conflict is in one slot, with all other tables of the topic: only all rows of
# a table show which events belong together, and a partition that several tables share must be written by one task.

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
