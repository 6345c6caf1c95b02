"""Finds the row of a chunk that the server refuses: the last row of the shortest prefix that fails. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from drainer.batch.shown import shown_row
from drainer.batch.work import Folded
from drainer.sink.errors import DataError
from drainer.sink.mysql.rows.chunks import Chunk


def beginning(chunk: Chunk, rows: int) -> Chunk:
    """The first so many rows, in the order in which they are written."""
    tables: list[Folded] = []
    left = rows - len(chunk.ordered)
    for folded in chunk.folded:
        if left > 0:
            tables.append(replace(folded, rows=folded.rows[:left]))
        left -= len(folded.rows)
    return Chunk(chunk.ordered[:rows], tuple(tables))


def blame(error: DataError, chunk: Chunk, fails: Callable[[Chunk], bool]) -> None:
    """Add the refused row to the error. `fails`: whether writing only these rows fails with the same error."""
    if not fails(chunk):
        return
    low, high = 0, chunk.rows
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(beginning(chunk, middle)) else (middle, high)
    found = beginning(chunk, high)
    if found.folded:
        row = found.folded[-1].rows[-1]
        error.table_id, error.identity = found.folded[-1].shape.table_id, row.identity
        error.shown = shown_row(row.row if row.row is not None else row.stale[0])
    else:
        change = found.ordered[-1]
        error.commit_ts = change.commit_ts
        error.shown = shown_row(change.new or change.old)
