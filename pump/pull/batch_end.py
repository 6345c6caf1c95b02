"""Plans where a batch of binlogs ends, from index entries alone. This is the answer of the watermark call. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from binlog.pb.pump_ext_pb2 import WatermarkReq, WatermarkResp

from pump.index.keys import COMPLETE_BYTES, FLAG_DDL, FLAG_FAKE, FLAG_GENERAL, key_ts, unpack_planned

SPLITS = 4
SAMPLES_MAX = 256  # at this number every second sample is dropped
SAMPLE_BYTES = 16 << 10

Split = tuple[int, int, int]  # up to a ts, the batch holds a number of binlogs and their bytes


def plan_batch(entries: Iterable[tuple[bytes, bytes]], resolved_ts: int, limits: WatermarkReq) -> WatermarkResp:
    """Return the batch that begins with `entries`: raw `cm:` pairs, ascending, up to `resolved_ts`; as fields of the
    answer, of which the caller sets the others.

    Fake binlogs do not count. The first binlog is in the batch even if it alone exceeds the limit of bytes, so that
    every batch makes progress. `limits`: those of pb/pump_ext.proto; 0: no limit. The bytes are not exact if the batch
    holds a binlog that a pull merges field by field, because the index does not know the length of such a binlog.
    """
    size = count = 0
    last = b""  # the last key
    bytes_max = limits.batch_bytes_max or 1 << 62
    count_max = limits.batch_count_max or 1 << 62
    large_bytes = limits.large_bytes_min or 1 << 62
    by_schema, known_version = limits.stop_at_schema, limits.schema_version
    general = 0
    samples: list[Split] = []
    next_sample = step = SAMPLE_BYTES

    def ended(
        end_ts: int, stop: WatermarkResp.Stop, stop_ts: int = 0, version: int = 0, stop_bytes: int = 0
    ) -> WatermarkResp:
        splits = _splits(samples, size)
        return WatermarkResp(
            batch_end_ts=end_ts,
            batch_bytes=size,
            batch_count=count,
            stop=stop,
            stop_ts=stop_ts,
            stop_schema_version=version,
            stop_bytes=stop_bytes,
            last_ts=key_ts(last) if last else 0,
            bytes_exact=not general & FLAG_GENERAL,
            split_ts=[ts for ts, _, _ in splits],
            split_count=[number for _, number, _ in splits],
            split_bytes=[at for _, _, at in splits],
        )

    for key, value in entries:
        length, tail_at, version, flags = unpack_planned(value)
        if flags & FLAG_FAKE:
            continue
        if by_schema and (flags & FLAG_DDL or version > known_version):
            ts = key_ts(key)
            return ended(ts - 1, WatermarkResp.DDL if flags & FLAG_DDL else WatermarkResp.SCHEMA, ts, version)
        served = length - tail_at + len(value) - COMPLETE_BYTES
        if served > large_bytes and not flags & FLAG_DDL:
            ts = key_ts(key)
            return ended(ts - 1, WatermarkResp.LARGE, ts, version, served)
        grown = size + served
        if count and (grown > bytes_max or count >= count_max):
            return ended(key_ts(last), WatermarkResp.LIMIT, key_ts(key))
        size = grown
        general |= flags
        count += 1
        last = key
        if size >= next_sample:
            samples.append((key_ts(key), count, size))
            if len(samples) == SAMPLES_MAX:
                samples = samples[1::2]
                step *= 2
            next_sample = size + step
    return ended(resolved_ts, WatermarkResp.RESOLVED)


def _splits(samples: list[Split], size: int) -> list[Split]:
    """Return the first sample at or above each quarter of the bytes."""
    splits: list[Split] = []
    wanted = 1
    for sample in samples:
        at = sample[2]
        if wanted < SPLITS and at >= size * wanted // SPLITS and at < size:
            splits.append(sample)
            wanted += 1
            while wanted < SPLITS and at >= size * wanted // SPLITS:
                wanted += 1
    return splits
