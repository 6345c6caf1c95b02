"""Pumps that were away, forced offline or in other hands: rule 2, and a data-dir that changes hands."""

from __future__ import annotations

import pytest
from binlog.cluster.registry import State, key_of
from binlog.errors import EtcdError

from drainer.pumps.client import Missed, NoExtension
from drainer.pumps.survey import HeldBack
from tests.unit.drainer.pumps.world import LIMITS, World


async def forced_offline(world: World) -> None:
    """Pump b was read up to 50; then it died, was forced offline, and the drainer went on to 100 without it."""
    await world.put("a", State.ONLINE)
    await world.put("b", State.ONLINE)
    world.answers = {("a", True): 100, ("b", True): 50}
    assert await world.survey(10) == 50
    await world.put("b", State.OFFLINE)
    assert await world.survey(50) == 100
    world.answers = {("a", True): 200, ("b", True): 200}
    world.client("a").answer = 200


async def test_rule_2_returning_forced_offline_pump_reports_binlogs_below_position() -> None:
    """And what it holds above the position is read as ever."""
    world = World()
    world.held = {"b": ((40, 45), (55, 60), (90, 99), (95, 130))}
    await forced_offline(world)
    await world.put("b", State.ONLINE)
    assert await world.survey(100) == 200
    assert world.pumps.views["b"].missed == Missed(2, ((55, 60), (90, 99)))
    assert world.membership.left_ts("b") is None
    assert await world.survey(200) == 200, "it is looked at once"


async def test_rule_2_returning_pump_without_binlogs_in_gap_reports_nothing() -> None:
    world = World()
    world.held = {"b": ((40, 45), (150, 160))}
    await forced_offline(world)
    await world.put("b", State.ONLINE)
    assert await world.survey(100) == 200
    assert world.pumps.views["b"].missed.count == 0


async def test_rule_2_pump_with_removed_record_counts_as_departed() -> None:
    world = World()
    await world.put("a", State.ONLINE)
    await world.put("b", State.ONLINE)
    await world.survey(10)
    await world.etcd.delete(key_of("pumps", "b"))
    await world.survey(20)
    view = world.pumps.views["b"]
    assert (view.counts, view.error, world.membership.left_ts("b")) == (
        False,
        "its record was removed from the registry",
        20,
    )
    world.held = {"b": ((25, 30),)}
    await world.put("b", State.ONLINE)
    await world.survey(50)
    assert (view.counts, view.error, view.missed.count) == (True, "", 1)


async def test_rule_2_departed_ts_survives_restart_of_drainer() -> None:
    world = World()
    world.held = {"b": ((55, 60),)}
    await forced_offline(world)
    world.begin()
    await world.membership.load()
    assert await world.survey(100) == 200
    await world.put("b", State.ONLINE)
    world.begin()
    await world.membership.load()
    assert await world.survey(150) == 200
    assert world.pumps.views["b"].missed == Missed(1, ((55, 60),))


async def test_rule_2_pending_prewrite_of_returning_pump_holds_watermark() -> None:
    """Its commit may still come, below the position: nothing moves until it is known, and then it is an alarm."""
    world = World()
    await forced_offline(world)
    world.answers[("b", True)] = 54
    await world.put("b", State.ONLINE)
    assert await world.survey(100) == 54
    assert world.membership.left_ts("b") == 50
    world.client("b").answer, world.client("b").held = 200, ((55, 60),)
    assert await world.survey(100) == 200
    assert world.pumps.views["b"].missed.count == 1


async def test_rule_2_departed_ts_is_written_before_watermark_moves() -> None:
    world = World()
    await world.put("a", State.ONLINE)
    await world.put("b", State.ONLINE)
    await world.survey(10)
    await world.put("b", State.OFFLINE)
    put, fails = world.etcd.put, True

    async def unwilling(key: str, value: bytes, **more: object) -> int:
        if fails:
            raise EtcdError("no leader")
        return await put(key, value)

    world.etcd.put = unwilling  # type: ignore[method-assign]
    with pytest.raises(HeldBack, match="registry"):
        await world.survey(50)
    fails = False
    assert await world.survey(60) == 100
    assert world.membership.left_ts("b") == 60


async def test_rule_2_survey_ahead_of_position_waits_for_departed_ts() -> None:
    """While a batch is applied nobody knows yet where a pump that leaves is left."""
    world = World()
    await world.put("a", State.ONLINE)
    await world.put("b", State.ONLINE)
    await world.survey(10)
    await world.put("b", State.OFFLINE)
    with pytest.raises(HeldBack):
        await world.pumps.survey(after_ts=80, limits=LIMITS)
    assert world.membership.left_ts("b") is None
    await world.survey(10)
    assert world.membership.left_ts("b") == 10
    assert (await world.pumps.survey(after_ts=80, limits=LIMITS)).ts == 100


async def test_rule_2_returning_pump_is_checked_after_unfinished_batch() -> None:
    """It goes on without the pump that is back, so what that one holds of the batch's range is passed too."""
    world = World()
    world.held = {"b": ((55, 60), (105, 110))}
    await forced_offline(world)
    world.unfinished = True
    await world.put("b", State.ONLINE)
    await world.survey(100)
    assert world.membership.left_ts("b") == 50 and world.pumps.views["b"].missed.count == 0
    world.unfinished = False
    await world.survey(120)
    assert world.pumps.views["b"].missed.count == 2


async def test_pump_with_extension_replacing_go_pump_is_detected_after_reconnect() -> None:
    world = World()
    await world.put("p", State.ONLINE)
    world.answers = {("p", True): NoExtension("unimplemented"), ("p", False): 60}
    assert not (await world.pumps.survey(after_ts=10, limits=LIMITS)).marks[0].extension
    dialled = len(world.clients)
    await world.survey(10)
    assert len(world.clients) == dialled, "nobody asks again while the connection stands"
    world.answers[("p", True)] = 70
    world.client("p").interrupted = True
    found = await world.pumps.survey(after_ts=10, limits=LIMITS)
    assert found.ts == 70 and found.marks[0].extension
    assert [client.closed for client in world.clients] == [True, True, False]


async def test_restarted_go_pump_is_still_go_pump() -> None:
    world = World()
    await world.put("p", State.ONLINE)
    world.answers = {("p", True): NoExtension("unimplemented"), ("p", False): 60}
    await world.survey(10)
    go = world.client("p")
    go.interrupted = True
    assert not (await world.pumps.survey(after_ts=10, limits=LIMITS)).marks[0].extension
    assert world.client("p") is go and not go.interrupted
