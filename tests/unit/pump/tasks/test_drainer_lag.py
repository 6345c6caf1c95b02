"""P-GC-06: drainers far behind are told of before and while garbage collection waits for them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import structlog
from binlog.cluster.registry import NodeStatus, Registry, State
from binlog.cluster.tso import compose
from binlog.errors import BinlogError
from binlog.runtime import metrics

from pump.tasks.gc import far_behind, report_far_behind
from tests.support.memory_etcd import MemoryEtcd
from tests.unit.pump.build import SetClock, opened

HOUR_MS = 3_600_000
PURGED = compose(1_700_000_000_000)
WEEK = timedelta(days=7)


def drainer(name: str, ahead_ms: int, state: State = State.ONLINE) -> NodeStatus:
    return NodeStatus(name, "h:1", state, max_commit_ts=PURGED + compose(ahead_ms))


def test_far_behind_names_drainers_within_20_hours_of_purge_point() -> None:
    drainers = [
        drainer("near", 20 * HOUR_MS),
        drainer("far", 20 * HOUR_MS - 1),
        drainer("waited for", 0, State.PAUSED),
        drainer("gone", 0, State.OFFLINE),
    ]
    found = far_behind(drainers, purged_ts=PURGED, retention=WEEK)
    assert [each.node_id for each in found] == ["far", "waited for"]


def test_far_behind_margin_shrinks_with_short_retention() -> None:
    """Upstream's twenty hours are all of them, where binlogs are kept for eight."""
    drainers = [drainer("near", 4 * HOUR_MS), drainer("far", 4 * HOUR_MS - 1)]
    found = far_behind(drainers, purged_ts=PURGED, retention=timedelta(hours=8))
    assert [each.node_id for each in found] == ["far"]


def test_far_behind_names_nobody_before_first_purge() -> None:
    assert far_behind([drainer("new", 0)], purged_ts=0, retention=WEEK) == []


async def test_drainers_far_behind_are_counted_and_logged(tmp_path: Path) -> None:
    etcd = MemoryEtcd()
    registry = Registry(etcd)
    await registry.create("drainers", drainer("lag far", 1))
    await registry.create("drainers", drainer("lag near", 21 * HOUR_MS))
    async with opened(tmp_path, SetClock(PURGED)) as store:
        with structlog.testing.capture_logs() as lines:
            assert await report_far_behind(store, registry, WEEK) == []
            store.index.save_purged(PURGED)
            assert [each.node_id for each in await report_far_behind(store, registry, WEEK)] == ["lag far"]
        assert [line["drainer"] for line in lines] == ["lag far"]
        assert "kept past gc" in lines[0]["event"]
        text = metrics.render().decode()
        assert 'binlog_pump_detected_drainer_binlog_purge_count{id="lag far"} 1.0' in text
        assert "lag near" not in text
        await etcd.put("/tidb-binlog/v1/drainers/broken", b"{")
        with pytest.raises(BinlogError, match="drainers/broken"):
            await report_far_behind(store, registry, WEEK)
