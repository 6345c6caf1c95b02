"""Cutting a slot into transactions: from a total order, so that shuffles do not matter (correctness rule 16)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from drainer.batch.work import Folded, KeyChange, Kind, Match, NetRow, Ordered, SegmentWork, TableShape
from drainer.changes.net import columns_of
from drainer.sink.mysql.rows import slot_writer
from drainer.sink.mysql.rows.slot_writer import Phase, cut
from tests.support.net_rows import net_columns


def shape(table_id: int, unique: tuple[str, ...] = ()) -> TableShape:
    return TableShape(table_id, "d", f"t{table_id}", ("id",), (0,), unique, (Match.PLAIN,))


def net(number: int, size: int = 4) -> NetRow:
    return NetRow(b"%08d" % number, Kind.INSERT, b"x" * size, ())


def work(rng: random.Random) -> SegmentWork:
    """The same content in a shuffled order."""
    tables = []
    for table_id, unique in ((3, ()), (1, ("u",)), (2, ()), (4, ("u",))):
        rows = [net(n) for n in range(10)]
        rng.shuffle(rows)
        tables.append(Folded(shape(table_id, unique), net_columns(rows)))
    rng.shuffle(tables)
    ordered = [KeyChange(shape(9), Kind.INSERT, None, (b"%d" % n,), 100 + n // 3, n % 3) for n in range(10)]
    rng.shuffle(ordered)
    return SegmentWork(1, 2, tuple(tables), Ordered(tuple(ordered)), 0, 0)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("limit", [1, 3, 7, 1000])
def test_chunks_are_independent_of_arrival_order(phase: Phase, limit: int) -> None:
    rng = random.Random(5)
    first = cut(work(rng), phase, limit)
    assert all(cut(work(rng), phase, limit) == first for _ in range(20))
    assert all(chunk.rows <= limit for chunk in first)
    total = sum(chunk.rows for chunk in first)
    assert total == (50 if phase is Phase.DIRECT else 20)


def test_tables_with_secondary_unique_keys_come_in_last_chunks() -> None:
    """Ordered changes are never repeated by a fallback, because they are done before one can begin."""
    pieces = cut(work(random.Random(1)), Phase.DIRECT, 3)
    kinds = ["o" if c.ordered else "u" if c.folded[0].shape.secondary_unique else "p" for c in pieces]
    assert "".join(kinds) == "oooo" + "p" * 7 + "u" * 7
    assert all(not chunk.ordered for chunk in cut(work(random.Random(1)), Phase.INSERT, 3))


def test_tables_with_text_keys_come_in_last_chunks() -> None:
    """The destination may compare them more coarsely (rule 10), which an executor learns only when it writes."""
    text = replace(shape(1), collations=("utf8mb4_bin",))
    pieces = SegmentWork(
        1, 2, (Folded(text, net_columns([net(1)])), Folded(shape(2), net_columns([net(2)]))), Ordered(()), 0, 0
    )
    assert [c.folded[0].shape.table_id for c in cut(pieces, Phase.DIRECT, 1)] == [2, 1]
    assert [c.folded[0].shape.table_id for c in cut(pieces, Phase.DELETE, 1)] == [1]


def test_an_empty_slot_has_no_chunks() -> None:
    assert cut(SegmentWork(1, 2, (), Ordered(()), 0, 0), Phase.DIRECT, 10) == []


def where_full(sizes: list[list[int]], limit: int) -> list[list[tuple[int, int]]]:
    """By the rule itself: (table, row) of each chunk."""
    found: list[list[tuple[int, int]]] = [[]]
    size = 0
    for table, lengths in enumerate(sizes):
        for row, length in enumerate(lengths):
            found[-1].append((table, row))
            size += length
            if len(found[-1]) >= limit or size >= slot_writer.CHUNK_BYTES_MAX:
                found.append([])
                size = 0
    return [chunk for chunk in found if chunk]


@pytest.mark.parametrize("seed", range(30))
def test_chunks_end_where_rows_or_bytes_reach_their_limit(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_writer, "CHUNK_BYTES_MAX", 60)
    dice = random.Random(seed)
    limit = dice.choice([1, 3, 7, 1000])
    tables, sizes = [], []
    for table_id in range(1, 4):
        rows = [net(n, dice.choice([4, 4, 30, 90])) for n in range(dice.randrange(12))]
        rows = [row._replace(row=None, stale=(b"(1)",)) if dice.random() < 0.2 else row for row in rows]
        tables.append((shape(table_id), rows))
        sizes.append([len(row.row or b"") for row in rows])
    slot = SegmentWork(1, 2, tuple(Folded(s, net_columns(r)) for s, r in tables if r), Ordered(()), 0, 0)
    found = cut(slot, Phase.DIRECT, limit)
    assert [
        [(f.shape.table_id - 1, int(row.identity)) for f in chunk.folded for row in f.rows] for chunk in found
    ] == where_full(sizes, limit)
    assert [row for chunk in found for f in chunk.folded for row in f.rows] == [
        row for _, rows in tables for row in rows
    ]
    for folded in (f for chunk in found for f in chunk.folded):
        rows = list(folded.rows)
        assert list(columns_of(folded).live()) == [row.row for row in rows if row.row is not None]
        assert columns_of(folded).stale() == [key for row in rows for key in row.stale]


def test_slot_of_complete_transactions_is_one_chunk() -> None:
    """Rule 33: whatever its size; in the order of the others."""
    for all_of in (work(random.Random(1)), work(random.Random(2))):
        (chunk,) = cut(all_of, Phase.DIRECT, 0)
        assert [folded.shape.table_id for folded in chunk.folded] == [2, 3, 1, 4]
        assert (chunk.rows, [change.commit_ts for change in chunk.ordered]) == (50, [100 + n // 3 for n in range(10)])
    assert cut(SegmentWork(1, 2, (), Ordered(()), 0, 0), Phase.DIRECT, 0) == []
