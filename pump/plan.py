"""Where a batch of binlogs ends: the answer of the watermark call, from index entries alone. No I/O of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from pump.keys import COMPLETE_BYTES, FLAG_DDL, FLAG_FAKE, key_ts, unpack_complete

SPLITS = 4
SAMPLES_MAX = 256  # when there are so many, every second is dropped
SAMPLE_BYTES = 16 << 10


class Stop(IntEnum):
    """Why a batch ends; the numbers of WatermarkResp.Stop."""

    RESOLVED = 0
    LIMIT = 1
    DDL = 2
    SCHEMA = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """`bytes_max` and `count_max` 0: no bound. With `stop_at_schema` a batch ends before a DDL and before a row whose
    schema_version is above `schema_version`."""

    bytes_max: int
    count_max: int = 0
    stop_at_schema: bool = False
    schema_version: int = 0


@dataclass(slots=True)
class BatchPlan:
    """(after_ts, end_ts] holds `count` binlogs of `bytes` bytes; `stop_ts` is the first one outside, if any."""

    end_ts: int
    bytes: int = 0
    count: int = 0
    stop: Stop = Stop.RESOLVED
    stop_ts: int = 0
    stop_schema_version: int = 0
    split_ts: list[int] = field(default_factory=list)


def plan_batch(entries: Iterable[tuple[bytes, bytes]], resolved_ts: int, limits: Limits) -> BatchPlan:
    """`entries`: raw `cm:` pairs after the batch's begin, up to resolved_ts, ascending. Fakes are no binlogs here.

    The first binlog is in the batch even if it alone passes the byte bound: a batch always gets on.
    """
    size = count = last_ts = 0
    bytes_max = limits.bytes_max or 1 << 62
    count_max = limits.count_max or 1 << 62
    by_schema = limits.stop_at_schema
    samples: list[tuple[int, int]] = []
    next_sample = step = SAMPLE_BYTES
    for key, value in entries:
        _, _, _, length, tail_at, version, _, flags = unpack_complete(value)
        if flags & FLAG_FAKE:
            continue
        if by_schema and (flags & FLAG_DDL or version > limits.schema_version):
            stop = Stop.DDL if flags & FLAG_DDL else Stop.SCHEMA
            ts = key_ts(key)
            return BatchPlan(ts - 1, size, count, stop, ts, version, _splits(samples, size))
        grown = size + length - tail_at + len(value) - COMPLETE_BYTES
        if count and (grown > bytes_max or count >= count_max):
            return BatchPlan(last_ts, size, count, Stop.LIMIT, key_ts(key), 0, _splits(samples, size))
        size = grown
        count += 1
        last_ts = key_ts(key)
        if size >= next_sample:
            samples.append((size, last_ts))
            if len(samples) == SAMPLES_MAX:
                samples = samples[1::2]
                step *= 2
            next_sample = size + step
    return BatchPlan(resolved_ts, size, count, Stop.RESOLVED, 0, 0, _splits(samples, size))


def _splits(samples: list[tuple[int, int]], size: int) -> list[int]:
    """The ts nearest above each quarter of the bytes."""
    splits: list[int] = []
    wanted = 1
    for at, ts in samples:
        if wanted < SPLITS and at >= size * wanted // SPLITS and at < size:
            splits.append(ts)
            wanted += 1
            while wanted < SPLITS and at >= size * wanted // SPLITS:
                wanted += 1
    return splits
