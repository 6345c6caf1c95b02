"""Divide claims on unique values among slots by value, as Arrow IPC streams for a shuffle. Then find, for each slot,
the conflicts among its claims or the questions to the destination (rule 21).

Blob: `<BII` of BLOB_VERSION, the length of the claims noted row by row (order/probes.py) and the number of streams;
then those claims; then, for each unique key and block of claims, the length of its stream (`<I`) and the stream, whose
schema describes the key as JSON. A part of a batch may have noted its claims in either form.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from struct import Struct
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa

from drainer.batch.work import TableShape
from drainer.changes.claims import Claims, concat_claims
from drainer.changes.key import joined_keys
from drainer.changes.questions import questions_of
from drainer.changes.slots import shape_from
from drainer.changes.stream_blob import Pieces, ipc_stream, pack_streams, unpack_streams
from drainer.changes.vector import Ints
from drainer.order.blob import load
from drainer.order.collector import collector_paused
from drainer.order.probes import PackedTable, Questions, merge_packed
from drainer.order.slot import table_seed
from drainer.row.family import Family
from drainer.row.format import Format

BLOB_VERSION: Final = 17  # changes/slots.py has 16
_HEAD: Final = Struct("<BII")
_SIGNED_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Claimed:
    """A unique key whose values are followed. `places`: its columns in the table's shape. Also the families of these
    columns, and of the columns of the key by which rows are folded."""

    shape: TableShape
    places: tuple[int, ...]
    families: tuple[Family, ...]
    key_families: tuple[Family, ...]


def pack_claims(
    rest: Mapping[int, bytes], claimed: Iterable[tuple[Claimed, Sequence[Claims]]], slots: int
) -> dict[int, bytes]:
    """Return slot → blob; slots without claims have none. `rest`: the blobs of claims that were noted row by row."""
    streams: dict[int, list[Pieces]] = {}
    for of, blocks in claimed:
        for block in concat_claims(blocks):
            slot = _slots_of(of.shape.table_id, block, slots)
            for number in np.unique(slot).tolist():
                streams.setdefault(number, []).append(_stream(of, block.take(np.flatnonzero(slot == number))))
    blobs = {}
    for number in sorted({*rest, *streams}):
        blobs[number] = pack_streams(_HEAD, BLOB_VERSION, rest.get(number, b""), streams.get(number, []))
    return blobs


def _slots_of(table_id: int, claims: Claims, slots: int) -> Ints:
    if slots == 1:
        return np.zeros(len(claims), np.int64)
    coded = joined_keys(claims.value).identity.dictionary_encode()
    seed = table_seed(table_id)
    slot = np.array([crc32(one, seed) % slots for one in coded.dictionary.to_pylist()], np.int64)
    found: Ints = slot[coded.indices.to_numpy()]
    return found


def _stream(of: Claimed, claims: Claims) -> Pieces:
    columns = [
        *((f"value{n}", one) for n, one in enumerate(claims.value)),
        *((f"shown{n}", one) for n, one in enumerate(claims.shown or ())),
        *((f"key{n}", one) for n, one in enumerate(claims.key)),
        ("commit_ts", pa.array(claims.commit_ts)),
        ("start_ts", pa.array(claims.start_ts)),
        ("sequence", pa.array(claims.sequence)),
        ("has", pa.array(claims.has)),
    ]
    meta = {
        "shape": json.dumps(asdict(of.shape)),
        "places": json.dumps(of.places),
        "families": json.dumps([one.value for one in of.families]),
        "key_families": json.dumps([one.value for one in of.key_families]),
    }
    schema = pa.schema([(name, column.type) for name, column in columns], metadata=meta)
    return ipc_stream([column for _, column in columns], schema)


def _claims(stream: memoryview) -> tuple[Claimed, Claims]:
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        meta = reader.schema.metadata
        batch = reader.read_next_batch()
    families, key_families = (
        tuple(Family(one) for one in json.loads(meta[name])) for name in (b"families", b"key_families")
    )
    of = Claimed(shape_from(meta[b"shape"].decode()), tuple(json.loads(meta[b"places"])), families, key_families)
    shown = tuple(batch.column(name) for name in batch.schema.names if name.startswith("shown"))
    return of, Claims(
        tuple(batch.column(f"value{n}") for n in range(len(families))),
        shown or None,
        tuple(batch.column(f"key{n}") for n in range(len(key_families))),
        batch.column("commit_ts").to_numpy(),
        batch.column("start_ts").to_numpy(),
        batch.column("sequence").to_numpy(),
        batch.column("has").to_numpy(zero_copy_only=False),
    )


@dataclass(slots=True)
class _Key:
    of: Claimed
    blocks: list[Claims] = field(default_factory=list)


def merge_claims(blobs: Iterable[bytes], format_: Format) -> Questions:
    """Return the conflict among the claims of one slot, or the questions to the destination. `blobs`: the slot's blobs
    from all parts of a batch, in any order. Raises BlobError."""
    with collector_paused():
        return _merge_claims(blobs, format_)


def _merge_claims(blobs: Iterable[bytes], format_: Format) -> Questions:
    keys: dict[tuple[int, tuple[int, ...]], _Key] = {}
    packed: list[PackedTable] = []
    for blob in blobs:
        rest, streams, _ = unpack_streams(blob, _HEAD, BLOB_VERSION, _claims)
        packed += load(rest) if rest else []
        for of, claims in streams:
            keys.setdefault((of.shape.table_id, of.places), _Key(of)).blocks.append(claims)
    rows: list[PackedTable] = []
    for table in packed:
        key = keys.get((table[0][0], table[1]))
        if key is None:
            rows.append(table)
        else:
            key.blocks += _noted(table, key.blocks[0].shown is not None)
    found = [merge_packed(rows)]
    for _, one in sorted(keys.items()):
        of = one.of
        found.append(questions_of(of.shape, of.places, of.families, of.key_families, one.blocks, format_))
    for asked in found:
        if asked.conflict:
            return asked
    return Questions("", tuple(probe for asked in found for probe in asked.probes))


def _noted(table: PackedTable, is_coarse: bool) -> list[Claims]:
    """Return as blocks the claims that were noted row by row. A column of numbers of which some are below 0 and some
    beyond the signed 64-bit range is split into several blocks."""
    groups: dict[tuple[bool, ...], list[tuple[tuple[object, ...], ...]]] = {}
    for value, claims, *_ in table[2]:
        for commit_ts, sequence, key, has, as_is in claims:
            cells = (_cells(value), _cells(as_is) if is_coarse else (), _cells(key))
            beyond = tuple(isinstance(cell, int) and cell > _SIGNED_MAX for some in cells for cell in some)
            groups.setdefault(beyond, []).append((*cells, (commit_ts, sequence, has)))
    return [_block(rows, is_coarse) for rows in groups.values()]


def _block(rows: Sequence[tuple[tuple[Any, ...], ...]], is_coarse: bool) -> Claims:
    value, shown, key, meta = (list(zip(*images, strict=True)) for images in zip(*rows, strict=True))
    commit_ts, sequence, has = meta
    return Claims(
        tuple(map(_column, value)),
        tuple(map(_column, shown)) if is_coarse else None,
        tuple(map(_column, key)),
        np.array(commit_ts, np.uint64),
        np.zeros(len(rows), np.uint64),
        np.array(sequence, np.int64),
        np.array(has, np.bool_),
    )


def _cells(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def _column(cells: Sequence[Any]) -> Any:
    if isinstance(cells[0], int):
        return pa.array(cells, pa.uint64() if cells[0] > _SIGNED_MAX else pa.int64())
    return pa.array([one.encode() if isinstance(one, str) else one for one in cells], pa.binary())
