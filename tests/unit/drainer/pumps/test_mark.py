"""Values of one pump's answer, and where a batch of sized binlogs ends."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from drainer.pumps.cut import Place, cut
from drainer.pumps.mark import Limits, PumpMark, Stop, ranges_of, watermark_of

ts_lists = st.lists(st.integers(2, 999), unique=True).map(sorted)


def mark(**changes: object) -> PumpMark:
    values: dict[str, object] = {
        "node_id": "a", "host": "h", "extension": True, "resolved_ts": 100, "end_ts": 100, "batch_bytes": 0,
        "batch_count": 0, "stop": Stop.RESOLVED,
    }  # fmt: skip
    return PumpMark(**{**values, **changes})  # type: ignore[arg-type]


@given(ts_lists, st.integers(1, 8), st.integers(0, 500), st.integers(501, 1000))
def test_ranges_cover_the_whole_without_overlap(splits: list[int], pieces: int, after_ts: int, until_ts: int) -> None:
    """Whatever the splits are, the ranges are one after another from after_ts to until_ts, none empty."""
    ranges = ranges_of(mark(split_ts=tuple(splits)), after_ts=after_ts, until_ts=until_ts, pieces_max=pieces)
    assert 1 <= len(ranges) <= pieces
    assert ranges[0].after_ts == after_ts and ranges[-1].until_ts == until_ts
    assert all(a.until_ts == b.after_ts for a, b in pairwise(ranges))
    assert all(r.after_ts < r.until_ts for r in ranges)


def test_the_watermark_is_the_least_resolved_ts() -> None:
    assert watermark_of((mark(resolved_ts=50), mark(resolved_ts=40)), floor_ts=7).ts == 40


def test_without_a_pump_that_counts_the_watermark_stays() -> None:
    assert watermark_of((), floor_ts=7).ts == 7


def test_bytes_until_counts_in_pieces() -> None:
    """Rounded up, for what a batch may hold must not be underestimated."""
    found = mark(batch_bytes=400, end_ts=100, split_ts=(25, 50, 75))
    assert [found.bytes_until(ts) for ts in (1, 25, 60, 99, 100)] == [100, 200, 300, 400, 400]


PLACES = [Place(10, 100, False, 1), Place(20, 100, False, 1), Place(30, 50, True, 0), Place(40, 100, False, 2)]


def ends(limits: Limits) -> tuple[int, Stop, int, int]:
    found = cut(PLACES, limits, node_id="", host="", resolved_ts=99)
    return found.end_ts, found.stop, found.batch_count, found.batch_bytes


def test_a_batch_without_bounds_ends_at_the_resolved_ts() -> None:
    assert ends(Limits(0)) == (99, Stop.RESOLVED, 4, 350)


def test_a_batch_ends_before_the_binlog_that_does_not_fit() -> None:
    assert ends(Limits(200)) == (20, Stop.LIMIT, 2, 200)
    assert ends(Limits(0, 1)) == (10, Stop.LIMIT, 1, 100)


def test_the_first_binlog_goes_even_if_it_alone_is_too_large() -> None:
    assert ends(Limits(1)) == (10, Stop.LIMIT, 1, 100)


def test_a_batch_ends_before_a_ddl_and_before_a_newer_schema() -> None:
    assert ends(Limits(0, stop_at_schema=True, schema_version=1)) == (29, Stop.DDL, 2, 200)
    assert ends(Limits(0, stop_at_schema=True, schema_version=0)) == (9, Stop.SCHEMA, 0, 0)
