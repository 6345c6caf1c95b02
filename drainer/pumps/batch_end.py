"""Computes for a Go pump what a pump of this project answers to Watermark: where a batch ends. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from drainer.pumps.range_count import Counted
from drainer.pumps.watermark import Limits, PumpMark, Stop

PIECES = 4


@dataclass(frozen=True, slots=True)
class Place:
    """One binlog of the stream; `size` in bytes, `schema_version` 0 for a DDL."""

    commit_ts: int
    size: int
    ddl: bool
    schema_version: int


def cut(places: Iterable[Place], limits: Limits, *, node_id: str, host: str, resolved_ts: int) -> PumpMark:
    """The PumpMark of a batch of these binlogs under `limits`."""
    stop, stop_ts, end_ts, stop_bytes = Stop.RESOLVED, 0, resolved_ts, 0
    total = count = 0
    sizes: list[int] = []
    ends: list[int] = []
    for place in places:
        if limits.stop_at_schema and (place.ddl or place.schema_version > limits.schema_version):
            stop, stop_ts = (Stop.DDL if place.ddl else Stop.SCHEMA), place.commit_ts
            end_ts = place.commit_ts - 1
            break
        if limits.large_bytes_min and place.size > limits.large_bytes_min and not place.ddl:
            stop, stop_ts, stop_bytes = Stop.LARGE, place.commit_ts, place.size
            end_ts = place.commit_ts - 1
            break
        full = limits.batch_bytes_max and total + place.size > limits.batch_bytes_max
        if count and (full or (limits.batch_count_max and count >= limits.batch_count_max)):
            stop, end_ts = Stop.LIMIT, ends[-1]
            break
        total += place.size
        count += 1
        sizes.append(total)
        ends.append(place.commit_ts)
    splits = [bisect_right(sizes, total * i // PIECES) for i in range(1, PIECES) if count >= PIECES]
    # No split before a first binlog that is larger than a piece.
    splits = [n for n in dict.fromkeys(splits) if n]
    return PumpMark(
        node_id=node_id,
        host=host,
        extension=False,
        resolved_ts=resolved_ts,
        end_ts=end_ts,
        batch_bytes=total,
        batch_count=count,
        stop=stop,
        stop_ts=stop_ts,
        split_ts=tuple(ends[n - 1] for n in splits),
        last_ts=ends[-1] if ends else 0,
        splits=tuple(Counted(n, sizes[n - 1]) for n in splits),
        bytes_exact=True,
        stop_bytes=stop_bytes,
    )
