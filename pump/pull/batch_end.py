"""Plans where a batch of binlogs ends, from index entries alone. This is the answer of the watermark call. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum

from pump.index.keys import COMPLETE_BYTES, FLAG_DDL, FLAG_FAKE, FLAG_GENERAL, key_ts, unpack_planned

SPLITS = 4
SAMPLES_MAX = 256  # at this number every second sample is dropped
SAMPLE_BYTES = 16 << 10


class Stop(IntEnum):
    """Why a batch ends. The numbers are those of WatermarkResp.Stop."""

    RESOLVED = 0
    LIMIT = 1
    DDL = 2
    SCHEMA = 3
    LARGE = 4


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of a batch. `bytes_max`, `count_max`: bytes and number of binlogs; 0: no limit.

    `stop_at_schema`: the batch ends before a DDL, and before a transaction whose schema_version is above
    `schema_version`. `large_bytes_min`: the batch ends before a transaction of rows that has more bytes; 0: never."""

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
    """A batch of binlogs: (after_ts, end_ts] holds `count` binlogs of `bytes` bytes, the last one at `last_ts`.

    `stop`: why the batch ends there. `stop_ts`: the commit_ts of the first binlog after the batch, or 0; `stop_bytes`:
    its bytes if `stop` is LARGE. `bytes_exact`: whether a pull returns exactly `bytes` bytes; it is False if the batch
    holds a binlog that a pull merges field by field, because the index does not know the length of such a binlog."""

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


def plan_batch(entries: Iterable[tuple[bytes, bytes]], resolved_ts: int, limits: BatchLimits) -> BatchPlan:
    """Return the batch that begins with `entries`: raw `cm:` pairs, ascending, up to `resolved_ts`.

    Fake binlogs do not count. The first binlog is in the batch even if it alone exceeds `bytes_max`, so that every
    batch makes progress.
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
    """Return the first sample at or above each quarter of the bytes."""
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
