"""Cutting a slot into transactions: from a total order, so that shuffles do not matter (correctness rule 16)."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from drainer.batch.work import Folded, KeyChange, Kind, Match, NetRow, Ordered, SegmentWork, TableShape
from drainer.changes.net import IMAGES
from drainer.changes.net_rows import NetColumns, live_rows, stale_keys
from drainer.sink.mysql.rows import chunks
from drainer.sink.mysql.rows.chunks import Phase, cut
from drainer.sink.mysql.rows.format import SQL_TEXT


def shape(table_id: int, unique: tuple[str, ...] = ()) -> TableShape:
    return TableShape(table_id, "d", f"t{table_id}", ("id",), (0,), "", unique, (Match.PLAIN,))


def net(number: int, size: int = 4) -> NetRow:
    return NetRow(b"%08d" % number, Kind.INSERT, b"x" * size, ())


def work(rng: random.Random) -> SegmentWork:
    """The same content in a shuffled order."""
    tables = []
    for table_id, unique in ((3, ()), (1, ("u",)), (2, ()), (4, ("u",))):
        rows = [net(n) for n in range(10)]
        rng.shuffle(rows)
        tables.append(Folded(shape(table_id, unique), tuple(rows)))
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
    pieces = SegmentWork(1, 2, (Folded(text, (net(1),)), Folded(shape(2), (net(2),))), Ordered(()), 0, 0)
    assert [c.folded[0].shape.table_id for c in cut(pieces, Phase.DIRECT, 1)] == [2, 1]
    assert [c.folded[0].shape.table_id for c in cut(pieces, Phase.DELETE, 1)] == [1]


def test_chunks_are_limited_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tuple(net(n, 100) for n in range(20))
    monkeypatch.setattr(chunks, "CHUNK_BYTES_MAX", 450)
    pieces = cut(SegmentWork(1, 2, (Folded(shape(1), rows),), Ordered(()), 0, 0), Phase.DIRECT, 1000)
    assert [chunk.rows for chunk in pieces] == [5, 5, 5, 5]


def test_an_empty_slot_has_no_chunks() -> None:
    assert cut(SegmentWork(1, 2, (), Ordered(()), 0, 0), Phase.DIRECT, 10) == []


def columns(rows: list[NetRow]) -> NetColumns:
    """The same rows as columns."""
    rows = sorted(rows)
    texts = [None if row.row is None else SQL_TEXT.pack(row.row) for row in rows]
    return NetColumns(
        SQL_TEXT,
        pa.array([row.identity for row in rows], pa.binary()),
        np.array([int(row.first) for row in rows], np.int64),
        pa.array(texts, pa.binary()),
        pa.array([[SQL_TEXT.pack_key(key) for key in row.stale] for row in rows], IMAGES),
    )


def where_full(sizes: list[list[int]], limit: int) -> list[list[tuple[int, int]]]:
    """By the rule itself: (table, row) of each chunk."""
    found: list[list[tuple[int, int]]] = [[]]
    size = 0
    for table, lengths in enumerate(sizes):
        for row, length in enumerate(lengths):
            found[-1].append((table, row))
            size += length
            if len(found[-1]) >= limit or size >= chunks.CHUNK_BYTES_MAX:
                found.append([])
                size = 0
    return [chunk for chunk in found if chunk]


@pytest.mark.parametrize("seed", range(30))
def test_chunks_of_columns_equal_chunks_of_rows(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open range that was begun one way is finished the other way: chunks that are done must be the same."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES_MAX", 60)
    dice = random.Random(seed)
    limit = dice.choice([1, 3, 7, 1000])
    tables, sizes = [], []
    for table_id in range(1, 4):
        rows = [net(n, dice.choice([4, 4, 30, 90])) for n in range(dice.randrange(12))]
        rows = [row._replace(row=None, stale=(b"(1)",)) if dice.random() < 0.2 else row for row in rows]
        tables.append((shape(table_id), rows))
        sizes.append([len(row.row or b"") for row in rows])
    one_by_one = SegmentWork(1, 2, tuple(Folded(s, tuple(r)) for s, r in tables), Ordered(()), 0, 0)
    as_columns = SegmentWork(1, 2, tuple(Folded(s, columns(r)) for s, r in tables if r), Ordered(()), 0, 0)
    expected = where_full(sizes, limit)
    for work_ in (one_by_one, as_columns):
        found = cut(work_, Phase.DIRECT, limit)
        places = [[(f.shape.table_id - 1, int(row.identity)) for f in c.folded for row in f.rows] for c in found]
        assert places == expected
    assert [list(f.rows) for c in cut(one_by_one, Phase.DIRECT, limit) for f in c.folded] == [
        list(f.rows) for c in cut(as_columns, Phase.DIRECT, limit) for f in c.folded
    ]
    for chunk in cut(as_columns, Phase.DIRECT, limit):
        for folded in chunk.folded:
            rows = list(folded.rows)
            assert list(live_rows(folded)) == [row.row for row in rows if row.row is not None]
            assert stale_keys(folded) == [key for row in rows for key in row.stale]
