"""Rule 8 as calls: a registry in memory, pumps that answer what they are told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from binlog.errors import ClusterMismatch, EtcdError, PumpUnavailable
from binlog.node import NodeStatus, State
from binlog.registry import ROOT, Registry, key_of
from binlog.stub.etcd import MemoryEtcd

from drainer.pumps.books import Books
from drainer.pumps.client import Inspection, NoExtension, PumpClient
from drainer.pumps.left import Left, Missed
from drainer.pumps.mark import Limits, PumpMark, Stop
from drainer.pumps.survey import PumpSet
from drainer.pumps.view import HeldBack

LIMITS = Limits(1000)


class Scripted:
    """A pump's client whose answer is a resolved ts or an error. `when_asked` runs before each answer."""

    def __init__(self, node_id: str, host: str, extension: bool) -> None:
        self.node_id, self.host, self.extension = node_id, host, extension
        self.answer: int | Exception = 100
        self.when_asked: Callable[[], Awaitable[None]] | None = None
        self.interrupted = False
        self.held: tuple[tuple[int, int], ...] = ()
        self.asked = 0
        self.closed = False

    async def mark(self, *, after_ts: int, limits: Limits) -> PumpMark:
        self.asked += 1
        if self.when_asked is not None:
            await self.when_asked()
        if isinstance(self.answer, Exception):
            raise self.answer
        return PumpMark(self.node_id, self.host, self.extension, self.answer, self.answer, 0, 0, Stop.RESOLVED)

    async def inspect(self) -> Inspection | None:
        return Inspection(0, 0, (), 0, ())

    async def missed(self, *, after_ts: int, until_ts: int) -> Missed:
        found = tuple(pair for pair in self.held if after_ts < pair[1] <= until_ts)
        return Missed(len(found), found)

    async def close(self) -> None:
        self.closed = True


class World:
    """A registry and its pumps."""

    def __init__(self) -> None:
        self.etcd = MemoryEtcd()
        self.registry = Registry(self.etcd)
        self.clients: list[Scripted] = []
        self.answers: dict[tuple[str, bool], int | Exception] = {}
        self.held: dict[str, tuple[tuple[int, int], ...]] = {}
        self.position_ts = 10
        self.begin()

    def begin(self) -> None:
        """A life of the drainer begins."""
        self.left = Left(self.etcd, "feed")
        self.unfinished = False
        self.pumps = PumpSet(
            self.registry,
            self.dial,
            books=Books(self.left, position=lambda: self.position_ts, unfinished=lambda: self.unfinished),
        )

    async def survey(self, position_ts: int) -> int:
        """The watermark that is believed at this position."""
        self.position_ts = position_ts
        return (await self.pumps.survey(after_ts=position_ts, limits=LIMITS)).ts

    def dial(self, node_id: str, host: str, extension: bool) -> PumpClient:
        client = Scripted(node_id, host, extension)
        client.answer = self.answers.get((node_id, extension), 100)
        client.held = self.held.get(node_id, ())
        self.clients.append(client)
        return client

    async def put(self, node_id: str, state: State, **more: object) -> None:
        status = NodeStatus(node_id, f"{node_id}:1", state, **more)  # type: ignore[arg-type]
        found = await self.registry.get("pumps", node_id)
        if found is None:
            await self.registry.create("pumps", status)
        else:
            await self.registry.update("pumps", status, mod_revision=found.mod_revision)

    def client(self, node_id: str) -> Scripted:
        return next(c for c in self.clients if c.node_id == node_id and not c.closed)


async def test_the_watermark_is_the_least_of_those_that_count() -> None:
    world = World()
    await world.put("a", State.ONLINE)
    await world.put("b", State.CLOSING)
    await world.put("gone", State.OFFLINE)
    world.answers = {("a", True): 90, ("b", True): 80}
    assert (await world.pumps.survey(after_ts=10, limits=LIMITS)).ts == 80
    assert {client.node_id for client in world.clients} == {"a", "b"}


async def test_a_pump_that_registers_while_others_are_asked_is_asked_too() -> None:
    world = World()
    await world.put("a", State.ONLINE)
    await world.pumps.survey(after_ts=10, limits=LIMITS)
    world.answers[("late", True)] = 50

    async def register() -> None:
        world.client("a").when_asked = None
        await world.put("late", State.ONLINE)

    world.client("a").when_asked = register
    assert (await world.pumps.survey(after_ts=10, limits=LIMITS)).ts == 50


