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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from struct import Struct
from struct import error as StructError
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.batch.work import KeyChange, Kind, Match, Ordered, SegmentWork, TableShape
from drainer.changes.groups import NO_GROUPS, Groups, Links, assign_groups, linked, nodes_of, packed, unpacked
from drainer.changes.net import STATES, States, folded_of, merge
from drainer.changes.slot_blob import LINKS_SLOT, ORDERED_SLOT, BlobError
from drainer.row.codec import Format

# A slot's blob of several Arrow IPC streams: a head, the row-by-row part, then each stream with its length.
#
# The head is a Struct whose first three fields are the blob's version (one byte), the length of the row-by-row part and
# the number of streams; the caller may add more fields. A length is `<I`.
_SIZE: Final = Struct("<I")
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"  # of an IPC stream
_T = TypeVar("_T")
Pieces: TypeAlias = "Sequence[Any]"  # bytes and Arrow buffers, one after another: a blob copies each once


def ipc_batches(schema: Any, batches: Sequence[Any]) -> Pieces:
    """Return serialized record batches as an Arrow IPC stream. `schema`: that of the batches, with the stream's
    metadata.
    """
    return [schema.serialize(), *batches, _END]


def pack_streams(head: Struct, version: int, rest: bytes, streams: Sequence[Pieces], *fields: int) -> bytes:
    """Return a blob. `rest`: the row-by-row part; `fields`: the caller's fields of the head, after the first three."""
    sized = [piece for stream in streams for piece in (_SIZE.pack(sum(map(len, stream))), *stream)]
    return b"".join([head.pack(version, len(rest), len(streams), *fields), rest, *sized])


def unpack_streams(
    blob: bytes, head: Struct, version: int, read: Callable[[memoryview], _T]
) -> tuple[bytes, list[_T], tuple[int, ...]]:
    """Return the row-by-row part, the result of `read` for each stream, and the caller's fields of the head.

    Raises BlobError for another version, and for bytes that are missing, damaged, or too many."""
    what = f"a slot's blob of {len(blob)} bytes"
    if len(blob) < head.size or blob[0] != version:
        raise BlobError(f"{what} has version {blob[:1].hex() or 'none'}, not {version:x}")
    _, rest, count, *fields = head.unpack_from(blob)
    view, at = memoryview(blob), head.size + rest
    streams = []
    try:
        for _ in range(count):
            (size,) = _SIZE.unpack_from(blob, at)
            at += _SIZE.size + size
            streams.append(read(view[at - size : at]))
    except (StructError, pa.ArrowException, StopIteration, KeyError, TypeError, ValueError, OSError) as error:
        raise BlobError(f"{what} is damaged: {error}") from None
    if at != len(blob):
        raise BlobError(f"{what} is damaged: it should have {at}")
    return bytes(view[head.size : head.size + rest]), streams, tuple(fields)


BLOB_VERSION: Final = 18
_HEAD: Final = Struct("<BIIQQ")
_KINDS: Final = tuple(Kind)
_MATCHES: Final = tuple(Match)
_FIELDS: Final = tuple(one.name for one in fields(TableShape))
_MATCH: Final = _FIELDS.index("match")

# By (commit_ts, start_ts, sequence): commit_ts alone does not tell transactions apart (X-15: TiDB computes some instead
# of asking PD).
OrderedChanges = dict[tuple[int, int, int], KeyChange]


@dataclass
class FoldedPart:
    """What was folded of a part of a batch. `shapes`: by table id; `change_count`, `source_bytes`: see SegmentWork;
    `common`: table id → node, `links`: see groups.py. Of a transaction that was added twice, the changes are there
    once; in the counts it may be there twice."""

    shapes: dict[int, TableShape] = field(default_factory=dict)
    states: list[States] = field(default_factory=list)
    ordered: OrderedChanges = field(default_factory=dict)
    change_count: int = 0
    source_bytes: int = 0
    common: dict[int, int] = field(default_factory=dict)
    links: list[Links] = field(default_factory=list)

    def work(self, format_: Format, after_ts: int, until_ts: int, commits: int = 1) -> SegmentWork:
        folded = folded_of(self.shapes, merge(self.states), format_)
        changes = Ordered(tuple([change for _, change in sorted(self.ordered.items())]))
        return SegmentWork(after_ts, until_ts, folded, changes, self.change_count, self.source_bytes, commits)


