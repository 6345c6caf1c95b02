"""Where a batch of binlogs ends: the answer of the watermark call, from index entries alone. No I/O of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum

from pump.keys import COMPLETE_BYTES, FLAG_DDL, FLAG_FAKE, FLAG_GENERAL, key_ts, unpack_planned

SPLITS = 4
SAMPLES_MAX = 256  # when there are so many, every second is dropped
SAMPLE_BYTES = 16 << 10


class Stop(IntEnum):
    """Why a batch ends; the numbers of WatermarkResp.Stop."""

    RESOLVED = 0
    LIMIT = 1
    DDL = 2
    SCHEMA = 3
    LARGE = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """`bytes_max` and `count_max` 0: no bound. With `stop_at_schema` a batch ends before a DDL and before a row whose
    schema_version is above `schema_version`; `large_bytes_min`: it ends before a transaction of rows of more bytes."""

    bytes_max: int
    count_max: int = 0
    stop_at_schema: bool = False
    schema_version: int = 0
    large_bytes_min: int = 0


@dataclass(frozen=True, slots=True)
class Split:
    """Up to `ts` the batch holds `count` binlogs of `bytes` bytes."""

    ts: int
    count: int
    bytes: int


@dataclass(slots=True)
class BatchPlan:
    """(after_ts, end_ts] holds `count` binlogs of `bytes` bytes, the last at `last_ts`; `stop_ts` is the first one
    outside, if any, `stop_bytes` its bytes where it is LARGE. `bytes_exact`: a pull brings just so many; the index does
    not know the length of general merges."""

    end_ts: int
    bytes: int = 0
    count: int = 0
    stop: Stop = Stop.RESOLVED
    stop_ts: int = 0
    stop_schema_version: int = 0
    last_ts: int = 0
    bytes_exact: bool = True
    splits: list[Split] = field(default_factory=list)
    stop_bytes: int = 0


def plan_batch(entries: Iterable[tuple[bytes, bytes]], resolved_ts: int, limits: Limits) -> BatchPlan:
    """`entries`: raw `cm:` pairs after the batch's begin, up to resolved_ts, ascending. Fakes are no binlogs here.

    The first binlog is in the batch even if it alone passes the byte bound: a batch always gets on.
    """
    size = count = 0
    last = b""  # the last key
    bytes_max = limits.bytes_max or 1 << 62
    count_max = limits.count_max or 1 << 62
    large_bytes = limits.large_bytes_min or 1 << 62
    by_schema = limits.stop_at_schema
    general = 0
    samples: list[Split] = []
    next_sample = step = SAMPLE_BYTES

    def ended(end_ts: int, stop: Stop, stop_ts: int = 0, version: int = 0) -> BatchPlan:
        last_ts = key_ts(last) if last else 0
        exact, splits = not general & FLAG_GENERAL, _splits(samples, size)
        return BatchPlan(end_ts, size, count, stop, stop_ts, version, last_ts, exact, splits)

    for key, value in entries:
        length, tail_at, version, flags = unpack_planned(value)
        if flags & FLAG_FAKE:
            continue
        if by_schema and (flags & FLAG_DDL or version > limits.schema_version):
            ts = key_ts(key)
            return ended(ts - 1, Stop.DDL if flags & FLAG_DDL else Stop.SCHEMA, ts, version)
        served = length - tail_at + len(value) - COMPLETE_BYTES
        if served > large_bytes and not flags & FLAG_DDL:
            ts = key_ts(key)
            return replace(ended(ts - 1, Stop.LARGE, ts, version), stop_bytes=served)
        grown = size + served
        if count and (grown > bytes_max or count >= count_max):
            return ended(key_ts(last), Stop.LIMIT, key_ts(key))
        size = grown
        general |= flags
        count += 1
        last = key
        if size >= next_sample:
            samples.append(Split(key_ts(key), count, size))
            if len(samples) == SAMPLES_MAX:
                samples = samples[1::2]
                step *= 2
            next_sample = size + step
    return ended(resolved_ts, Stop.RESOLVED)


def _splits(samples: list[Split], size: int) -> list[Split]:
    """Those nearest above each quarter of the bytes."""
    splits: list[Split] = []
    wanted = 1
    for sample in samples:
        at = sample.bytes
        if wanted < SPLITS and at >= size * wanted // SPLITS and at < size:
            splits.append(sample)
            wanted += 1
            while wanted < SPLITS and at >= size * wanted // SPLITS:
                wanted += 1
    return splits
