"""Rule 8 as calls: a registry in memory, pumps that answer what they are told."""

from __future__ import annotations

import pytest
from binlog.cluster.registry import ROOT, NodeStatus, State
from binlog.errors import ClusterMismatch, PumpUnavailable
from structlog.testing import capture_logs

from drainer.pumps.survey import HeldBack
from tests.unit.drainer.pumps.world import LIMITS, World


async def test_survey_watermark_is_lowest_of_counting_pumps() -> None:
    world = World()
    await world.put("a", State.ONLINE)
    await world.put("b", State.CLOSING)
    await world.put("gone", State.OFFLINE)
    world.answers = {("a", True): 90, ("b", True): 80}
    assert (await world.pumps.survey(after_ts=10, limits=LIMITS)).ts == 80
    assert {client.node_id for client in world.clients} == {"a", "b"}


async def test_pump_that_registers_during_survey_is_asked_too() -> None:
    world = World()
    await world.put("a", State.ONLINE)
    await world.pumps.survey(after_ts=10, limits=LIMITS)
    world.answers[("late", True)] = 50

    async def register() -> None:
        world.client("a").when_asked = None
        await world.put("late", State.ONLINE)

    world.client("a").when_asked = register
    assert (await world.pumps.survey(after_ts=10, limits=LIMITS)).ts == 50


async def test_offline_pump_that_was_online_during_survey_restarts_it() -> None:
    """Rule 8's counterexample: between two lists that look equal it was online and took a write."""
    world = World()
    await world.put("a", State.ONLINE)
    await world.put("b", State.OFFLINE)
    await world.pumps.survey(after_ts=10, limits=LIMITS)
    asked = world.client("a").asked

    async def come_and_go() -> None:
        world.client("a").when_asked = None
        await world.put("b", State.ONLINE)
        await world.put("b", State.OFFLINE)

    world.client("a").when_asked = come_and_go
    await world.pumps.survey(after_ts=10, limits=LIMITS)
    assert world.client("a").asked == asked + 2


async def test_pump_list_that_keeps_changing_holds_watermark() -> None:
    world = World()
    await world.put("a", State.ONLINE)
    await world.pumps.survey(after_ts=10, limits=LIMITS)
    number = 0

    async def another() -> None:
        nonlocal number
        number += 1
        await world.put(f"p{number}", State.OFFLINE)

    world.client("a").when_asked = another
    with pytest.raises(HeldBack, match="changed"):
        await world.pumps.survey(after_ts=10, limits=LIMITS)


async def test_dead_pump_holds_watermark_by_name_until_it_answers() -> None:
    world = World()
    await world.put("a", State.ONLINE)
    await world.put("dead", State.ONLINE)
    world.answers[("dead", True)] = PumpUnavailable("no answer")
    with capture_logs() as lines:
        for _ in range(3):
            with pytest.raises(HeldBack) as caught:
                await world.pumps.survey(after_ts=10, limits=LIMITS)
    assert caught.value.node_id == "dead"
    view = world.pumps.views["dead"]
    assert view.down_since is not None and "no answer" in view.error
    world.client("dead").answer = 70
    with capture_logs() as more:
        assert (await world.pumps.survey(after_ts=10, limits=LIMITS)).ts == 70
    # Away for a moment is no warning.
    told = [(line["log_level"], line["event"], line["pump"]) for line in (*lines, *more)]
    assert told == [("info", "a pump does not answer", "dead"), ("info", "pump answers again", "dead")]
    assert "lasted_s" in more[0]
    assert (view.down_since, view.error) == (None, "")


async def test_dead_pump_forced_offline_releases_watermark() -> None:
    world = World()
    await world.put("a", State.ONLINE)
    await world.put("dead", State.ONLINE)
    world.answers[("dead", True)] = PumpUnavailable("no answer")
    with pytest.raises(HeldBack):
        await world.pumps.survey(after_ts=10, limits=LIMITS)
    await world.put("dead", State.OFFLINE)
    assert (await world.pumps.survey(after_ts=10, limits=LIMITS)).ts == 100
    assert all(client.closed for client in world.clients if client.node_id == "dead")


async def test_paused_pump_holds_watermark_until_its_last_commit_is_read() -> None:
    world = World()
    await world.put("a", State.ONLINE)
    await world.put("p", State.PAUSED, max_commit_ts=50, label={"final": "true"})
    world.answers[("p", True)] = PumpUnavailable("not running")
    with pytest.raises(HeldBack):
        await world.survey(49)
    assert await world.survey(50) == 100


async def test_pump_with_new_address_gets_new_connection() -> None:
    world = World()
    await world.put("a", State.ONLINE)
    await world.pumps.survey(after_ts=10, limits=LIMITS)
    record = await world.registry.get("pumps", "a")
    assert record is not None
    moved = NodeStatus("a", "elsewhere:2", State.ONLINE)
    await world.registry.update("pumps", moved, mod_revision=record.mod_revision)
    found = await world.pumps.survey(after_ts=10, limits=LIMITS)
    assert [mark.host for mark in found.marks] == ["elsewhere:2"]


async def test_pump_of_another_cluster_raises_cluster_mismatch() -> None:
    world = World()
    await world.put("a", State.ONLINE)
    world.answers[("a", True)] = ClusterMismatch.of(1, 2)
    with pytest.raises(ClusterMismatch):
        await world.pumps.survey(after_ts=10, limits=LIMITS)


async def test_unavailable_registry_holds_watermark() -> None:
    world = World()
    world.etcd.fail()
    with pytest.raises(HeldBack, match="registry"):
        await world.pumps.survey(after_ts=10, limits=LIMITS)


async def test_unreadable_pump_record_holds_watermark_until_repaired() -> None:
    """Rule 8: it may be a pump that takes writes, so nothing is known to be final without it."""
    world = World()
    await world.put("a", State.ONLINE)
    assert (await world.pumps.survey(after_ts=10, limits=LIMITS)).ts == 100
    await world.etcd.put(f"{ROOT}/pumps/torn", b'{"nodeId":"torn"')
    for _ in range(2):
        with pytest.raises(HeldBack, match="torn"):
            await world.pumps.survey(after_ts=10, limits=LIMITS)
    world.answers[("torn", True)] = 60
    record = NodeStatus("torn", "torn:1", State.ONLINE)
    await world.etcd.put(f"{ROOT}/pumps/torn", record.to_json())
    assert (await world.pumps.survey(after_ts=10, limits=LIMITS)).ts == 60
