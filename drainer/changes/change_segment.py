"""ChangeSegment: the input of a sink that wants every change. This module imports little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drainer.changes.decode import Changes


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
