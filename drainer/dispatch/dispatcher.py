"""Assigns events to topics and partitions.

If the old and the new image of an update belong to different partitions, the update becomes a delete in the one and an
insert in the other. So all events of a row with these values are in one partition, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo

import numpy as np
import pyarrow as pa

from drainer.changes.decode import Columns
from drainer.changes.vector import Ints, Mask, Words
from drainer.dispatch.conflict import conflict_hashes, table_hashes
from drainer.dispatch.errors import DispatchError
from drainer.dispatch.merge import differ
from drainer.dispatch.partition import Hashes, row_hashes
from drainer.dispatch.row_events import halves_of
from drainer.dispatch.rules import Method, Router, Rule
from drainer.protocol.row_changes import RowChanges
from drainer.protocol.table import Table


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


class Dispatcher:
    """Routes events. `partitions`: the number of partitions of each topic; the creator of the dispatcher may add topics
    later. `zone`: the time zone in which TIMESTAMPs are converted to text. `raw`: updates stay updates, in the
    partition of their new image (TiCDC's output-raw-change-event)."""

    def __init__(self, router: Router, partitions: Mapping[str, int], zone: tzinfo, *, raw: bool = False) -> None:
        self.router = router
        self.partitions = partitions
        self.zone = zone
        self.raw = raw

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
