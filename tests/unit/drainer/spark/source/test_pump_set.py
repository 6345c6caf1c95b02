"""What a query that reads everything waits for: a Go pump's stream begins with the oldest binlogs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drainer.pumps.go_pump import cut
from drainer.pumps.watermark import BatchLimits, PumpMark, Watermark
from drainer.spark.source.stream import caught_up

OURS = replace(cut([], BatchLimits(1), node_id="a", host="a:1", resolved_ts=100), extension=True)


def go(resolved_ts: int) -> PumpMark:
    return cut([], BatchLimits(1), node_id="go", host="go:1", resolved_ts=resolved_ts)


@pytest.mark.parametrize(
    ("seen", "patience", "surveys"),
    [
        pytest.param([10, 20, 30, 30, 40], 9, 4, id="until it does not rise"),
        pytest.param([10, 20, 90, 95], 9, 3, id="until it is enough"),
        pytest.param([10, 20, 30, 40], 2, 3, id="until its time is up"),
        pytest.param([90, 95], 9, 1, id="enough at once"),
    ],
)
async def test_bounded_query_waits_for_go_pumps_stream_to_catch_up(
    seen: list[int], patience: int, surveys: int
) -> None:
    asked: list[int] = []
    pauses = 0

    async def survey() -> Watermark:
        asked.append(seen[len(asked)])
        return Watermark(asked[-1], (OURS, go(asked[-1])))

    async def pause() -> bool:
        nonlocal pauses
        pauses += 1
        return pauses <= patience

    found = await caught_up(survey, pause, enough_ts=90)
    assert (found.ts, asked) == (seen[surveys - 1], seen[:surveys])


async def test_bounded_query_does_not_wait_for_pumps_with_watermark() -> None:
    async def survey() -> Watermark:
        return Watermark(10, (OURS,))

    async def pause() -> bool:
        raise AssertionError("it waits")

    assert (await caught_up(survey, pause, enough_ts=90)).ts == 10
