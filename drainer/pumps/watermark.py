"""Watermarks of single pumps and of all together, and the ranges to pull. Values only; survey.py makes the calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Any, Protocol

from binlog.errors import BinlogError
from binlog.pb.pump_ext_pb2 import PendingPrewrite

# Compares the binlogs received for a range with those planned (correctness rule 22: planned binlogs are pulled).
# Pure.
#
#     plan: the pump counts its index ──► PumpRange.planned ──► pull: compared with what was received over gRPC
#                                                          └──► apply: compared with what was received through Spark
#
# Fakes are not counted, because a pull omits them; a transaction that two pumps hold is counted on both.


class RangeDiffers(BinlogError):
    """More or fewer binlogs were received for a range than planned. None of them has been applied."""


@dataclass(frozen=True, slots=True)
class Counted:
    """Number of binlogs and bytes of their payloads; `size` None: not known exactly."""

    count: int = 0
    size: int | None = 0

    def __add__(self, other: Counted) -> Counted:
        known = self.size is not None and other.size is not None
        return Counted(self.count + other.count, (self.size or 0) + (other.size or 0) if known else None)

    def __sub__(self, other: Counted) -> Counted:
        known = self.size is not None and other.size is not None
        return Counted(self.count - other.count, (self.size or 0) - (other.size or 0) if known else None)

    def __str__(self) -> str:
        found = f"{self.count} binlog{'' if self.count == 1 else 's'}"
        return f"{found} of {self.size} bytes" if self.size is not None else found

    @classmethod
    def of(cls, payloads: Sequence[bytes]) -> Counted:
        return cls(len(payloads), sum(map(len, payloads)))


def together(parts: Iterable[Counted | None]) -> Counted | None:
    """Return the sum; None if one of them is unknown."""
    total = Counted()
    for part in parts:
        if part is None:
            return None
        total += part
    return total


def check(planned: Counted | None, found: Counted, *, pump_name: str, after_ts: int, until_ts: int, where: str) -> None:
    """Raise RangeDiffers unless `found` equals `planned` (None: unknown). `where`: end of the error's first
    sentence."""
    if planned is None or (planned.count == found.count and planned.size in (None, found.size)):
        return
    raise RangeDiffers(
        f"{pump_name}: the range ({after_ts}, {until_ts}] was planned with {planned}, but {found} came {where}. The "
        "position does not move; the range is planned again, and if that fails in the same way the drainer stops: "
        "keep the "
        f"pump's data-dir, its log may hold binlogs that it does not serve"
    )


@dataclass(frozen=True, slots=True)
class Topic:
    """The topic in Kafka that has a pump's binlogs. `client`: settings of the client library."""

    name: str
    client: tuple[tuple[str, str], ...] = field(repr=False)


# Adds serialized binlogs to what a task has read; the second argument is their total size in bytes.
AddBinlogs = Callable[[list[bytes], int], None]


class OtherSource(Protocol):
    """Something else that holds the binlogs of a range. Picklable."""

    def pull(self, after_ts: int, until_ts: int) -> Iterator[bytes]:
        """Yield serialized PullRangeResp with every binlog in (after_ts, until_ts], ascending. Raises BinlogError."""
        ...

    def fold(self, builder: Any, add: AddBinlogs, after_ts: int, until_ts: int) -> Iterator[Counted]:
        """Read the same range into `builder`, which collects what one task has read (ReadOrder.builder): pass binlogs
        to `add`, or add decoded columns to `builder` itself. Yield how many rows and DDLs, and how many bytes, each
        step has added. Raises BinlogError."""
        ...