async def test_an_offline_pump_that_came_and_went_while_others_were_asked_starts_it_over() -> None:
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


async def test_a_list_that_never_settles_holds_back() -> None:
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


async def test_a_dead_pump_holds_back_by_name_and_since_when_until_it_answers() -> None:
    world = World()
    await world.put("a", State.ONLINE)
    await world.put("dead", State.ONLINE)
    world.answers[("dead", True)] = PumpUnavailable("no answer")
    with pytest.raises(HeldBack) as caught:
        await world.pumps.survey(after_ts=10, limits=LIMITS)
    assert caught.value.node_id == "dead"
    view = world.pumps.views["dead"]
    assert view.down_since is not None and "no answer" in view.error
    world.client("dead").answer = 70
    assert (await world.pumps.survey(after_ts=10, limits=LIMITS)).ts == 70
    assert (view.down_since, view.error) == (None, "")


async def test_a_dead_pump_that_is_forced_offline_is_let_go() -> None:
    world = World()
    await world.put("a", State.ONLINE)
    await world.put("dead", State.ONLINE)
    world.answers[("dead", True)] = PumpUnavailable("no answer")
    with pytest.raises(HeldBack):
        await world.pumps.survey(after_ts=10, limits=LIMITS)
    await world.put("dead", State.OFFLINE)
    assert (await world.pumps.survey(after_ts=10, limits=LIMITS)).ts == 100
    assert all(client.closed for client in world.clients if client.node_id == "dead")


async def test_a_paused_pump_of_ours_holds_back_only_until_its_last_commit_is_read() -> None:
    world = World()
    await world.put("a", State.ONLINE)
    await world.put("p", State.PAUSED, max_commit_ts=50, label={"final": "true"})
    world.answers[("p", True)] = PumpUnavailable("not running")
    with pytest.raises(HeldBack):
        await world.survey(49)
    assert await world.survey(50) == 100


async def test_a_paused_go_pump_holds_back_for_ever() -> None:
    world = World()
    await world.put("go", State.PAUSED, max_commit_ts=50)
    world.answers[("go", True)] = PumpUnavailable("not running")
    with pytest.raises(HeldBack):
        await world.survey(10**6)


async def test_without_the_extension_a_pump_is_taken_for_a_go_pump() -> None:
    world = World()
    await world.put("go", State.ONLINE)
    world.answers = {("go", True): NoExtension("unimplemented"), ("go", False): 60}
    found = await world.pumps.survey(after_ts=10, limits=LIMITS)
    assert found.ts == 60 and not found.marks[0].extension


async def test_a_pump_on_a_new_address_gets_a_new_connection() -> None:
    world = World()
    await world.put("a", State.ONLINE)
    await world.pumps.survey(after_ts=10, limits=LIMITS)
    record = await world.registry.get("pumps", "a")
    assert record is not None
    moved = NodeStatus("a", "elsewhere:2", State.ONLINE)
    await world.registry.update("pumps", moved, mod_revision=record.mod_revision)
    found = await world.pumps.survey(after_ts=10, limits=LIMITS)
    assert [mark.host for mark in found.marks] == ["elsewhere:2"]


async def test_a_pump_of_another_cluster_is_an_error_for_good() -> None:
    world = World()
    await world.put("a", State.ONLINE)
    world.answers[("a", True)] = ClusterMismatch(1, 2)
    with pytest.raises(ClusterMismatch):
        await world.pumps.survey(after_ts=10, limits=LIMITS)


async def test_a_registry_that_does_not_answer_holds_back() -> None:
    world = World()
    world.etcd.fail()
    with pytest.raises(HeldBack, match="registry"):
        await world.pumps.survey(after_ts=10, limits=LIMITS)


async def test_a_record_that_cannot_be_read_holds_back_until_it_is_repaired() -> None:
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


# Rule 2: pumps that were away


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


async def test_rule_2_what_a_forced_pump_brings_back_is_an_alarm() -> None:
    """And what it holds above the position is read as ever."""
    world = World()
    world.held = {"b": ((40, 45), (55, 60), (90, 99), (95, 130))}
    await forced_offline(world)
    await world.put("b", State.ONLINE)
    assert await world.survey(100) == 200
    assert world.pumps.views["b"].missed == Missed(2, ((55, 60), (90, 99)))
    assert world.left.ts("b") is None
    assert await world.survey(200) == 200, "it is looked at once"


