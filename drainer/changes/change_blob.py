"""A slot's changes, decoded and serialized for a shuffle. The task that writes a slot need not decode them again.

Blob: `<BIIQ` of CHANGES_BLOB, the length of the rows that are not decoded, the number of streams, and the bytes of
binlogs in the part (in one of the part's blobs, 0 in the others). The rows that are not decoded follow. Then, for each
table, schema_version and kind: the length of its stream (`<I`) and the stream, an Arrow IPC stream with one batch for
each run of binlogs that were decoded together. A batch has the columns _STAMPS, then those of the old image and of the
new one. Rows whose table can be found only from their own values (drainer.row.relocated_rows) are kept undecoded, as an
IPC stream of RAW_SCHEMA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from drainer.batch.work import Kind
from drainer.changes.decode import Changes
from drainer.changes.scan import Rows
from drainer.changes.slot_blob import BlobError
from drainer.changes.texts import offsets_of
from drainer.changes.vector import Ints, Words
from drainer.row.codec import Codec

CHANGES_BLOB: Final = 34  # slots.py counts from 16
_HEAD: Final = Struct("<BIIQ")
_STAMPS: Final = (("commit_ts", pa.uint64()), ("start_ts", pa.uint64()), ("sequence", pa.int64()))
RAW_SCHEMA: Final = pa.schema(
    [*_STAMPS, ("version", pa.int64()), ("table_id", pa.int64()), ("kind", pa.int8()), ("row", pa.binary())]
)
_NUMBER_BYTES: Final = 8

Name = tuple[int, int]  # (table id as rows carry it, schema_version): identifies the codec under one view


@dataclass(frozen=True, slots=True)
class Group:
    """Changes of one codec and kind in a blob. `columns`: those of the old image, then those of the new one."""

    name: Name
    kind: Kind
    commit_ts: Words
    start_ts: Words
    sequence: Ints
    columns: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.commit_ts)

    def sizes(self) -> Ints:
        """Return the bytes of each change's images."""
        found = np.zeros(len(self), np.int64)
        for column in self.columns:
            if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
                found += np.diff(offsets_of(column))
            else:
                found += _NUMBER_BYTES
        return found


@dataclass(frozen=True, slots=True)
class Blob:
    """The contents of a blob. `raw`: a table of RAW_SCHEMA, None without such rows; `source_bytes`: as in the head."""

    groups: list[Group]
    raw: Any | None
    source_bytes: int


@dataclass(slots=True)
class _Stream:
    """Batches of one schema, ready to be written. `rows`: the number of rows in all of them."""

    schema: Any
    batches: list[Any] = field(default_factory=list)
    rows: int = 0

    def add(self, batch: Any) -> None:
        self.batches.append(batch.serialize())
        self.rows += len(batch)


class PartPacker:
    """Divides the changes of a part among slots, and packs the changes of each slot into its blob."""

    def __init__(self) -> None:
        self._streams: dict[int, dict[tuple[Name, Kind], _Stream]] = {}
        self._undecoded: dict[int, _Stream] = {}

    def add(self, name: Name, changes: Changes, slots: Sequence[Ints]) -> None:
        """Add changes. Each belongs to the slots that all arrays name for it."""
        rows, ranges = divided(slots)
        batch = _batch(changes if len(ranges) == 1 else changes.take(rows))
        for slot, begin, end in ranges:
            streams = self._streams.setdefault(slot, {})
            of = name, changes.kind
            if of not in streams:
                streams[of] = _Stream(batch.schema)
            streams[of].add(batch.slice(begin, end - begin))

    def add_undecoded(self, rows: Rows, orders: Iterable[tuple[Ints, Sequence[Ints]]]) -> None:
        """Add rows that are not decoded. `orders`: the `order` of some of the rows, and their slots."""
        chosen: dict[int, list[Ints]] = {}
        for order, slots in orders:
            indexes, ranges = divided(slots)
            for slot, begin, end in ranges:
                chosen.setdefault(slot, []).append(order[indexes[begin:end]])
        for slot, found in chosen.items():
            some = rows.take(np.isin(rows.order, np.concatenate(found)))
            self._undecoded.setdefault(slot, _Stream(RAW_SCHEMA)).add(_raw_batch(some))

    def blobs(self, source_bytes: int) -> dict[int, bytes]:
        """Return slot → blob, for the slots that have changes."""
        found = {}
        for slot in sorted({*self._streams, *self._undecoded}):
            streams = [_packed(of, stream) for of, stream in self._streams.get(slot, {}).items()]
            raw = self._undecoded.get(slot)
            rest = b"".join(ipc_batches(raw.schema, raw.batches)) if raw is not None else b""
            found[slot] = pack_streams(_HEAD, CHANGES_BLOB, rest, streams, source_bytes)
            source_bytes = 0
        return found


