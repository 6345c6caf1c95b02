"""Divide the states of keys, and changes that stay in order, among slots, each as a blob for a shuffle, and merge them
again (rules 10 and 16).

Blob: `<BIIQQ` of BLOB_VERSION, the length of the marshalled part, the number of streams, and the numbers of changes and
of bytes of binlogs. Then marshal of (shapes, ordered changes, nodes of tables, links), where a shape is the tuple of a
TableShape's fields, a change (table id, kind, old, new, commit_ts, start_ts, sequence), and the links of the complete
part are in the blob of one slot (groups.py; nodes and links are empty unless transactions are shown whole). Then, if
there are states, the length of their stream (`<I`) and the stream, an Arrow IPC stream of one batch. The counts are
those of the complete part, in one of its blobs and 0 in the others. Marshal is the fastest serializer in Python. Its
format may differ between versions of Python, but within a batch both ends run the same interpreter, and blobs are not
stored.

A batch may be divided into parts anywhere: changes of one key can be in several parts, and a transaction that is stored
on two pumps is in two parts. Merging keeps the last state of each key and removes duplicates.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from struct import Struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.batch.work import KeyChange, Kind, Match, Ordered, SegmentWork, TableShape
from drainer.changes.groups import NO_GROUPS, NO_LINKS, Groups, Links, assign_groups, nodes_of, packed, unpacked
from drainer.changes.net import IMAGES, States, merge
from drainer.changes.net_rows import folded_of
from drainer.changes.stream_blob import ipc_stream, pack_streams, unpack_streams
from drainer.order.blob_pieces import BlobError
from drainer.order.slot import LINKS_SLOT, ORDERED_SLOT
from drainer.row.format import Format

BLOB_VERSION: Final = 18
_HEAD: Final = Struct("<BIIQQ")
_KINDS: Final = tuple(Kind)
_MATCHES: Final = tuple(Match)
_FIELDS: Final = tuple(one.name for one in fields(TableShape))
_MATCH: Final = _FIELDS.index("match")
_SCHEMA: Final = pa.schema(
    [
        ("table", pa.int64()),
        ("identity", pa.binary()),
        ("first", pa.int64()),
        ("first_ts", pa.uint64()),
        ("first_sequence", pa.int64()),
        ("last_ts", pa.uint64()),
        ("last_sequence", pa.int64()),
        ("row", pa.binary()),
        ("image", pa.binary()),
        ("gone", IMAGES),
    ]
)

# By (commit_ts, start_ts, sequence): commit_ts alone does not tell transactions apart (X-15: TiDB computes some instead
# of asking PD).
OrderedChanges = dict[tuple[int, int, int], KeyChange]


@dataclass(frozen=True, slots=True)
class Whole:
    """What of a part decides about its slots beside the keys of its rows, see groups.py. `common`: table id → node."""

    common: dict[int, int] = field(default_factory=dict)
    links: Links = NO_LINKS
    groups: Groups = NO_GROUPS


def pack(
    shapes: Mapping[int, TableShape],
    states: States,
    ordered: OrderedChanges,
    slots: int,
    change_count: int,
    source_bytes: int,
    whole: Whole,
) -> dict[int, bytes]:
    """Return slot → blob; slots that get nothing have none. `shapes`: by table id, of the states' tables. A table
    without a node has its ordered changes in ORDERED_SLOT."""
    slot = whole.groups.slots_of(nodes_of(states.table, states.identity, whole.common), slots)
    found = {number: states.take(np.flatnonzero(slot == number)) for number in np.unique(slot).tolist()}
    nodes = np.array(list(whole.common.values()), np.int64)
    slot_of = dict(zip(whole.common, whole.groups.slots_of(nodes, slots).tolist(), strict=True))
    in_order: dict[int, OrderedChanges] = {}
    for key, change in ordered.items():
        in_order.setdefault(slot_of.get(change.shape.table_id, ORDERED_SLOT), {})[key] = change
    blobs = {}
    for number in sorted({*found, *in_order, *([LINKS_SLOT] if len(whole.links[0]) else [])}):
        mine = found.get(number)
        tables = np.unique(mine.table).tolist() if mine is not None else []
        links = packed(whole.links) if number == LINKS_SLOT else b""
        parts = _packed({id_: shapes[id_] for id_ in tables}, in_order.get(number, {}))
        rest = marshal.dumps((*parts, whole.common, links))
        streams = [] if mine is None else [ipc_stream(_arrays(mine), _SCHEMA)]
        blobs[number] = pack_streams(_HEAD, BLOB_VERSION, rest, streams, change_count, source_bytes)
        change_count = source_bytes = 0
    return blobs


def _packed(shapes: dict[int, TableShape], ordered: OrderedChanges) -> tuple[list[Any], list[Any]]:
    every = dict(shapes)
    changes = []
    for (commit_ts, start_ts, sequence), change in ordered.items():
        table_id = change.shape.table_id
        every.setdefault(table_id, change.shape)
        changes.append((table_id, int(change.kind), change.old, change.new, commit_ts, start_ts, sequence))
    return [_packed_shape(shape) for shape in every.values()], changes


def _packed_shape(shape: TableShape) -> tuple[object, ...]:
    found = [getattr(shape, name) for name in _FIELDS]
    found[_MATCH] = tuple(map(int, shape.match))  # marshal writes no enum
    return tuple(found)


def _shape_of(packed: tuple[Any, ...]) -> TableShape:
    found = list(packed)
    found[_MATCH] = tuple(_MATCHES[match] for match in found[_MATCH])
    return TableShape(*found)


def _arrays(states: States) -> list[Any]:
    columns = [getattr(states, name) for name in _SCHEMA.names]
    return [pa.array(column) if isinstance(column, np.ndarray) else column for column in columns]


def _states(stream: memoryview) -> States:
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        batch = reader.read_next_batch()
    if batch.schema != _SCHEMA:
        raise ValueError(f"columns {batch.schema.names}")
    columns = [batch.column(at) for at in range(len(_SCHEMA))]
    numbers = [at for at, field in enumerate(_SCHEMA) if pa.types.is_integer(field.type)]
    return States(*(column.to_numpy() if at in numbers else column for at, column in enumerate(columns)))


class _Merge:
    """The contents of a slot's blobs."""

    def __init__(self, blobs: Iterable[bytes]) -> None:
        """Raises BlobError."""
        self.shapes: dict[int, TableShape] = {}
        self.states: list[States] = []
        self.ordered: OrderedChanges = {}
        self.change_count = 0
        self.source_bytes = 0
        self.common: dict[int, int] = {}
        self.links: list[Links] = []
        for blob in blobs:
            rest, streams, (change_count, source_bytes) = unpack_streams(blob, _HEAD, BLOB_VERSION, _states)
            try:
                shapes, changes, common, links = marshal.loads(rest)
                self.common |= common
                self.links += [unpacked(links)] if links else []
            except (ValueError, EOFError, TypeError) as error:
                raise BlobError(f"a slot's blob of {len(blob)} bytes is damaged: {error}") from None
            self.shapes |= {shape.table_id: shape for shape in map(_shape_of, shapes)}
            self.states += streams
            for table_id, kind, old, new, commit_ts, start_ts, sequence in changes:
                change = KeyChange(self.shapes[table_id], _KINDS[kind], old, new, commit_ts, sequence)
                self.ordered[commit_ts, start_ts, sequence] = change
            self.change_count += change_count
            self.source_bytes += source_bytes


