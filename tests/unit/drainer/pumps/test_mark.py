"""Values of one pump's answer, and where a batch of sized binlogs ends."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pytest
from binlog.cluster.registry import NodeRecord, NodeStatus, State
from binlog.errors import PumpUnavailable
from hypothesis import given
from hypothesis import strategies as st

from drainer.pumps.go_pump import Backlog, FollowedPump, ReceivedBinlog, cut, received
from drainer.pumps.survey import counts, unchanged
from drainer.pumps.watermark import BatchLimits, Counted, Stop, ranges_of, watermark_of
from tests.unit.drainer.pumps.world import mark

ts_lists = st.lists(st.integers(2, 999), unique=True).map(sorted)


@given(ts_lists, st.integers(1, 8), st.integers(0, 500), st.integers(501, 1000))
def test_ranges_of_mark_cover_the_whole_without_overlap(
    splits: list[int], pieces: int, after_ts: int, until_ts: int
) -> None:
    """Whatever the splits are, the ranges are one after another from after_ts to until_ts, none empty."""
    ranges = ranges_of(mark(split_ts=tuple(splits)), after_ts=after_ts, until_ts=until_ts, pieces_max=pieces)
    assert 1 <= len(ranges) <= pieces
    assert ranges[0].after_ts == after_ts and ranges[-1].until_ts == until_ts
    assert all(a.until_ts == b.after_ts for a, b in pairwise(ranges))
    assert all(r.after_ts < r.until_ts for r in ranges)


def test_watermark_without_counting_pumps_stays_at_floor() -> None:
    assert watermark_of((), floor_ts=7).ts == 7


def test_bytes_until_is_rounded_up_to_next_split() -> None:
    """Rounded up, for what a batch may hold must not be underestimated."""
    found = mark(batch_bytes=400, end_ts=100, split_ts=(25, 50, 75))
    assert [found.bytes_until(ts) for ts in (1, 25, 60, 99, 100)] == [100, 200, 300, 400, 400]


TELLS = {"batch_count": 9, "batch_bytes": 900, "end_ts": 100, "split_ts": (25, 50), "bytes_exact": True}


def test_mark_counts_exactly_at_its_end_and_splits_only() -> None:
    """At its end, behind its last binlog, and at its splits; anything else must be asked (rule 22)."""
    found = mark(**TELLS, last_ts=80, splits=(Counted(2, 250), Counted(5, 500)))
    whole = Counted(9, 900)
    assert [found.counted(ts) for ts in (100, 80, 90, 50, 25)] == [
        whole,
        whole,
        whole,
        Counted(5, 500),
        Counted(2, 250),
    ]
    assert [found.counted(ts) for ts in (101, 79, 51, 24)] == [None] * 4
    about = mark(**{**TELLS, "bytes_exact": False}, last_ts=80, splits=(Counted(2, 250), Counted(5, 500)))
    assert [about.counted(ts) for ts in (100, 50)] == [Counted(9, None), Counted(5, None)]
    assert mark(end_ts=100).counted(40) == Counted(0, None)


def test_ranges_of_mark_have_their_planned_counts() -> None:
    found = mark(**TELLS, last_ts=80, splits=(Counted(2, 250), Counted(5, 500)))
    ranges = ranges_of(found, after_ts=10, until_ts=90, pieces_max=3)
    assert [part.planned for part in ranges] == [Counted(2, 250), Counted(3, 250), Counted(4, 400)]
    ranges = ranges_of(found, after_ts=10, until_ts=70, pieces_max=3)
    assert [part.planned for part in ranges] == [Counted(2, 250), Counted(3, 250), None]


binlogs = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 400)), max_size=30)


@given(binlogs, st.integers(0, 3000), st.integers(0, 40), st.integers(1, 8))
def test_ranges_of_cut_count_binlogs_in_them(
    found: list[tuple[int, int]], bytes_max: int, count_max: int, pieces: int
) -> None:
    """One after another from begin to end, each with just its binlogs; also where the first fills half the batch."""
    ends = list(accumulate(step for step, _ in found))
    stored = [ReceivedBinlog(ts, size, False, 1) for ts, (_, size) in zip(ends, found, strict=True)]
    answer = cut(received(stored), BatchLimits(bytes_max, count_max), node_id="", host="", resolved_ts=2000)
    ranges = ranges_of(answer, after_ts=0, until_ts=answer.end_ts, pieces_max=pieces)
    assert all(a.until_ts == b.after_ts for a, b in pairwise(ranges))
    for part in ranges:
        sizes = [binlog.size for binlog in stored if part.after_ts < binlog.commit_ts <= part.until_ts]
        assert part.planned == Counted(len(sizes), sum(sizes))


BINLOGS = [
    ReceivedBinlog(10, 100, False, 1),
    ReceivedBinlog(20, 100, False, 1),
    ReceivedBinlog(30, 50, True, 0),
    ReceivedBinlog(40, 100, False, 2),
]


def ends(limits: BatchLimits) -> tuple[int, Stop, int, int]:
    found = cut(received(BINLOGS), limits, node_id="", host="", resolved_ts=99)
    return found.end_ts, found.stop, found.batch_count, found.batch_bytes


def test_batch_without_limits_ends_at_resolved_ts() -> None:
    assert ends(BatchLimits(0)) == (99, Stop.RESOLVED, 4, 350)


def test_batch_ends_before_binlog_beyond_its_limit() -> None:
    assert ends(BatchLimits(200)) == (20, Stop.LIMIT, 2, 200)
    assert ends(BatchLimits(0, 1)) == (10, Stop.LIMIT, 1, 100)


def test_batch_holds_first_binlog_larger_than_its_limit() -> None:
    assert ends(BatchLimits(1)) == (10, Stop.LIMIT, 1, 100)


def test_batch_ends_before_ddl_or_newer_schema_version() -> None:
    assert ends(BatchLimits(0, stop_at_schema=True, schema_version=1)) == (29, Stop.DDL, 2, 200)
    assert ends(BatchLimits(0, stop_at_schema=True, schema_version=0)) == (9, Stop.SCHEMA, 0, 0)


def test_backlog_of_many_small_parts_costs_no_more_than_their_sum() -> None:
    """A part is what one resolved event made final."""
    backlog, part, begun_s = Backlog(), received(BINLOGS[:1]), time.process_time()
    for _ in range(100_000):
        backlog.extend(part)
    assert len(backlog.all()) == len(backlog) == 100_000
    assert time.process_time() - begun_s < 3


async def test_first_mark_that_is_cancelled_is_no_beginning_for_a_lower_position() -> None:
    class Silent(FollowedPump):
        async def _read(self) -> None:
            await asyncio.sleep(60)

    pump = Silent("a", "h:1", name="a", backlog_max=1, silence_max_s=60, answer_s=0.01)
    asking = asyncio.create_task(pump.mark(after_ts=100, limits=BatchLimits(0)))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    with pytest.raises(PumpUnavailable):
        await pump.mark(after_ts=50, limits=BatchLimits(0))
    assert pump._resolved_ts == 50, "it is read from there"
    await pump.close()


# Correctness rule 8: which pumps count, and when the answers between two lists may be believed.


ONLINE = NodeStatus("a", "h:1", State.ONLINE, max_commit_ts=100)


def listed(mod_revision: int = 5, **changes: Any) -> NodeRecord:
    return NodeRecord(replace(ONLINE, **changes), mod_revision)


@pytest.mark.parametrize("state", [State.ONLINE, State.PAUSING, State.CLOSING, State.PAUSED])
def test_pump_in_any_state_but_offline_counts(state: State) -> None:
    assert counts(replace(ONLINE, state=state), after_ts=1000)


def test_paused_go_pump_always_counts() -> None:
    assert counts(replace(ONLINE, state=State.PAUSED), after_ts=10**18)


def test_heartbeat_of_counting_pump_does_not_restart_survey() -> None:
    assert unchanged([listed()], [listed(6, max_commit_ts=200)], after_ts=0)


@pytest.mark.parametrize(
    "after",
    [
        [listed(state=State.PAUSING)],
        [listed(host="h:2")],
        [listed(), listed(node_id="b")],
        [],
    ],
)
def test_change_of_state_host_or_members_restarts_survey(after: list[NodeRecord]) -> None:
    assert not unchanged([listed()], after, after_ts=0)


def test_offline_pump_with_new_mod_revision_restarts_survey() -> None:
    """The counterexample of rule 8: only the mod_revision of the pump that does not count tells."""
    before = listed(7, state=State.OFFLINE)
    assert unchanged([before], [before], after_ts=0)
    assert not unchanged([before], [replace(before, mod_revision=9)], after_ts=0)


def batch_of(binlogs: list[ReceivedBinlog], limits: BatchLimits) -> tuple[int, Stop, int, int]:
    """Count, stop, stop_ts and stop_bytes, found by one binlog after another."""
    count = size = 0
    for one in binlogs:
        if limits.stop_at_schema and (one.ddl or one.schema_version > limits.schema_version):
            return count, Stop.DDL if one.ddl else Stop.SCHEMA, one.commit_ts, 0
        if not one.ddl and 0 < limits.large_bytes_min < one.size:
            return count, Stop.LARGE, one.commit_ts, one.size
        if count and (0 < limits.batch_bytes_max < size + one.size or 0 < limits.batch_count_max <= count):
            return count, Stop.LIMIT, 0, 0
        count, size = count + 1, size + one.size
    return count, Stop.RESOLVED, 0, 0


received_binlogs = st.tuples(
    st.integers(1, 20), st.integers(0, 5), st.sampled_from([False, False, True]), st.integers(0, 2)
).map(lambda one: ReceivedBinlog(*one))
some_limits = st.builds(
    BatchLimits, st.integers(0, 12), st.integers(0, 5), st.booleans(), st.integers(0, 2), st.integers(0, 5)
)


@given(st.lists(received_binlogs, max_size=12), some_limits)
def test_batch_ends_where_one_binlog_after_another_would_end_it(
    found: list[ReceivedBinlog], limits: BatchLimits
) -> None:
    found.sort(key=lambda one: one.commit_ts)
    answer = cut(received(found), limits, node_id="", host="", resolved_ts=99)
    count, stop, stop_ts, stop_bytes = batch_of(found, limits)
    assert (answer.batch_count, answer.stop, answer.stop_ts, answer.stop_bytes) == (count, stop, stop_ts, stop_bytes)
    last_ts = found[count - 1].commit_ts if count else 0
    assert answer.end_ts == (stop_ts - 1 if stop_ts else last_ts if stop is Stop.LIMIT else 99)
    assert (answer.last_ts, answer.batch_bytes) == (last_ts, sum(one.size for one in found[:count]))
