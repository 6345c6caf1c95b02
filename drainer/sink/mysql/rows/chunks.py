"""Divides a slot's work into transactions by a total order (rule 16: same chunks): the same rows give the same chunks.
Pure.

The order: ordered changes by (commit_ts, sequence), then tables by (class, table id), their rows by identity. Tables
with secondary unique keys or keys of text are last: only their rows can conflict with others, and then nothing else of
the slot remains to be written. A change of this order needs a new HASH_VERSION.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from drainer.batch.work import Folded, KeyChange, SegmentWork
from drainer.changes.net import columns_of
from drainer.sink.errors import DestinationRefused
from drainer.sink.position import Stored

# The order in which the net rows of a distributed batch are written (rule 12: REPLACE evicts only stale rows).


class Phase(StrEnum):
    """A batch starts in DIRECT. If a row that it does not change conflicts in a unique key, all slots go through DELETE
    and then INSERT."""

    DIRECT = "direct"
    DELETE = "delete"
    INSERT = "insert"


def phase_of(stored: Stored, label: str) -> Phase:
    """Return the phase of the open range. Raises DestinationRefused."""
    try:
        return Phase(stored.stage)
    except ValueError:
        raise DestinationRefused(
            f"{label}: the open range in drainer_position has the phase {stored.stage!r}, which this version of "
            f"the drainer has not: start the one that wrote it once, to finish it"
        ) from None


# A constant, because another value would divide an open range differently.
CHUNK_BYTES_MAX: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """The rows of one transaction: ordered changes, or net rows of one or more tables."""

    ordered: tuple[KeyChange, ...] = ()
    folded: tuple[Folded, ...] = ()

    @property
    def rows(self) -> int:
        return len(self.ordered) + sum(len(folded.rows) for folded in self.folded)


def cut(work: SegmentWork, phase: Phase, chunk_rows: int) -> list[Chunk]:
    """The chunks of a slot in a phase. The phases DELETE and INSERT contain only tables whose rows may conflict. With
    0 `chunk_rows` the slot is one chunk, and only DIRECT is used."""
    unique = _sorted(folded for folded in work.folded if folded.shape.may_collide)
    if phase is not Phase.DIRECT:
        return list(_folded_chunks(unique, chunk_rows))
    plain = _sorted(folded for folded in work.folded if not folded.shape.may_collide)
    ordered = sorted(work.ordered.changes, key=lambda change: (change.commit_ts, change.sequence))
    if not chunk_rows:
        one = Chunk(tuple(ordered), (*plain, *unique))
        return [one] if one.rows else []
    return [
        *_ordered_chunks(ordered, chunk_rows),
        *_folded_chunks(plain, chunk_rows),
        *_folded_chunks(unique, chunk_rows),
    ]


def _sorted(tables: Iterator[Folded]) -> list[Folded]:
    return sorted(tables, key=lambda folded: folded.shape.table_id)


def _ordered_chunks(changes: Sequence[KeyChange], chunk_rows: int) -> Iterator[Chunk]:
    start = size = 0
    for at, change in enumerate(changes):
        size += sum(len(value) for value in (change.new or ()) if isinstance(value, bytes))
        if at + 1 - start >= chunk_rows or size >= CHUNK_BYTES_MAX:
            yield Chunk(ordered=tuple(changes[start : at + 1]))
            start, size = at + 1, 0
    if start < len(changes):
        yield Chunk(ordered=tuple(changes[start:]))


def _folded_chunks(tables: Sequence[Folded], chunk_rows: int) -> Iterator[Chunk]:
    """A chunk ends with the row with which it reaches `chunk_rows` or CHUNK_BYTES_MAX."""
    parts: list[Folded] = []
    count = size = 0
    for folded in tables:
        rows = columns_of(folded)
        # `reached`: the table's bytes up to each row, of which `behind` are in complete chunks. `size`: the bytes that
        # earlier tables have in this chunk.
        reached = np.cumsum(rows.sizes)
        at = behind = 0
        while at < len(rows):
            by_size = int(np.searchsorted(reached, behind + CHUNK_BYTES_MAX - size)) + 1
            end = min(at + chunk_rows - count, by_size)
            if end > len(rows):
                break
            yield Chunk(folded=(*parts, replace(folded, rows=rows[at:end])))
            parts, count, size, at, behind = [], 0, 0, end, int(reached[end - 1])
        if at < len(rows):
            parts.append(replace(folded, rows=rows[at:]))
            count += len(rows) - at
            size += int(reached[-1]) - behind
    if parts:
        yield Chunk(folded=tuple(parts))