def groups_of(blobs: Iterable[bytes], slots: int) -> bytes:
    """Assign the groups of transactions to slots, from all blobs of LINKS_SLOT. Return what `divide` needs, empty if
    each slot has complete groups already. Raises BlobError."""
    groups = assign_groups(_Merge(blobs).links, slots)
    return packed((groups.nodes, groups.slots))


def divide(blobs: Iterable[bytes], slots: int, groups: bytes) -> dict[int, bytes]:
    """Divide one slot's blobs of all parts again, by the groups of their transactions. Raises BlobError."""
    part = _Merge(blobs)
    states, whole = merge(part.states), Whole(part.common, groups=Groups(*unpacked(groups)))
    return pack(part.shapes, states, part.ordered, slots, part.change_count, part.source_bytes, whole)


def last_change(blobs: Iterable[bytes], table_id: int, identity: bytes) -> int:
    """Return the commit_ts of the last change of a key in the blobs of its slot, 0 if they do not have the key."""
    found = 0
    for states in _Merge(blobs).states:
        same = pc.equal(states.identity, pa.scalar(identity, pa.binary())).to_numpy(zero_copy_only=False)
        found = max(found, int(states.last_ts[same & (states.table == table_id)].max(initial=0)))
    return found


def merge_slot(blobs: Iterable[bytes], format_: Format, after_ts: int = 0, until_ts: int = 0) -> SegmentWork:
    """Return one slot's work from the blobs of all parts of a batch, in any order. Raises BlobError."""
    slot = _Merge(blobs)
    folded = folded_of(slot.shapes, merge(slot.states), format_)
    changes = tuple([change for _, change in sorted(slot.ordered.items())])
    return SegmentWork(after_ts, until_ts, folded, Ordered(changes), slot.change_count, slot.source_bytes)
