"""Assigns events to topics and partitions.

If the old and the new image of an update belong to different partitions, the update becomes a delete in the one and an
insert in the other. So all events of a row with these values are in one partition, in order.

Partition numbers are the same as TiCDC's: a hash of names and of values as text, for whole columns at a time,

    hash        xor of these CRC-32s: one of schema and table, and one of name and text of each column that counts
    partition   hash modulo the number of partitions

Dispatch by conflict, and what it guarantees (docs/dispatch.md): within one segment of one table, two events are
connected if they belong to one transaction, or if an image of the one has the same value of a primary or unique key as
an image of the other. All events that are connected, directly or through other events, go to the partition that
`index-value` computes from the smallest hash among their handle keys. The changes of a table by a transaction that
arrives in pieces go to a single partition: they are all connected, and no piece has all of them. Such a transaction is
a range of its own, with resolved events before and after it. The partitions do not depend on how the segment was read
or split. So a segment that is written again, over the same range of commit_ts, is written to the same partitions. The
producer writes a resolved event to every partition after each segment (it may do so more often).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError
from binlog.tidb.types import UNSPECIFIED, Tp

from drainer.changes.decode import Changes, Columns
from drainer.changes.groups import components
from drainer.changes.texts import as_binary
from drainer.changes.vector import Ints, Mask, Words
from drainer.dispatch import DispatchError
from drainer.dispatch.row_events import RowEvents, differ, halves_of, row_codes, transactions_of
from drainer.dispatch.rules import Method, Router, Rule
from drainer.protocol.column_text import each, texts_of
from drainer.protocol.table import RowChanges, Table
from drainer.row.column_type import NUMBERS, ColumnType, TypeClass
from drainer.row.layout import compared_as, comparison
from drainer.row.rules import mapped

Hashes = npt.NDArray[np.uint32]

_ONES: Final = 0xFFFF_FFFF


def hashed_texts(column_type: ColumnType, values: Any, zone: tzinfo) -> Any:
    """Convert an Arrow array of decoded values to a `binary` array of the texts that are hashed, with NULL for NULL.
    Raises DecodeError."""
    if column_type.type_class in NUMBERS:
        return as_binary(values.cast(pa.string()))
    if column_type.type_class is TypeClass.TEXT:
        return values
    if column_type.type_class is TypeClass.FLOAT:
        number = np.float32 if column_type.kind.tp is Tp.FLOAT else np.float64
        shown = each(lambda value: np.format_float_positional(number(value), unique=True, trim="-").encode())
        return shown(values)
    return texts_of(column_type, values, zone)


def _crcs(texts: Any, begin: int) -> Hashes:
    """Return crc32(text, begin) for each text, computed one byte position of all texts at a time. `texts`: short
    strings without NULL."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    at, lengths = offsets[:-1], np.diff(offsets)
    found: Hashes = np.full(len(texts), begin ^ _ONES, np.uint32)
    shortest = int(lengths.min()) if len(texts) else 0
    for number in range(shortest):
        found = _CRC.take((found ^ data[at + number]) & np.uint32(0xFF)) ^ (found >> np.uint32(8))
    for number in range(shortest, int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > number)
        crc = found[longer]
        found[longer] = _CRC[(crc ^ data[at[longer] + number]) & 0xFF] ^ (crc >> np.uint32(8))
    return found ^ np.uint32(_ONES)


# The table of CRC-32 for one byte.
_CRC: Final = np.array([crc32(bytes([byte]), _ONES) ^ _ONES for byte in range(256)], np.uint32)


def row_hashes(table: Table, column_indexes: Sequence[int], columns: Columns, count: int, zone: tzinfo) -> Hashes:
    """Return the hashes of `count` rows from their table and the columns at `column_indexes`. Raises DecodeError naming
    the column."""
    found = np.full(count, crc32(f"{table.schema}{table.name}".encode()), np.uint32)
    for column_index in column_indexes:
        column = table.columns[column_index]
        begin = crc32(column.name.encode())
        if column.column_type.type_class in NUMBERS:
            found ^= _crcs(pc.fill_null(hashed_texts(column.column_type, columns[column_index], zone), b"null"), begin)
            continue
        encoded = columns[column_index].dictionary_encode()
        try:
            texts = hashed_texts(column.column_type, encoded.dictionary, zone).to_pylist()
        except DecodeError as error:
            raise error.within(f"column `{table.schema}`.`{table.name}`.`{column.name}`") from None
        hashes = np.array([crc32(text, begin) for text in (b"null", *texts)], np.uint32)
        found ^= hashes[pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False) + 1]
    return found


