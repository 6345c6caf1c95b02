"""Packs a batch's net rows, divided into slots, into bytes for a shuffle, and unpacks them (rules 10 and 16).

Blob: the byte BLOB_VERSION, then marshal of (tables, ordered, change count, source bytes), where a table is (shape, net
states) and an ordered change is (shape's index, kind, old, new, commit_ts, start_ts, sequence). Marshal is the fastest
serializer in Python. Its format may differ between versions of Python, but within a batch both ends run the same
interpreter, and blobs are not stored.

A batch may be divided into parts anywhere: changes of one key can be in several parts, and a transaction that is stored
on two pumps is in two parts. Merging keeps the last state of each key and removes duplicates.
"""

from __future__ import annotations

import marshal
from collections.abc import Collection, Iterable, Mapping, Sequence
from struct import Struct
from typing import Any
from zlib import crc32

from drainer.batch.work import Folded, KeyChange, Kind, Match, NetRow, Ordered, SegmentWork, TableShape
from drainer.order.errors import BlobError
from drainer.order.key_states import NetState, in_one_order
from drainer.order.slot import ORDERED_SLOT, table_seed

BLOB_VERSION = 4
_TOTALS = Struct("<QQ")
KINDS = tuple(Kind)
MATCHES = tuple(Match)


def pack_slots(
    slots: int,
    tables: Sequence[tuple[TableShape, list[NetState]]],
    ordered: Sequence[tuple[int, KeyChange]],
    change_count: int,
    source_bytes: int,
) -> dict[int, bytes]:
    """Slot → blob. `ordered`: (start_ts, change), for commit_ts alone does not tell transactions apart (X-15: TiDB
    computes some instead of asking PD). The counts are those of the whole part and are in one of its blobs."""
    parts: dict[int, tuple[list[Any], list[Any]]] = {}
    for shape, states in tables:
        table = packed_shape(shape)
        for slot, chosen in _by_slot(shape.table_id, states, slots).items():
            parts.setdefault(slot, ([], []))[0].append((table, chosen))
    if ordered:
        parts.setdefault(ORDERED_SLOT, ([], []))[1].extend(_pack_ordered(ordered))
    blobs = {}
    for slot, (folded, changes) in sorted(parts.items()):
        blobs[slot] = bytes((BLOB_VERSION,)) + marshal.dumps((folded, changes, change_count, source_bytes))
        change_count = source_bytes = 0
    return blobs


def _by_slot(table_id: int, states: list[NetState], slots: int) -> dict[int, list[NetState]]:
    seed = table_seed(table_id)
    chosen: list[list[NetState]] = [[] for _ in range(slots)]
    for state in states:
        chosen[crc32(state[0], seed) % slots].append(state)  # slot_of, without its calls
    return {slot: found for slot, found in enumerate(chosen) if found}


def packed_shape(shape: TableShape) -> tuple[object, ...]:
    return (
        shape.table_id,
        shape.schema,
        shape.table,
        shape.columns,
        shape.key,
        shape.why_ordered,
        shape.secondary_unique,
        tuple(int(m) for m in shape.match),
        shape.collations,
        shape.upserts,
        shape.row_key,
        shape.unique,
        shape.fractions,
        shape.type_classes,
    )


def shape_of(fields: tuple[Any, ...]) -> TableShape:
    table_id, schema, table, columns, key, why_ordered, secondary_unique, match, *more = fields
    matches = tuple(MATCHES[m] for m in match)
    return TableShape(table_id, schema, table, columns, key, why_ordered, secondary_unique, matches, *more)


def _pack_ordered(changes: Sequence[tuple[int, KeyChange]]) -> list[Any]:
    """[shapes, changes]"""
    shapes: dict[TableShape, int] = {}
    packed = [
        (shapes.setdefault(c.shape, len(shapes)), int(c.kind), c.old, c.new, c.commit_ts, start_ts, c.sequence)
        for start_ts, c in changes
    ]
    return [[packed_shape(s) for s in shapes], packed]


def merge_slot(blobs: Iterable[bytes], after_ts: int = 0, until_ts: int = 0) -> SegmentWork:
    """Return one slot's work from the blobs of all parts of a batch, which may be in any order. Raises BlobError."""
    merge = _Merge()
    for blob in blobs:
        merge.add(blob)
    return merge.work(after_ts, until_ts)