def _packed(of: tuple[Name, Kind], stream: _Stream) -> Pieces:
    (table_id, version), kind = of
    meta = {"table_id": str(table_id), "version": str(version), "kind": str(int(kind)), "rows": str(stream.rows)}
    return ipc_batches(stream.schema.with_metadata(meta), stream.batches)


def divided(slots: Sequence[Ints]) -> tuple[Ints, list[tuple[int, int, int]]]:
    """Sort the changes by slot. Return (the indexes of the changes of one slot after another, ascending within a slot;
    for each slot: the slot, and where its indexes begin and end). A change that has the same slot in several arrays
    occurs once in it."""
    first, *others = slots
    if all(np.array_equal(first, other) for other in others):
        # numpy sorts numbers of up to 16 bits without comparing them (radix sort).
        rows = np.argsort(first.astype(np.min_scalar_type(int(first.max(initial=0)))), kind="stable")
        of = first[rows]
    else:
        pairs = np.unique(np.concatenate([slot * len(first) + np.arange(len(first)) for slot in slots]))
        of, rows = np.divmod(pairs, len(first))
    begins = np.flatnonzero(np.diff(of, prepend=-1)).tolist()
    return rows, list(zip(of[begins].tolist(), begins, [*begins, len(of)][1:], strict=True))


def _batch(changes: Changes) -> Any:
    images = [column for image in (changes.old, changes.new) if image is not None for column in image]
    fields = [*_STAMPS, *((str(at), column.type) for at, column in enumerate(images))]
    stamps = [pa.array(changes.commit_ts), pa.array(changes.start_ts), pa.array(changes.sequence)]
    return pa.RecordBatch.from_arrays([*stamps, *images], schema=pa.schema(fields))


def _raw_batch(rows: Rows) -> Any:
    *numbers, _ = RAW_SCHEMA
    data = pa.array([rows.row(number) for number in range(len(rows))], pa.binary())
    arrays = [*(pa.array(getattr(rows, one.name), one.type) for one in numbers), data]
    return pa.RecordBatch.from_arrays(arrays, schema=RAW_SCHEMA)


def unpack_blob(blob: bytes) -> Blob:
    """Raises BlobError."""
    raw, groups, (source_bytes,) = unpack_streams(blob, _HEAD, CHANGES_BLOB, _groups)
    return Blob([one for some in groups for one in some], _raw(raw, blob) if raw else None, source_bytes)


def _groups(stream: memoryview) -> list[Group]:
    """Yield one group for each batch. Damaged bytes raise one of the errors that `unpack_streams` converts."""
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        schema = reader.schema
        batches = list(reader)
    meta = schema.metadata or {}
    if [(field.name, field.type) for field in schema][: len(_STAMPS)] != list(_STAMPS):
        raise ValueError(f"columns {schema.names[: len(_STAMPS)]}")
    name, kind = (int(meta[b"table_id"]), int(meta[b"version"])), Kind(int(meta[b"kind"]))
    rows = sum(map(len, batches))
    if rows != int(meta[b"rows"]):  # an end mark where a batch should be
        raise ValueError(f"{rows} of {int(meta[b'rows'])} rows")
    return [_group(name, kind, batch) for batch in batches]


