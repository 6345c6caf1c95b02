"""Decode rows to Arrow columns, compute from these the last state of each key, and divide these among slots."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drainer.changes.decode import Changes


@contextmanager
def collector_paused() -> Iterator[None]:
    """A batch makes hundreds of thousands of tuples and no cycle; looking for cycles costs a sixth of the time that
    folding takes, and half of the time that making questions takes."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True, slots=True)
class ChangeSegment:
    """Every change between two DDLs, as columns, for a sink that wants them all. Covers (after_ts, until_ts].

    `changes`: each element has rows of one table, kind and layout. `Changes.order` gives the number of each change in
    upstream's order, by (commit_ts, start_ts, sequence in the transaction); no change occurs twice.
    drainer.changes.stream.in_order yields all changes in that order. The counts are those of SegmentWork.
    """

    after_ts: int
    until_ts: int
    changes: tuple[Changes, ...]
    change_count: int
    source_bytes: int
    commits: int = 1