async def test_rule_2_one_that_left_in_order_brings_nothing_back() -> None:
    world = World()
    world.held = {"b": ((40, 45), (150, 160))}
    await forced_offline(world)
    await world.put("b", State.ONLINE)
    assert await world.survey(100) == 200
    assert world.pumps.views["b"].missed.count == 0


async def test_rule_2_a_pump_whose_record_was_removed_has_left_too() -> None:
    world = World()
    await world.put("a", State.ONLINE)
    await world.put("b", State.ONLINE)
    await world.survey(10)
    await world.etcd.delete(key_of("pumps", "b"))
    await world.survey(20)
    view = world.pumps.views["b"]
    assert (view.counts, view.error, world.left.ts("b")) == (False, "its record was removed from the registry", 20)
    world.held = {"b": ((25, 30),)}
    await world.put("b", State.ONLINE)
    await world.survey(50)
    assert (view.counts, view.error, view.missed.count) == (True, "", 1)


async def test_rule_2_where_a_pump_was_left_survives_the_drainer() -> None:
    world = World()
    world.held = {"b": ((55, 60),)}
    await forced_offline(world)
    world.begin()
    await world.left.load()
    assert await world.survey(100) == 200
    await world.put("b", State.ONLINE)
    world.begin()
    await world.left.load()
    assert await world.survey(150) == 200
    assert world.pumps.views["b"].missed == Missed(1, ((55, 60),))


async def test_rule_2_a_prewrite_that_is_pending_there_is_waited_for() -> None:
    """Its commit may still come, below the position: nothing moves until it is known, and then it is an alarm."""
    world = World()
    await forced_offline(world)
    world.answers[("b", True)] = 54
    await world.put("b", State.ONLINE)
    assert await world.survey(100) == 54
    assert world.left.ts("b") == 50
    world.client("b").answer, world.client("b").held = 200, ((55, 60),)
    assert await world.survey(100) == 200
    assert world.pumps.views["b"].missed.count == 1


async def test_rule_2_nothing_is_believed_without_a_pump_before_it_is_written_down() -> None:
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
    assert world.left.ts("b") == 60


async def test_rule_2_a_question_asked_ahead_is_asked_again() -> None:
    """While a batch is applied nobody knows yet where a pump that leaves is left."""
    world = World()
    await world.put("a", State.ONLINE)
    await world.put("b", State.ONLINE)
    await world.survey(10)
    await world.put("b", State.OFFLINE)
    with pytest.raises(HeldBack):
        await world.pumps.survey(after_ts=80, limits=LIMITS)
    assert world.left.ts("b") is None
    await world.survey(10)
    assert world.left.ts("b") == 10
    assert (await world.pumps.survey(after_ts=80, limits=LIMITS)).ts == 100


async def test_rule_2_an_unfinished_batch_ends_before_anybody_looks_back() -> None:
    """It goes on without the pump that is back, so what that one holds of the batch's range is passed too."""
    world = World()
    world.held = {"b": ((55, 60), (105, 110))}
    await forced_offline(world)
    world.unfinished = True
    await world.put("b", State.ONLINE)
    await world.survey(100)
    assert world.left.ts("b") == 50 and world.pumps.views["b"].missed.count == 0
    world.unfinished = False
    await world.survey(120)
    assert world.pumps.views["b"].missed.count == 2


# A data-dir changes hands


async def test_a_pump_of_ours_that_takes_a_go_pumps_place_is_noticed() -> None:
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


async def test_a_go_pump_that_was_only_restarted_stays_one() -> None:
    world = World()
    await world.put("p", State.ONLINE)
    world.answers = {("p", True): NoExtension("unimplemented"), ("p", False): 60}
    await world.survey(10)
    go = world.client("p")
    go.interrupted = True
    assert not (await world.pumps.survey(after_ts=10, limits=LIMITS)).marks[0].extension
    assert world.client("p") is go and not go.interrupted


async def test_a_go_pump_that_takes_ours_place_is_noticed() -> None:
    world = World()
    await world.put("p", State.ONLINE)
    await world.survey(10)
    world.answers = {("p", False): 60}
    world.client("p").answer = NoExtension("unimplemented")
    found = await world.pumps.survey(after_ts=10, limits=LIMITS)
    assert found.ts == 60 and not found.marks[0].extension
