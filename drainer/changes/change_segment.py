"""What a sink that wants every change is given. A value that imports little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drainer.changes.decode import Changes


@dataclass(frozen=True, slots=True)
class ChangeSegment:
    """Every change between two DDLs, as columns, for a sink that wants them all. Covers (after_ts, until_ts].

    `changes`: each of rows of one table, kind and layout; the places of all of them together (`Changes.order`) ascend
    in upstream's order, by (commit_ts, start_ts, place in the transaction), and none is there twice
    (drainer.changes.stream.in_order walks them so). The counts are as of SegmentWork.
    """

    after_ts: int
    until_ts: int
    changes: tuple[Changes, ...]
    change_count: int
    source_bytes: int
    commits: int = 1
