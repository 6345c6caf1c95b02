"""Which one of several processes with one node id runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from binlog.cluster.candidates import CANDIDATES_PREFIX, Candidate, waiting_by_node
from binlog.cluster.etcd import KV, Event, Lease
from binlog.errors import BinlogError, EtcdError

from tests.support.keep_alive_task import KeepAliveTask
from tests.support.memory_etcd import MemoryEtcd

WAIT_S = 30.0


class CountingEtcd(MemoryEtcd):
    """`asked`: how often a prefix was listed. `refused`: how many of the next writes fail. `is_silent`: watches see
    nothing."""

    asked = 0
    refused = 0
    is_silent = False

    async def put(self, key: str, value: bytes, *, lease: int | None = None) -> int:
        if self.refused:
            self.refused -= 1
            raise EtcdError("refused")
        return await super().put(key, value, lease=lease)

    async def watch(self, prefix: str, *, revision: int) -> AsyncIterator[list[Event]]:
        if self.is_silent:
            await asyncio.Event().wait()
        async for events in super().watch(prefix, revision=revision):
            yield events

    async def range(self, prefix: str) -> tuple[list[KV], int]:
        self.asked += 1
        return await super().range(prefix)


class Kept(KeepAliveTask):
    has_stopped = False

    def stop(self) -> None:
        self.has_stopped = True
        super().stop()


class World:
    """An etcd in memory, and the leases of the candidates in the order in which they were given."""

    def __init__(self) -> None:
        self.etcd = CountingEtcd()
        self.leases: list[Lease] = []
        self.kept: list[Kept] = []

    def candidate(self, address: str, node_id: str = "d", lease_s: int = 4) -> Candidate:
        return Candidate(self.etcd, self.keep, node_id=node_id, address=address, poll_s=0.001, lease_s=lease_s)

    def keep(self, lease: Lease, asked_s: float) -> Kept:
        self.leases.append(lease)
        self.kept.append(Kept(lease, asked_s))
        return self.kept[-1]


@pytest.fixture
async def world():  # type: ignore[no-untyped-def]
    made = World()
    yield made
    for one in made.kept:
        one.stop()


async def within(work) -> object:  # type: ignore[no-untyped-def]
    async with asyncio.timeout(WAIT_S):
        return await work


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  each turn of the loop may make it true
            await asyncio.sleep(0)


async def test_first_candidate_runs_and_next_ones_follow_in_their_order(world: World) -> None:
    a, b, c = (world.candidate(name) for name in "abc")
    told: list[str] = []
    await within(a.first(told.append))
    assert (told, a.running) == ([], "a")
    waiting_b = asyncio.create_task(b.first(told.append))
    await until(lambda: told == ["a"])
    waiting_c = asyncio.create_task(c.first(told.append))
    await until(lambda: told == ["a", "a"])
    assert await waiting_by_node(world.etcd) == {"d": ["b", "c"]}
    await a.leave()
    await within(waiting_b)
    await until(lambda: told == ["a", "a", "b"])
    assert not waiting_c.done()
    await b.leave()
    await within(waiting_c)


async def test_candidate_whose_lease_ended_is_overtaken(world: World) -> None:
    a, b = world.candidate("a"), world.candidate("b")
    await within(a.first(print))
    waiting = asyncio.create_task(b.first(lambda _: None))
    await until(lambda: len(world.leases) == 2)
    world.etcd.expire(world.leases[0].id)
    await within(waiting)
    with pytest.raises(BinlogError, match="d runs at b now"):
        await within(a.stay_first())


async def test_candidate_whose_lease_ended_stays_if_no_other_waits(world: World) -> None:
    a = world.candidate("a")
    await within(a.first(print))
    staying = asyncio.create_task(a.stay_first())
    world.etcd.expire(world.leases[0].id)
    await until(lambda: len(world.leases) == 2)
    world.etcd.fail()
    asked = world.etcd.asked
    await until(lambda: world.etcd.asked >= asked + 2)
    world.etcd.recover()
    late = world.candidate("late")
    told: list[str] = []
    waiting = asyncio.create_task(late.first(told.append))
    await until(lambda: told == ["a"] and a.waiting == ("late",))
    assert not staying.done()
    for task in (staying, waiting):
        task.cancel()
    await asyncio.gather(staying, waiting, return_exceptions=True)


async def test_candidate_becomes_first_after_outage_of_etcd(world: World) -> None:
    a, b = world.candidate("a"), world.candidate("b")
    await within(a.first(print))
    waiting = asyncio.create_task(b.first(lambda _: None))
    await until(lambda: b.running == "a")
    world.etcd.fail()
    world.etcd.break_watches()
    await asyncio.sleep(0)
    world.etcd.recover()
    await a.leave()
    await within(waiting)


async def test_candidates_of_other_node_ids_do_not_count(world: World) -> None:
    await within(world.candidate("a", "d").first(print))
    await within(world.candidate("b", "d2").first(print))
    await world.etcd.put(f"{CANDIDATES_PREFIX}d/zz", b"[]")
    assert await waiting_by_node(world.etcd) == {"d": ["[]"], "d2": []}


async def test_waiting_candidate_asks_only_when_candidates_change(world: World) -> None:
    a, b = world.candidate("a"), world.candidate("b")
    await within(a.first(print))
    waiting = asyncio.create_task(b.first(lambda _: None))
    await until(lambda: b.running == "a")
    asked = world.etcd.asked
    for _ in range(20):
        await asyncio.sleep(0)
    assert world.etcd.asked == asked
    await a.leave()
    await within(waiting)


async def test_candidate_looks_again_although_watch_sees_no_change(world: World) -> None:
    a, b = world.candidate("a"), world.candidate("b", lease_s=1)
    await within(a.first(print))
    world.etcd.is_silent = True
    waiting = asyncio.create_task(b.first(lambda _: None))
    await until(lambda: b.running == "a")
    await a.leave()
    await within(waiting)


async def test_candidate_whose_key_was_refused_has_one_lease_in_the_end(world: World) -> None:
    world.etcd.refused = 2
    await within(world.candidate("a").first(print))
    assert list(world.etcd.leases) == [world.leases[2].id]
    assert [kept.has_stopped for kept in world.kept] == [True, True, False]


async def test_candidate_that_leaves_while_etcd_is_down_renews_its_lease_no_more(world: World) -> None:
    a = world.candidate("a")
    await within(a.first(print))
    world.etcd.fail()
    await a.leave()
    assert world.kept[0].has_stopped
