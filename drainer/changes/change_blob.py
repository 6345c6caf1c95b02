"""A slot's changes, decoded and serialized for a shuffle. The task that writes a slot need not decode them again.

Blob: `<BIIQ` of CHANGES_BLOB, 0, the number of streams, and the bytes of binlogs in the part (in one of the part's
blobs, 0 in the others). Then, for each codec and kind: the length of its stream (`<I`) and the stream, an Arrow IPC
stream with one batch for each run of binlogs that were decoded together. A batch has the columns _STAMPS, then those of
the old image and of the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from struct import Struct
from struct import error as StructError
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from drainer.batch.work import Kind
from drainer.changes.decode import Changes, Columns
from drainer.changes.slot_blob import BlobError
from drainer.changes.texts import offsets_of
from drainer.changes.vector import Ints
from drainer.row.codec import Codec, Name

CHANGES_BLOB: Final = 35  # slots.py counts from 16
_HEAD: Final = Struct("<BIIQ")
_STAMPS: Final = (("commit_ts", pa.uint64()), ("start_ts", pa.uint64()), ("sequence", pa.int64()))
_PER_CHANGE: Final = (*(name for name, _ in _STAMPS), "order")
_NUMBER_BYTES: Final = 8

CodecNamed = Callable[[Name, int], Codec | None]  # Decoder.codec_named


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

    def blobs(self, source_bytes: int) -> dict[int, bytes]:
        """Return slot → blob, for the slots that have changes."""
        found = {}
        for slot in sorted(self._streams):
            streams = [_packed(of, stream) for of, stream in self._streams[slot].items()]
            found[slot] = pack_streams(_HEAD, CHANGES_BLOB, b"", streams, source_bytes)
            source_bytes = 0
        return found


def _packed(of: tuple[Name, Kind], stream: _Stream) -> Pieces:
    name, kind = of
    meta = {"name": " ".join(map(str, name)), "kind": str(int(kind)), "rows": str(stream.rows)}
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


def unpack_blob(blob: bytes, codec_named: CodecNamed) -> tuple[list[Changes], int]:
    """Return the changes, whose `order` is not yet known, and the bytes of binlogs as in the head. Raises BlobError,
    and what `codec_named` raises."""
    _, found, (source_bytes,) = unpack_streams(blob, _HEAD, CHANGES_BLOB, lambda stream: _changes(stream, codec_named))
    return [one for some in found for one in some], source_bytes


def _changes(stream: memoryview, codec_named: CodecNamed) -> list[Changes]:
    """Return the changes of each batch. Damaged bytes raise one of the errors that `unpack_streams` converts."""
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        schema = reader.schema
        batches = list(reader)
    meta = schema.metadata or {}
    if [(field.name, field.type) for field in schema][: len(_STAMPS)] != list(_STAMPS):
        raise ValueError(f"columns {schema.names[: len(_STAMPS)]}")
    kind, rows = Kind(int(meta[b"kind"])), sum(map(len, batches))
    if rows != int(meta[b"rows"]):  # an end mark where a batch should be
        raise ValueError(f"{rows} of {int(meta[b'rows'])} rows")
    name = tuple(map(int, meta[b"name"].split()))
    return [_of_batch(codec_named, name, kind, batch) for batch in batches]


def _of_batch(codec_named: CodecNamed, name: Name, kind: Kind, batch: Any) -> Changes:
    batch.validate(full=True)
    commit_ts, start_ts, sequence = (batch.column(at).to_numpy() for at in range(len(_STAMPS)))
    codec, images = codec_named(name, int(commit_ts.min())), batch.columns[len(_STAMPS) :]
    if codec is None:
        raise BlobError(f"a slot's blob has rows of table {name[0]}, which this schema leaves out")
    types = [column_type.decoded_type for column_type in codec.column_types]
    if [column.type for column in images] != types * (2 if kind is Kind.UPDATE else 1):
        raise BlobError(f"a slot's blob is damaged: rows of table {name[0]} have other columns than its own")
    old = None if kind is Kind.INSERT else tuple(images[: len(types)])
    new = None if kind is Kind.DELETE else tuple(images[-len(types) :])
    return Changes(codec, kind, commit_ts, start_ts, sequence, np.zeros(len(commit_ts), np.int64), old, new)


def sizes(changes: Changes) -> Ints:
    """Return the bytes of each change's images."""
    found = np.zeros(len(changes), np.int64)
    for column in (*(changes.old or ()), *(changes.new or ())):
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            found += np.diff(offsets_of(column))
        else:
            found += _NUMBER_BYTES
    return found


def joined(parts: Sequence[Changes], begin: int, end: int) -> Changes | None:
    """Return the changes of one codec and kind whose `order` is in [begin, end), in order; None if there are none."""
    chosen = [np.flatnonzero((one.order >= begin) & (one.order < end)) for one in parts]
    pairs = zip(parts, chosen, strict=True)
    some = [one if len(rows) == len(one) else one.take(rows) for one, rows in pairs if len(rows)]
    if not some:
        return None
    whole = some[0]
    if len(some) > 1:
        stamps: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in some]) for name in _PER_CHANGE}
        old, new = _concatenated([one.old for one in some]), _concatenated([one.new for one in some])
        whole = replace(whole, old=old, new=new, **stamps)
    return whole if bool((np.diff(whole.order) > 0).all()) else whole.take(np.argsort(whole.order))


def _concatenated(images: Sequence[Columns | None]) -> Columns | None:
    columns = [image for image in images if image is not None]
    return tuple(map(pa.concat_arrays, zip(*columns, strict=True))) if columns else None


def ordered(parts: Sequence[Changes]) -> Iterator[Changes]:
    """Yield the parts with the number of each of their changes in upstream's order, among the changes of all, as
    `order`. A duplicate, of a transaction that two pumps hold, gets -1."""
    if not parts:
        return
    commits, starts, sequence = (np.concatenate([getattr(one, name) for one in parts]) for name in _PER_CHANGE[:3])
    by_order = np.lexsort((sequence, starts, commits))
    again = np.zeros(len(by_order), np.bool_)
    if len(by_order) > 1:
        again[1:] = np.all([one[by_order][1:] == one[by_order][:-1] for one in (commits, starts, sequence)], axis=0)
    # by_order leads from a number to a change; `order` is its inverse, where duplicates take no number.
    order = np.full(len(by_order), -1, np.int64)
    order[by_order[~again]] = np.arange(len(by_order) - int(again.sum()))
    begin = 0  # the numbers are in the order of the concatenated parts again: each takes its own of them
    for one in parts:
        yield replace(one, order=order[begin : begin + len(one)])
        begin += len(one)


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
