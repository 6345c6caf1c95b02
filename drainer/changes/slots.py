"""Divide one table's states among slots, each as an Arrow IPC stream for a shuffle, and merge them again (rules 10 and
16).

Blob: `<BIIQQ` of BLOB_VERSION, the length of the rows of tables without columns (order/blob.py), the number of tables
that follow, and the numbers of changes and of bytes of binlogs. Then the rows of tables without columns; then, for each
table, the length of its stream (`<I`) and the stream, whose schema has the TableShape as JSON. The counts are those of
the complete part, in one of its blobs and 0 in the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from struct import Struct
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.batch.work import Folded, Match, SegmentWork, TableShape
from drainer.changes.net import States, merge, states_from
from drainer.changes.net_rows import NetColumns
from drainer.changes.stream_blob import Pieces, ipc_stream, pack_streams, unpack_streams
from drainer.changes.vector import Ints
from drainer.order.blob import last_change as rest_last_change
from drainer.order.blob import merge_slot as merge_rest
from drainer.order.blob import without_tables
from drainer.order.slot import table_seed
from drainer.row.format import Format

BLOB_VERSION: Final = 16  # order/blob.py counts from 1
_HEAD: Final = Struct("<BIIQQ")
_SCHEMA: Final = [
    ("identity", pa.binary()),
    ("first", pa.int8()),
    ("first_ts", pa.uint64()),
    ("first_sequence", pa.int64()),
    ("last_ts", pa.uint64()),
    ("last_sequence", pa.int64()),
    ("row", pa.binary()),
    ("image", pa.binary()),
    ("gone", pa.list_(pa.binary())),
]

Tables = Mapping[int, tuple[TableShape, States]]  # by table id


def slots_of(table_id: int, identity: Any, slots: int) -> Ints:
    """Return order.slot.slot_of of each identity."""
    seed = table_seed(table_id)
    return np.array([crc32(one, seed) % slots for one in identity.to_pylist()], np.int64)


def pack(
    rest: Mapping[int, bytes], tables: Tables, slots: int, change_count: int, source_bytes: int
) -> dict[int, bytes]:
    """Return slot → blob; slots that get nothing have none. `rest`: the blobs of the rows without columns."""
    streams: dict[int, list[Pieces]] = {}
    for table_id, (shape, states) in sorted(tables.items()):
        slot = slots_of(table_id, states.identity, slots)
        for number in np.unique(slot).tolist():
            streams.setdefault(number, []).append(_stream(shape, states.take(np.flatnonzero(slot == number))))
    blobs = {}
    for number in sorted({*rest, *streams}):
        other, mine = rest.get(number, b""), streams.get(number, [])
        blobs[number] = pack_streams(_HEAD, BLOB_VERSION, other, mine, change_count, source_bytes)
        change_count = source_bytes = 0
    return blobs


def _stream(shape: TableShape, states: States) -> Pieces:
    count = len(states)
    image = pa.nulls(count, pa.binary()) if states.image is None else states.image
    lengths = np.zeros(count + 1, np.int32)
    for at, images in states.gone.items():
        lengths[at + 1] = len(images)
    stale = [one for _, images in sorted(states.gone.items()) for one in images]
    gone = pa.ListArray.from_arrays(pa.array(np.cumsum(lengths, dtype=np.int32)), pa.array(stale, pa.binary()))
    columns = [
        states.identity, states.first, states.first_ts, states.first_sequence, states.last_ts, states.last_sequence,
        states.row, image, gone,
    ]  # fmt: skip
    meta = {
        "shape": json.dumps(asdict(shape)),
        "imaged": _flag(states.image is not None),
        "number": _flag(states.of_number),
    }
    schema = pa.schema(_SCHEMA, metadata=meta)
    arrays = [
        pa.array(column, kind) if isinstance(column, np.ndarray) else column
        for column, (_, kind) in zip(columns, _SCHEMA, strict=True)
    ]
    return ipc_stream(arrays, schema)


def _flag(value: bool) -> str:
    return "1" if value else ""


def shape_from(text: str) -> TableShape:
    """Make a TableShape from its JSON."""
    fields = json.loads(text)
    for name in ("columns", "key", "secondary_unique", "collations", "row_key", "fractions", "type_classes"):
        fields[name] = tuple(fields[name])
    fields["match"] = tuple(Match(one) for one in fields["match"])
    fields["unique"] = tuple(tuple(one) for one in fields["unique"])
    return TableShape(**fields)


def _states(stream: memoryview) -> tuple[TableShape, States]:
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        meta = reader.schema.metadata
        batch = reader.read_next_batch()
    numbers = [batch.column(name).to_numpy() for name, _ in _SCHEMA[1:6]]
    first, first_ts, first_sequence, last_ts, last_sequence = numbers
    gone_column = batch.column("gone")
    places = np.flatnonzero(gone_column.value_lengths().to_numpy(zero_copy_only=False))
    images = gone_column.take(pa.array(places)).to_pylist()
    gone = {at: tuple(some) for at, some in zip(places.tolist(), images, strict=True)}
    image = batch.column("image") if meta[b"imaged"] else None
    states = States(
        batch.column("identity"), first.astype(np.int64), first_ts, first_sequence, last_ts, last_sequence,
        batch.column("row"), image, gone, bool(meta[b"number"]),
    )  # fmt: skip
    return shape_from(meta[b"shape"].decode()), states


@dataclass(frozen=True, slots=True)
class _Part:
    """A blob's contents. `rest`: the rows without columns; may be empty."""

    rest: bytes
    tables: list[tuple[TableShape, States]]
    change_count: int
    source_bytes: int


