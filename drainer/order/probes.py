"""Claims on unique values of a batch, divided into slots by value for a shuffle, and merged again (rule 21).

A blob is as in blob.py: the byte BLOB_VERSION, then marshal of tables, each with one unique key: (shape, places of the
key's columns, values), where a value is (as compared, claims, the key of its first holder here and that key as a
destination matches it, the value as a destination matches it).
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from zlib import crc32

from drainer.batch.work import Key, Probe, Row, TableShape
from drainer.order.blob import BLOB_VERSION, load, packed_shape, shape_of
from drainer.order.claims import Claim, ClaimedFold, first_holder, two_holders
from drainer.order.slot import table_seed
from drainer.row.key import identity

# One unique key: the shape (blob.packed_shape), the places of its columns, its values as above.
PackedTable: TypeAlias = "tuple[tuple[Any, ...], tuple[int, ...], list[Any]]"


def pack_claims(slots: int, folds: Iterable[ClaimedFold]) -> dict[int, bytes]:
    """Slot → blob, for slots that have claims."""
    tables: dict[int, list[Any]] = {}
    for fold in folds:
        shape, seed = packed_shape(fold.shape), table_seed(fold.shape.table_id)
        for number, key in enumerate(fold.keys):
            chosen: dict[int, list[Any]] = {}
            for value, claims in fold.claims[number].items():
                slot = crc32(identity(value), seed) % slots
                chosen.setdefault(slot, []).append(_packed(fold, number, value, claims))
            for slot, values in chosen.items():
                tables.setdefault(slot, []).append((shape, key.places, values))
    return {slot: bytes((BLOB_VERSION,)) + marshal.dumps(found) for slot, found in sorted(tables.items())}


def _packed(fold: ClaimedFold, number: int, value: object, claims: list[Claim]) -> tuple[object, ...]:
    holder = first_holder(claims)
    key = fold.key_row(holder)
    taken = {value if as_is is None else as_is for _, _, _, has, as_is in claims if has}
    return value, claims, holder, key, [fold.value_row(number, one) for one in taken]


@dataclass(slots=True)
class _Value:
    claims: list[Claim] = field(default_factory=list)
    keys: dict[object, Key] = field(default_factory=dict)
    rows: dict[Row, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Questions:
    """The result of the claims of a slot. `conflict`: why the batch must be applied transaction by transaction, '' if
    it need not; `probes`: conditions on the destination before the batch."""

    conflict: str
    probes: tuple[Probe, ...]


def merge_claims(blobs: Iterable[bytes]) -> Questions:
    """Merge one slot's blobs of all parts of a batch, in any order. Raises BlobError."""
    return merge_packed([table for blob in blobs for table in load(blob)])


def merge_packed(packed_tables: Iterable[PackedTable]) -> Questions:
    """As `merge_claims`, for the tables of the blobs."""
    tables: dict[tuple[int, tuple[int, ...]], tuple[tuple[Any, ...], dict[object, _Value]]] = {}
    for fields, places, packed in packed_tables:
        _, known = tables.setdefault((fields[0], places), (fields, {}))
        for value, claims, holder, key, rows in packed:
            one = known.setdefault(value, _Value())
            one.claims += claims
            one.keys[holder] = key
            one.rows.update(dict.fromkeys(rows))
    probes: list[Probe] = []
    for (_, places), (fields, found) in tables.items():
        shape = shape_of(fields)
        for one in found.values():
            one.claims.sort(key=_in_order)
            key = one.keys.get(first_holder(one.claims))
            if two_holders(one.claims) or key is None:
                return Questions(two_rows(shape, places), ())
            if one.rows:
                probes.append(Probe(shape, places, tuple(one.rows), key))
    return Questions("", tuple(probes))


def two_rows(shape: TableShape, places: Sequence[int]) -> str:
    """The text for two rows with the same value of the unique key of these columns."""
    columns = ", ".join(shape.columns[at] for at in places)
    return f"two rows of {shape.schema}.{shape.table} hold one value of ({columns})"


def _in_order(claim: Claim) -> tuple[int, int, bool]:
    """Within a change, values are given up before others are taken."""
    return claim[0], claim[1], claim[3]
