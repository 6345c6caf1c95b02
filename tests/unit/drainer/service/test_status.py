"""The lag that status, metric and page show."""

from __future__ import annotations

import time
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
from binlog.cluster import tso

from drainer.apply.progress import Decisions, Progress
from drainer.pumps.watermark import Watermark
from drainer.service.status import Status
from tests.unit.drainer.service.test_scheduler import Position, made


def status_at(position_ts: int, first_ts: int = 0) -> Status:
    scheduler, pumps = made(lambda *_: Watermark(0, ()), Position(position_ts))
    return Status(
        node_id="d", destination=SimpleNamespace(name="x"), pipeline=scheduler._pipeline, scheduler=scheduler,
        pumps=pumps, synced_after_s=0, steer=AsyncMock(), first_ts=first_ts, verification=dict,
    )  # type: ignore[arg-type]  # fmt: skip


def seconds_ago(seconds: float) -> int:
    return tso.compose(int((time.time() - seconds) * 1000))


@pytest.mark.parametrize("has_position", [True, False])
async def test_lag_before_first_batch_is_age_of_first_binlog(has_position: bool) -> None:
    status = status_at(seconds_ago(138), 5) if has_position else status_at(0, seconds_ago(138))
    assert 138 <= status._lag_s() < 600
    assert not status._is_synced(), "nothing came because nothing can be applied"


async def test_the_phase_until_the_first_batch_is_applied() -> None:
    """A start with much to apply says so; it is ready meanwhile."""
    status = status_at(seconds_ago(138))
    state, progress = status.scheduler.watermark_state, Progress()
    status.pipeline, status.pumps = (
        SimpleNamespace(progress=progress, position_ts=5, decisions=Decisions()),
        SimpleNamespace(views={}),
    )  # type: ignore[assignment]

    assert status.document()["Building"] == []
    status.destination = SimpleNamespace(name="x", building=lambda: ["ALTER TABLE t ADD KEY i (v) (5 s)"])  # type: ignore[assignment]
    assert status.document()["Building"] == ["ALTER TABLE t ADD KEY i (v) (5 s)"]

    def phase() -> object:
        return status.document()["Phase"]

    assert phase() == "starting Spark"
    status.phase = ""
    assert phase() == "reading the first batch"
    state.watermark_ts = seconds_ago(2)
    progress.batch_since_s = time.time()
    assert phase() == "applying the first batch"
    assert (await status.ready()).status == 200
    state.applied_ts = seconds_ago(5)
    assert phase() == ""
    progress.batch_since_s = 0.0
    status._began_ts = state.watermark_ts = state.applied_ts
    assert phase() == "", "there is nothing to apply"


async def test_lag_with_unknown_first_binlog_counts_from_start() -> None:
    status = status_at(0)
    status.first_ts = seconds_ago(70)
    assert status._lag_s() >= 70


async def test_drainer_that_has_applied_everything_is_synced() -> None:
    assert status_at(seconds_ago(2))._is_synced()