def _group(name: Name, kind: Kind, batch: Any) -> Group:
    batch.validate(full=True)
    commit_ts, start_ts, sequence = (batch.column(at).to_numpy() for at in range(len(_STAMPS)))
    return Group(name, kind, commit_ts, start_ts, sequence, tuple(batch.columns[len(_STAMPS) :]))


def _raw(stream: bytes, blob: bytes) -> Any:
    try:
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise BlobError(f"a slot's blob of {len(blob)} bytes is damaged: {error}") from None
    if table.schema != RAW_SCHEMA:
        raise BlobError(f"a slot's blob of {len(blob)} bytes is damaged: it has columns {table.schema.names}")
    return table


@dataclass(frozen=True, slots=True)
class OrderedGroup:
    """A group, and the number of each of its changes in upstream's order; -1 for a duplicate."""

    group: Group
    order: Ints


def changes_of(codec: Codec, groups: Sequence[OrderedGroup], begin: int, end: int) -> Changes | None:
    """Return the changes of one codec and kind whose numbers are in [begin, end), in order. Raises BlobError if they do
    not have the codec's columns."""
    kind, column_types = groups[0].group.kind, codec.column_types
    types = [column_type.decoded_type for column_type in column_types] * (2 if kind is Kind.UPDATE else 1)
    stamps: list[tuple[Words, Words, Ints, Ints]] = []
    columns: list[tuple[Any, ...]] = []
    for one in groups:
        group = one.group
        if [column.type for column in group.columns] != types:
            raise BlobError(f"a slot's blob is damaged: rows of table {group.name[0]} have other columns than its own")
        chosen = np.flatnonzero((one.order >= begin) & (one.order < end))
        if not len(chosen):
            continue
        stamps.append((group.commit_ts[chosen], group.start_ts[chosen], group.sequence[chosen], one.order[chosen]))
        some = pa.array(chosen)
        every = len(chosen) == len(group)
        columns.append(group.columns if every else tuple(column.take(some) for column in group.columns))
    if not stamps:
        return None
    commit_ts, start_ts, sequence, order = map(np.concatenate, zip(*stamps, strict=True))
    images = [pa.concat_arrays(parts) if len(parts) > 1 else parts[0] for parts in zip(*columns, strict=True)]
    if len(order) > 1 and not bool((np.diff(order) > 0).all()):
        by_order = np.argsort(order)
        commit_ts, start_ts, sequence, order = (of[by_order] for of in (commit_ts, start_ts, sequence, order))
        indexes = pa.array(by_order)
        images = [column.take(indexes) for column in images]
    old = None if kind is Kind.INSERT else tuple(images[: len(column_types)])
    new = None if kind is Kind.DELETE else tuple(images[-len(column_types) :])
    return Changes(codec, kind, commit_ts, start_ts, sequence, order, old, new)


def orders_of(stamps: Sequence[tuple[Words, Words, Ints]]) -> Iterator[Ints]:
    """Return for each group the number of each of its changes in upstream's order, among the changes of all groups. A
    duplicate, of a transaction that two pumps hold, gets -1. `stamps`: commit_ts, start_ts and sequence of each group.
    """
    commits, starts, sequence = (np.concatenate([one[at] for one in stamps]) for at in range(3))
    by_order = np.lexsort((sequence, starts, commits))
    again = np.zeros(len(by_order), np.bool_)
    if len(by_order) > 1:
        again[1:] = np.all([one[by_order][1:] == one[by_order][:-1] for one in (commits, starts, sequence)], axis=0)
    # by_order leads from a number to a change; `order` is its inverse, where duplicates take no number.
    order = np.full(len(by_order), -1, np.int64)
    order[by_order[~again]] = np.arange(len(by_order) - int(again.sum()))
    begin = 0  # the numbers are in the order of the concatenated groups again: each group takes its part of them
    for one in stamps:
        yield order[begin : begin + len(one[0])]
        begin += len(one[0])


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