def without_tables(blob: bytes, ids: Collection[int]) -> tuple[bytes, list[tuple[TableShape, list[NetState]]]]:
    """The blob without some tables, by id, and those of them that it had. Raises BlobError."""
    tables, ordered, change_count, source_bytes = load(blob)
    taken = [(shape_of(fields), states) for fields, states in tables if fields[0] in ids]
    kept = [(fields, states) for fields, states in tables if fields[0] not in ids]
    return bytes((BLOB_VERSION,)) + marshal.dumps((kept, ordered, change_count, source_bytes)), taken


def last_change(blobs: Iterable[bytes], table_id: int, identity: bytes) -> int:
    """The commit_ts of the last change of a key in the blobs of its slot, 0 if it is not in them."""
    tables = (table for blob in blobs for table in load(blob)[0] if table[0][0] == table_id)
    return max((state[4] for _, states in tables for state in states if state[0] == identity), default=0)


def with_totals(blobs: Mapping[int, bytes], slots: int, *, count: int, size: int) -> dict[int, bytes]:
    """Every slot's blob of a part, empty for a slot without rows, after the totals of the part: `count` binlogs of
    `size` bytes. So each slot gets the totals of all parts, and detects a missing one (rule 22)."""
    totals = packed_totals(count, size)
    return {slot: totals + blobs.get(slot, b"") for slot in range(slots)}


def packed_totals(count: int, size: int) -> bytes:
    """What `with_totals` puts before each blob."""
    return _TOTALS.pack(count, size)


def split_totals(marked: bytes) -> tuple[int, int, bytes]:
    """(count, size, blob) from a result of `with_totals`. Raises BlobError."""
    if len(marked) < _TOTALS.size:
        raise BlobError(f"a slot's blob of {len(marked)} bytes is damaged: it lacks its totals")
    count, size = _TOTALS.unpack_from(marked)
    return count, size, marked[_TOTALS.size :]


def load(blob: bytes) -> Any:
    """The content after the version. Raises BlobError."""
    if blob[:1] != bytes((BLOB_VERSION,)):
        raise BlobError(f"a slot's blob has version {blob[:1].hex() or 'none'}, not {BLOB_VERSION}")
    try:
        return marshal.loads(memoryview(blob)[1:])
    except (ValueError, EOFError, TypeError) as err:
        raise BlobError(f"a slot's blob of {len(blob)} bytes is damaged: {err}") from None


class _Merge:
    def __init__(self) -> None:
        self._tables: dict[int, tuple[tuple[Any, ...], dict[bytes, tuple[Any, ...]]]] = {}
        self._changes: dict[tuple[int, int, int], KeyChange] = {}
        self._change_count = 0
        self._source_bytes = 0

    def add(self, blob: bytes) -> None:
        tables, ordered, change_count, source_bytes = load(blob)
        self._change_count += change_count
        self._source_bytes += source_bytes
        for fields, states in tables:
            _, known = self._tables.setdefault(fields[0], (fields, {}))
            if not known:
                known.update([(state[0], state) for state in states])
                continue
            for state in states:
                other = known.get(state[0])
                known[state[0]] = state if other is None else _one(other, state)
        if ordered:
            shapes = [shape_of(fields) for fields in ordered[0]]
            for place, kind, old, new, commit_ts, start_ts, sequence in ordered[1]:
                change = KeyChange(shapes[place], KINDS[kind], old, new, commit_ts, sequence)
                self._changes[commit_ts, start_ts, sequence] = change

    def work(self, after_ts: int, until_ts: int) -> SegmentWork:
        folded = []
        for _, (fields, states) in sorted(self._tables.items()):
            rows = [NetRow(s[0], KINDS[s[1]], s[6], s[8]) for s in states.values()]
            rows.sort()
            folded.append(Folded(shape_of(fields), tuple(rows)))
        changes = tuple([change for _, change in sorted(self._changes.items())])
        return SegmentWork(after_ts, until_ts, tuple(folded), Ordered(changes), self._change_count, self._source_bytes)


def _one(a: NetState, b: NetState) -> NetState:
    """Two parts' states of one key: the later row, the earlier beginning, the images of both."""
    if a[4:6] > b[4:6]:
        a, b = b, a
    _, first, first_ts, first_sequence, *_ = min(a, b, key=lambda state: state[2:4])
    identity, _, _, _, last_ts, last_sequence, row, image, stale = b
    gone = dict.fromkeys(stale)
    if row is None or image is not None:
        gone.update(dict.fromkeys(a[8]))
        if a[7] is not None:
            gone[a[7]] = None
    if row is not None and image is not None:
        gone.pop(image, None)
    return identity, first, first_ts, first_sequence, last_ts, last_sequence, row, image, in_one_order(gone)
