"""A ts that the source cannot have given out is refused, on every way into the store."""

from __future__ import annotations

from pathlib import Path

import pytest
from binlog.cluster.tso import compose
from binlog.errors import TimestampUnavailable
from hypothesis import given
from hypothesis import strategies as st

from pump.errors import TooFarAhead
from pump.store.limits import Horizon
from tests.unit.pump.build import (
    SetClock,
    binlogs_of,
    commit,
    encode_fake,
    merged,
    opened,
    prewrite,
    refused,
    rollback,
    write,
)

NOW = compose(1_700_000_000_000)
NEAR_THE_END = (1 << 63) - 5
HOUR = compose(3_600_000)


class Boot:
    """A clock that nobody sets."""

    def __init__(self) -> None:
        self.s = 50.0

    def __call__(self) -> float:
        return self.s


def test_horizon_moves_with_elapsed_time_and_source_timestamps() -> None:
    boot = Boot()
    horizon = Horizon(600, boot_s=boot)
    assert horizon.beyond(1), "nothing is known of the source yet"
    horizon.saw(NOW)
    assert not horizon.beyond(NOW + compose(600_000))
    assert horizon.beyond(NOW + compose(600_001))
    boot.s += 3600
    assert not horizon.beyond(NOW + compose(4_200_000)), "a pump that has not asked for an hour"
    assert horizon.beyond(NOW + compose(4_200_001))
    horizon.saw(NOW + 10 * HOUR)
    assert not horizon.beyond(NOW + 10 * HOUR), "its clock was set forward"


def test_horizon_of_0_seconds_has_no_limit() -> None:
    assert not Horizon(0).beyond(NEAR_THE_END)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**7))))
def test_horizon_admits_any_timestamp_it_has_just_seen(steps: list[tuple[int, int]]) -> None:
    boot = Boot()
    horizon, ts = Horizon(1, boot_s=boot), NOW
    for slept_s, moved_ms in steps:
        boot.s += slept_s
        ts += compose(moved_ms) + 1
        horizon.saw(ts)
        assert not horizon.beyond(ts)
        assert horizon.beyond(ts + compose(1_001, 1 << 18))


@pytest.mark.parametrize("payload", [
    prewrite(NEAR_THE_END), prewrite(NOW + HOUR), commit(NOW, NOW + HOUR), commit(NOW + HOUR, NOW + HOUR + 1),
    rollback(NOW + HOUR), encode_fake(NOW + HOUR),
], ids=["prewrite near the end", "prewrite", "commit", "commit of what is not here", "rollback", "fake"])  # fmt: skip
async def test_binlog_with_ts_too_far_ahead_is_refused_with_setting_in_error(tmp_path: Path, payload: bytes) -> None:
    async with opened(tmp_path, SetClock(NOW)) as store:
        await write(store, prewrite(NOW))
        error = await refused(store, payload)
        assert isinstance(error, TooFarAhead)
        assert "s ahead of the timestamp source, which is at" in str(error)
        assert "ts-ahead-max" in str(error)
        assert len(store.pending) == 1
        await write(store, prewrite(NOW + 5), commit(NOW, NOW + 6))
    async with opened(tmp_path, SetClock(NOW)) as store:
        assert store.largest_ts <= NOW + 100, "nothing of it is in the log"


async def test_other_binlogs_of_batch_with_ts_too_far_ahead_are_written(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(NOW)) as store:
        results = await store.writes.write([prewrite(NOW + 10), prewrite(NEAR_THE_END), commit(NOW + 10, NOW + 11)])
        assert [type(error) for error in results] == [type(None), TooFarAhead, type(None)]
        await store.resolver.refresh()


async def test_timestamp_source_with_clock_set_forward_is_asked_before_refusal(tmp_path: Path) -> None:
    """A pump that nobody reads has not asked for long; meanwhile PD moved to a machine whose clock is ahead."""
    clock = SetClock(NOW)
    async with opened(tmp_path, clock) as store:
        clock.ts = NOW + HOUR
        await write(store, prewrite(NOW + HOUR - 7), prewrite(NOW + HOUR - 5))
        assert len(store.pending) == 2
        await write(store, commit(NOW + HOUR - 7, NOW + HOUR - 3), rollback(NOW + HOUR - 5))
        assert await binlogs_of(store, until_ts=await store.resolver.refresh()) == [
            merged(NOW + HOUR - 7, NOW + HOUR - 3)
        ]


async def test_ts_beyond_limit_is_refused_as_unavailable_if_source_does_not_answer(tmp_path: Path) -> None:
    """The source does not answer: the writer tries again, as for any pump that cannot serve now."""
    clock = SetClock(NOW)
    async with opened(tmp_path, clock) as store:
        clock.down = True
        await write(store, prewrite(NOW + 5))
        assert isinstance(await refused(store, prewrite(NOW + HOUR)), TimestampUnavailable)


async def test_prewrite_too_far_ahead_in_log_can_be_rolled_back(tmp_path: Path) -> None:
    """From before there was a bound: `binlogctl settle -rollback` is the way out, and it brings no new ts."""
    async with opened(tmp_path, SetClock(NOW), ts_ahead_max_s=0) as store:
        await write(store, prewrite(NEAR_THE_END), prewrite(NOW + 3))
    async with opened(tmp_path, SetClock(NOW)) as store:
        assert store.largest_ts == NEAR_THE_END
        assert store.largest_ts_until(NOW + HOUR) == NOW + 3
        with pytest.raises(TooFarAhead):
            await store.writes.settle(NOW + 3, NOW + HOUR)
        await store.writes.settle(NEAR_THE_END, 0)
        assert [entry.start_ts for entry in store.pending.first(9)] == [NOW + 3]
        assert isinstance(await refused(store, rollback(NEAR_THE_END - 1)), TooFarAhead), "of nothing that is pending"