def conflict_hashes(events: Sequence[RowChanges], zone: tzinfo) -> list[Hashes]:
    """Return the hashes of all events of one table in a segment, parallel to `events`."""
    table = events[0].table
    keys = [_unique_keys(one.table) for one in events]
    if any(of is None for of in keys) or not table.handle:
        return table_hashes(events, zone)
    own = np.concatenate([row_hashes(one.table, one.table.handle, one.image, len(one), zone) for one in events])
    transactions = np.unique(np.concatenate([transactions_of(one) for one in events]), return_inverse=True)[1]
    lowest = np.full(int(transactions.max(initial=-1)) + 1, np.iinfo(np.uint32).max, np.uint32)
    np.minimum.at(lowest, transactions, own)
    nodes, values = _edges(events, [of or {} for of in keys], transactions)
    label = components(len(lowest), nodes, values)
    smallest = np.full(len(lowest), np.iinfo(np.uint32).max, np.uint32)
    np.minimum.at(smallest, label, lowest)
    whole = smallest[label[transactions]]
    return np.split(whole, np.cumsum([len(one) for one in events])[:-1])


def table_hashes(events: Sequence[RowChanges], zone: tzinfo) -> list[Hashes]:
    """Return hashes that put all events in the table's one partition, parallel to `events`. They need no other events,
    so they also serve when not all events of the transaction are known."""
    return [row_hashes(one.table, (), one.image, len(one), zone) for one in events]


def _unique_keys(table: Table) -> dict[int, tuple[int, ...]] | None:
    """Return index id → positions of its columns. None if a unique key cannot be compared here."""
    info, found = table.info, {}
    for index in info.unique_indexes():
        columns = info.index_columns(index)
        if any(not column.is_virtual and column.name not in table.column_indexes for column in columns):
            continue  # left out by a column selector: no reader of these messages can have this key
        if any(part.length != UNSPECIFIED for part in index.columns):
            return None
        if any(column.name not in table.column_indexes or comparison(column.type) is None for column in columns):
            return None
        found[index.id] = tuple(table.column_indexes[column.name] for column in columns)
    return found


def _edges(
    events: Sequence[RowChanges], keys: Sequence[dict[int, tuple[int, ...]]], transactions: Ints
) -> tuple[Ints, Ints]:
    """Return a pair (transaction, value) for each value of a unique key that is in an image and not NULL."""
    begins = np.cumsum([0] + [len(one) for one in events])
    nodes, values, used = [], [], 0
    for key in sorted({key for of in keys for key in of}):
        parts: list[list[Any]] = []
        of_part: list[Ints] = []
        for number, (one, column_indexes) in enumerate(zip(events, keys, strict=True)):
            for image in (one.old, one.new) if key in column_indexes else ():
                if image is not None:
                    parts.append(_compared(one.table, column_indexes[key], image))
                    of_part.append(transactions[begins[number] : begins[number + 1]])
        columns = [pa.concat_arrays(list(same)) for same in zip(*parts, strict=True)]
        codes, whole = row_codes(columns), _whole(columns)
        nodes.append(np.concatenate(of_part)[whole])
        values.append(codes[whole] + used)
        used += int(codes.max(initial=0)) + 1
    if not nodes:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate(nodes), np.concatenate(values)


def _whole(columns: Sequence[Any]) -> Mask:
    """Return which rows have no NULL: a key with a NULL conflicts with no other."""
    found = np.ones(len(columns[0]), np.bool_)
    for column in columns:
        if column.null_count:
            found &= pc.is_valid(column).to_numpy(zero_copy_only=False)
    return found


def _compared(table: Table, column_indexes: Sequence[int], image: Columns) -> list[Any]:
    """Return the columns as bytes that are equal if and only if a key treats the values as equal, whatever table
    version wrote them."""
    found = []
    for column_index in column_indexes:
        show = _comparable(table.columns[column_index].column_type)
        found.append(mapped(image[column_index], show, pa.binary()))
    return found


def _comparable(column_type: ColumnType) -> Callable[[Any], bytes]:
    same = comparison(column_type.kind)
    assert same is not None, "a key that cannot be compared has its table in one partition"
    compare = compared_as(column_type, same)

    def shown(value: Any) -> bytes:
        found = value if compare is None else compare(value)
        return found if isinstance(found, bytes) else str(found).encode()

    return shown


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
        """Route all events of a segment, or of one slot of it (PartitionSlotting). `is_piece`: the segment
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
