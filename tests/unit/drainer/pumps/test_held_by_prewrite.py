"""What holds the watermark back is named also where every pump answers: a prewrite whose commit does not come."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest
import structlog
from binlog.pb import pump_ext_pb2 as ext
from binlog.pb.pump_ext_pb2 import PendingPrewrite as Pending
from binlog.runtime.security import Security

from drainer.pumps.client import ExtensionPump
from drainer.pumps.survey import HOLDS_MS, PumpView, held_by_prewrite
from drainer.pumps.watermark import BatchLimits, Watermark
from drainer.service.status import _HELD, Status
from tests.support.stub_pump import StubPump
from tests.unit.drainer.service.test_scheduler import Position, made, mark, next_until

OLD = Pending(start_ts=101, age_ms=8_000, writer=b"\xab" * 16)


def seen(*marks: object) -> Watermark:
    return Watermark(min(m.resolved_ts for m in marks), tuple(marks))  # type: ignore[attr-defined, arg-type]


def test_watermark_held_by_old_prewrite_names_lowest_pump() -> None:
    behind, ahead = (
        mark(100, node_id="a", holding=OLD),
        mark(200, node_id="b", holding=Pending(start_ts=201, age_ms=90_000)),
    )
    found = held_by_prewrite(seen(ahead, behind))
    assert found is not None
    error, age_s = found
    assert (error.node_id, age_s) == ("a", 8.0)
    assert "held back by pump a: its prewrite 101 waits for the commit of writer abab" in str(error)
    assert held_by_prewrite(seen(mark(100, node_id="a"), ahead)) is None, "b is ahead, and holds nobody"
    assert held_by_prewrite(seen(mark(100, holding=Pending(start_ts=101, age_ms=HOLDS_MS - 1)))) is None
    assert held_by_prewrite(Watermark(0, ())) is None


def test_watermark_held_by_ddl_prewrite_names_job_and_remedy() -> None:
    found = held_by_prewrite(seen(mark(100, holding=Pending(start_ts=101, age_ms=8_000, ddl_job_id=77))))
    assert found is not None
    assert "its prewrite 101 of DDL job 77 waits for its commit" in str(found[0])
    assert "binlogctl settle" in str(found[0])


async def test_pump_holding_by_prewrite_is_shown_until_released() -> None:
    held = [True]
    scheduler, pumps = made(lambda *_: seen(mark(100, holding=OLD if held else None)), Position(100))
    pumps.views = {"a": PumpView("a")}  # type: ignore[attr-defined]
    status = Status(
        node_id="d", destination=SimpleNamespace(name="x"), pipeline=scheduler._pipeline, scheduler=scheduler,
        pumps=pumps, synced_after_s=0, steer=AsyncMock(), verification=dict,  # type: ignore[arg-type]
    )  # fmt: skip
    view = pumps.views["a"]  # type: ignore[attr-defined]
    with structlog.testing.capture_logs() as lines:
        assert await next_until(scheduler, 100) == 100
    watermark_state = scheduler.watermark_state
    assert watermark_state.held_by == "a"
    assert "its prewrite 101" in watermark_state.held_back
    assert watermark_state.held_since is not None and 7 < time.time() - watermark_state.held_since < 60
    assert 7 < status._held_s(view) < 60
    told = [line for line in lines if line["event"] == "the watermark does not advance"]
    assert len(told) == 1, "once, however often it is looked at"
    assert "writer abab" in told[0]["why"]
    held.clear()
    assert await next_until(scheduler, 100) == 100
    assert (watermark_state.held_back, watermark_state.held_by, watermark_state.held_since) == ("", "", None)
    assert status._held_s(view) == 0
    _HELD.labels("a").set(0)


@pytest.mark.parametrize("told", [True, False])
async def test_watermark_answer_of_pump_has_its_oldest_pending_prewrite(told: bool) -> None:
    class Telling(StubPump):
        def Watermark(self, request: ext.WatermarkReq, context: object) -> ext.WatermarkResp:
            answer = super().Watermark(request, context)  # type: ignore[arg-type]
            if told:
                answer.oldest_pending.start_ts, answer.oldest_pending.age_ms = 101, 8000
                answer.oldest_pending.writer = b"\xab" * 16
            return answer

    pump = await asyncio.to_thread(Telling)
    client = ExtensionPump("a", pump.host, cluster_id=1, security=Security())
    try:
        found = await client.mark(after_ts=0, limits=BatchLimits(0))
        assert found.holding == (OLD if told else None)
    finally:
        await client.close()
        await asyncio.to_thread(pump.stop)