def pack(part: FoldedPart, slots: int, groups: Groups = NO_GROUPS) -> dict[int, bytes]:
    """Return slot → blob; slots that get nothing have none. `groups`: the slots of the nodes that are not alone. A
    table without a node has its ordered changes in ORDERED_SLOT."""
    states, links = merge(part.states), linked(part.links)
    slot = groups.slots_of(nodes_of(states.table, states.identity, part.common), slots)
    found = {number: states.take(np.flatnonzero(slot == number)) for number in np.unique(slot).tolist()}
    nodes = np.array(list(part.common.values()), np.int64)
    slot_of = dict(zip(part.common, groups.slots_of(nodes, slots).tolist(), strict=True))
    in_order: dict[int, OrderedChanges] = {}
    for key, change in part.ordered.items():
        in_order.setdefault(slot_of.get(change.shape.table_id, ORDERED_SLOT), {})[key] = change
    blobs = {}
    counts = part.change_count, part.source_bytes
    for number in sorted({*found, *in_order, *([LINKS_SLOT] if len(links[0]) else [])}):
        mine = found.get(number)
        tables = np.unique(mine.table).tolist() if mine is not None else []
        shapes, changes = _packed({id_: part.shapes[id_] for id_ in tables}, in_order.get(number, {}))
        rest = marshal.dumps((shapes, changes, part.common, packed(links) if number == LINKS_SLOT else b""))
        streams = [] if mine is None else [ipc_batches(STATES, [_batch(mine).serialize()])]
        blobs[number] = pack_streams(_HEAD, BLOB_VERSION, rest, streams, *counts)
        counts = 0, 0
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


def _batch(states: States) -> Any:
    columns = [getattr(states, name) for name in STATES.names]
    arrays = [pa.array(column) if isinstance(column, np.ndarray) else column for column in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=STATES)


def _states(stream: memoryview) -> States:
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        batch = reader.read_next_batch()
    if batch.schema != STATES:
        raise ValueError(f"columns {batch.schema.names}")
    columns = [batch.column(at) for at in range(len(STATES))]
    numbers = [at for at, field in enumerate(STATES) if pa.types.is_integer(field.type)]
    return States(*(column.to_numpy() if at in numbers else column for at, column in enumerate(columns)))


def _unpacked_part(blobs: Iterable[bytes]) -> FoldedPart:
    """Return the contents of a slot's blobs. Raises BlobError."""
    part = FoldedPart()
    for blob in blobs:
        rest, streams, (change_count, source_bytes) = unpack_streams(blob, _HEAD, BLOB_VERSION, _states)
        try:
            shapes, changes, common, links = marshal.loads(rest)
            part.common |= common
            part.links += [unpacked(links)] if links else []
        except (ValueError, EOFError, TypeError) as error:
            raise BlobError(f"a slot's blob of {len(blob)} bytes is damaged: {error}") from None
        part.shapes |= {shape.table_id: shape for shape in map(_shape_of, shapes)}
        part.states += streams
        for table_id, kind, old, new, commit_ts, start_ts, sequence in changes:
            change = KeyChange(part.shapes[table_id], _KINDS[kind], old, new, commit_ts, sequence)
            part.ordered[commit_ts, start_ts, sequence] = change
        part.change_count += change_count
        part.source_bytes += source_bytes
    return part


def groups_of(blobs: Iterable[bytes], slots: int) -> bytes:
    """Assign the groups of transactions to slots, from all blobs of LINKS_SLOT. Return what `divide` needs, empty if
    each slot has complete groups already. Raises BlobError."""
    groups = assign_groups(_unpacked_part(blobs).links, slots)
    return packed((groups.nodes, groups.slots))


def divide(blobs: Iterable[bytes], slots: int, groups: bytes) -> dict[int, bytes]:
    """Divide one slot's blobs of all parts again, by the groups of their transactions. Raises BlobError."""
    part = _unpacked_part(blobs)
    part.links.clear()  # `groups` was made of them
    return pack(part, slots, Groups(*unpacked(groups)))


def last_change(blobs: Iterable[bytes], table_id: int, identity: bytes) -> int:
    """Return the commit_ts of the last change of a key in the blobs of its slot, 0 if they do not have the key."""
    found = 0
    for states in _unpacked_part(blobs).states:
        same = pc.equal(states.identity, pa.scalar(identity, pa.binary())).to_numpy(zero_copy_only=False)
        found = max(found, int(states.last_ts[same & (states.table == table_id)].max(initial=0)))
    return found


def merge_slot(blobs: Iterable[bytes], format_: Format, after_ts: int = 0, until_ts: int = 0) -> SegmentWork:
    """Return one slot's work from the blobs of all parts of a batch, in any order. Raises BlobError."""
    return _unpacked_part(blobs).work(format_, after_ts, until_ts)