class Stop(IntEnum):
    """Why a pump ends a batch where it does (`WatermarkResp.Stop`)."""

    RESOLVED = 0
    LIMIT = 1
    DDL = 2
    SCHEMA = 3
    LARGE = 4


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of a batch, sent to each pump as the fields of these names in WatermarkReq. 0: no limit.

    `stop_at_schema`: end before the first DDL and before the first row above `schema_version`. `large_bytes_min`: end
    before a row transaction of more bytes, which becomes a batch of its own.
    """

    batch_bytes_max: int
    batch_count_max: int = 0
    stop_at_schema: bool = False
    schema_version: int = 0
    large_bytes_min: int = 0


@dataclass(frozen=True, slots=True)
class PumpMark:
    """One pump's answer for (after_ts, …]. `end_ts`: last ts of the batch for this pump alone, with
    `batch_bytes` and `batch_count` in it; `split_ts`: ascending, where the batch can be split between readers;
    `purged_ts`: binlogs at or below may be purged; `extension`: False for a Go pump; `stop_bytes`: of the transaction
    at `stop_ts`, where `stop` is LARGE.

    For rule 22 (planned binlogs are pulled): `last_ts` is the last binlog of the batch (0: none), `splits` the counts
    up to each of `split_ts`, and `bytes_exact` whether bytes equal those of a pull.

    `holding`: the prewrite that keeps `resolved_ts` where it is; None where there is none, or it is unknown. A TiDB's
    prewrite names no writer, and the pump does not settle it by the lease of one.
    `topic`: where the binlogs are read instead of from the pump; None: from the pump. `count_exact`: whether a pull
    returns `batch_count` binlogs, and not fewer, because some come twice."""

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
    last_ts: int = 0
    splits: tuple[Counted, ...] = ()
    bytes_exact: bool = False
    stop_bytes: int = 0
    holding: PendingPrewrite | None = None
    topic: Topic | OtherSource | None = None
    count_exact: bool = True

    @property
    def empty(self) -> bool:
        """Whether this pump has no binlogs in (after_ts, resolved_ts]."""
        return self.stop is Stop.RESOLVED and self.batch_count == 0

    def bytes_until(self, ts: int) -> int:
        """Return the approximate bytes of this batch at or below `ts`, in steps of the pieces between `split_ts`."""
        if ts >= self.end_ts:
            return self.batch_bytes
        pieces = len(self.split_ts) + 1
        passed = sum(1 for split in self.split_ts if split <= ts)
        return self.batch_bytes * (passed + 1) // pieces

    def counted(self, ts: int) -> Counted | None:
        """Return the exact counts of (after_ts, ts]; None if this answer does not have them."""
        if not self.count_exact:
            return None
        if ts == self.end_ts or (ts < self.end_ts and (not self.batch_count or 0 < self.last_ts <= ts)):
            return Counted(self.batch_count, self.batch_bytes if self.bytes_exact else None)
        found = next((part for split, part in zip(self.split_ts, self.splits, strict=False) if split == ts), None)
        return found if found is None or self.bytes_exact else Counted(found.count, None)


@dataclass(frozen=True, slots=True)
class Watermark:
    """Everything at or below `ts` is final on every pump that counts, and no other pump has unread binlogs."""

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
    def large_ts(self) -> int | None:
        """The first large transaction that a batch ends before."""
        return min((mark.stop_ts for mark in self.marks if mark.stop is Stop.LARGE), default=None)

    @property
    def empty(self) -> bool:
        return all(mark.empty for mark in self.marks)


@dataclass(frozen=True, slots=True)
class PumpRange:
    """One pull: all binlogs of one pump in (after_ts, until_ts]. `planned`: their counts, None if unknown. `topic`: as
    in PumpMark."""

    node_id: str
    host: str
    extension: bool
    after_ts: int
    until_ts: int
    planned: Counted | None = None
    topic: Topic | OtherSource | None = None


def watermark_of(marks: tuple[PumpMark, ...], *, floor_ts: int) -> Watermark:
    """Return the least resolved ts of the pumps that count; `floor_ts` if there are none."""
    return Watermark(min((mark.resolved_ts for mark in marks), default=floor_ts), marks)


def ranges_of(mark: PumpMark, *, after_ts: int, until_ts: int, pieces_max: int) -> tuple[PumpRange, ...]:
    """Split one pump's part of (after_ts, until_ts] at its `split_ts` into at most `pieces_max` ranges, in order."""
    splits = [ts for ts in mark.split_ts if after_ts < ts < until_ts]
    pieces = max(1, min(pieces_max, len(splits) + 1))
    cuts = [splits[(i * (len(splits) + 1)) // pieces - 1] for i in range(1, pieces)]
    edges = [after_ts, *dict.fromkeys(cuts), until_ts]
    counted = [Counted(), *(mark.counted(ts) for ts in edges[1:])]
    return tuple(
        PumpRange(mark.node_id, mark.host, mark.extension, low, high, _between(begin, end), mark.topic)
        for (low, high), (begin, end) in zip(pairwise(edges), pairwise(counted), strict=True)
    )


def _between(begin: Counted | None, end: Counted | None) -> Counted | None:
    return end - begin if begin is not None and end is not None else None