def _unpack(blob: bytes) -> _Part:
    rest, tables, (change_count, source_bytes) = unpack_streams(blob, _HEAD, BLOB_VERSION, _states)
    return _Part(rest, tables, change_count, source_bytes)


def _rests(parts: list[_Part], tables: dict[int, tuple[TableShape, list[States]]], format_: Format) -> list[bytes]:
    """Return the rows of all parts that have no columns. For a table that has columns only in some parts, the states of
    the others are added.
    """
    rests = []
    for part in parts:
        if part.rest:
            rest, taken = without_tables(part.rest, tables)
            rests.append(rest)
            for shape, rows in taken:
                states = tables[shape.table_id][1]
                states.append(states_from(rows, format_, of_number=states[0].of_number))
    return rests


def last_change(blobs: Iterable[bytes], table_id: int, identity: bytes) -> int:
    """Return the commit_ts of the last change of a key in the blobs of its slot, 0 if they do not have the key."""
    parts = [_unpack(blob) for blob in blobs]
    found = [rest_last_change([part.rest for part in parts if part.rest], table_id, identity)]
    for part in parts:
        for shape, states in part.tables:
            at = pc.index(states.identity, pa.scalar(identity, pa.binary())).as_py()
            if shape.table_id == table_id and at >= 0:
                found.append(int(states.last_ts[at]))
    return max(found)


def merge_slot(blobs: Iterable[bytes], format_: Format, after_ts: int = 0, until_ts: int = 0) -> SegmentWork:
    """Return one slot's work from the blobs of all parts of a batch, in any order. Raises BlobError."""
    parts = [_unpack(blob) for blob in blobs]
    found: dict[int, tuple[TableShape, list[States]]] = {}
    for part in parts:
        for shape, states in part.tables:
            found.setdefault(shape.table_id, (shape, []))[1].append(states)
    work = merge_rest(_rests(parts, found, format_), after_ts, until_ts)
    folded = [*work.folded, *(Folded(shape, NetColumns.of(merge(states), format_)) for shape, states in found.values())]
    folded.sort(key=lambda one: one.shape.table_id)
    return SegmentWork(
        after_ts,
        until_ts,
        tuple(folded),
        work.ordered,
        work.change_count + sum(part.change_count for part in parts),
        work.source_bytes + sum(part.source_bytes for part in parts),
    )
