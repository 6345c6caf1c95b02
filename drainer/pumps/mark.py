"""How far each pump is, and what that makes of all of them together. Values only; survey.py asks the pumps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise


class Stop(IntEnum):
    """Why a batch ends where a pump says it ends (`WatermarkResp.Stop`)."""

    RESOLVED = 0
    LIMIT = 1
    DDL = 2
    SCHEMA = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """What a batch may hold, asked of each pump. 0 = no bound.

    `stop_at_schema`: end before the first DDL and before the first row above `schema_version`.
    """

    batch_bytes_max: int
    batch_count_max: int = 0
    stop_at_schema: bool = False
    schema_version: int = 0


@dataclass(frozen=True, slots=True)
class PumpMark:
    """One pump's answer for (after_ts, …]. `end_ts`: last ts of the batch as this pump alone would cut it, with
    `batch_bytes` and `batch_count` in it; `split_ts`: ascending, where readers may share it; `purged_ts`: binlogs at
    or below may be gone; `extension`: one of ours, else a Go pump."""

    node_id: str
    host: str
    extension: bool
    resolved_ts: int
    end_ts: int
    batch_bytes: int
    batch_count: int
    stop: Stop
    stop_ts: int = 0
    split_ts: tuple[int, ...] = ()
    purged_ts: int = 0

    @property
    def empty(self) -> bool:
        """Nothing of this pump lies in (after_ts, resolved_ts]."""
        return self.stop is Stop.RESOLVED and self.batch_count == 0

    def bytes_until(self, ts: int) -> int:
        """Roughly how many bytes of this batch lie at or below `ts`, counted in the pieces that `split_ts` cuts."""
        if ts >= self.end_ts:
            return self.batch_bytes
        pieces = len(self.split_ts) + 1
        passed = sum(1 for split in self.split_ts if split <= ts)
        return self.batch_bytes * (passed + 1) // pieces


@dataclass(frozen=True, slots=True)
class Watermark:
    """Everything at or below `ts` is final on every pump that counts, and on no other pump is anything unread."""

    ts: int
    marks: tuple[PumpMark, ...]

    @property
    def end_ts(self) -> int:
        """Where a batch of all pumps together ends."""
        return min((mark.end_ts for mark in self.marks), default=self.ts)

    @property
    def purged_ts(self) -> int:
        """At or below it some pump may have removed binlogs; 0 where none has."""
        return max((mark.purged_ts for mark in self.marks), default=0)

    @property
    def empty(self) -> bool:
        return all(mark.empty for mark in self.marks)


@dataclass(frozen=True, slots=True)
class PumpRange:
    """One pull: everything of one pump in (after_ts, until_ts]."""

    node_id: str
    host: str
    extension: bool
    after_ts: int
    until_ts: int


def watermark_of(marks: tuple[PumpMark, ...], *, floor_ts: int) -> Watermark:
    """The least resolved ts of the pumps that count; `floor_ts` where none does (all offline: nothing can come)."""
    return Watermark(min((mark.resolved_ts for mark in marks), default=floor_ts), marks)


def ranges_of(mark: PumpMark, *, after_ts: int, until_ts: int, pieces_max: int) -> tuple[PumpRange, ...]:
    """Cut one pump's part of (after_ts, until_ts] at its `split_ts` into at most `pieces_max` ranges in order."""
    splits = [ts for ts in mark.split_ts if after_ts < ts < until_ts]
    pieces = max(1, min(pieces_max, len(splits) + 1))
    cuts = [splits[(i * (len(splits) + 1)) // pieces - 1] for i in range(1, pieces)]
    edges = [after_ts, *dict.fromkeys(cuts), until_ts]
    return tuple(PumpRange(mark.node_id, mark.host, mark.extension, low, high) for low, high in pairwise(edges))
