"""The election's shell on an etcd in memory: one leader, its bound in etcd, and who may answer when."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from binlog.cluster.timestamp import BOUND_KEY, LEADER_KEY
from binlog.cluster.tso import compose, physical_ms

from pump.cluster.election import Election
from pump.errors import NotLeader
from pump.rpc.original_service import TsoService
from tests.support.memory_etcd import MemoryEtcd


class Clocks:
    def __init__(self) -> None:
        self.boot_s = 100.0
        self.ms = 1_000_000

    def boot(self) -> float:
        return self.boot_s

    def wall(self) -> int:
        return self.ms


@contextlib.asynccontextmanager
async def candidate(etcd: MemoryEtcd, address: str, clocks: Clocks, *, log_max_ts: int = 0) -> AsyncIterator[Election]:
    election = Election(etcd, log_ts_until=lambda ts: min(ts, log_max_ts), boot_s=clocks.boot, clock_ms=clocks.wall)
    task = asyncio.create_task(election.run(address))
    try:
        yield election
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool], deadline_s: float = 60) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110  the state of another task has no event
            await asyncio.sleep(0.005)


async def test_election_of_two_candidates_has_one_leader_that_stores_its_bound_first() -> None:
    etcd, clocks = MemoryEtcd(), Clocks()
    async with candidate(etcd, "a:1", clocks) as a, candidate(etcd, "b:1", clocks) as b:
        await until(lambda: a.leads or b.leads)
        leader, other = (a, b) if a.leads else (b, a)
        ts = await leader.timestamps(3)
        bound = await etcd.get(BOUND_KEY)
        assert bound is not None
        assert physical_ms(ts) < int(bound.value)
        with pytest.raises(NotLeader):
            await other.timestamps(1)
        await until(lambda: other.leader == leader.leader)


async def test_rule_7_failover_continues_above_last_timestamp_of_old_leader() -> None:
    """The leader stops: its lease goes at once, and the successor starts at the bound."""
    etcd, clocks = MemoryEtcd(), Clocks()
    async with candidate(etcd, "b:1", clocks) as b:
        async with candidate(etcd, "a:1", clocks) as a:
            await until(lambda: a.leads or b.leads)
            first = a if a.leads else b
            last = await first.timestamps(10)
            if first is b:
                return
        await until(lambda: b.leads)
        clocks.ms -= 500_000
        assert await b.timestamps(1) > last


async def test_rule_7_lease_is_checked_after_allocation() -> None:
    """The process is stopped between the two."""
    etcd, clocks = MemoryEtcd(), Clocks()

    async with candidate(etcd, "a:1", clocks) as a:
        await until(lambda: a.leads)
        allocate = a._allocator.allocate

        def stopped_meanwhile(count: int, clock_ms: int) -> int | None:
            ts = allocate(count, clock_ms)
            clocks.boot_s += 60
            return ts

        a._allocator = type(
            "Slow", (), {"allocate": staticmethod(stopped_meanwhile), "wanted_bound": a._allocator.wanted_bound}
        )()  # type: ignore[assignment]
        with pytest.raises(NotLeader, match="while timestamps were allocated"):
            await a.timestamps(1)


async def test_lost_lease_ends_term_and_new_leader_becomes_known() -> None:
    """Expired, and taken by another pump at once: no more answers, and it knows the new leader."""
    etcd, clocks = MemoryEtcd(), Clocks()
    async with candidate(etcd, "a:1", clocks) as a:
        await until(lambda: a.leads)
        kv = await etcd.get(LEADER_KEY)
        assert kv is not None
        etcd.expire(kv.lease_id)
        await etcd.put(LEADER_KEY, b"b:1")
        await until(lambda: a.leader == "b:1")
        with pytest.raises(NotLeader, match="allocated by b:1"):
            await a.timestamps(1)
        await etcd.delete(LEADER_KEY)
        await until(lambda: a.leads)


async def test_leader_key_of_an_earlier_process_at_same_address_is_named_in_error() -> None:
    """The key names this pump's own address: the error must not say that X gives out timestamps and X does not."""
    etcd, clocks = MemoryEtcd(), Clocks()
    await etcd.put(LEADER_KEY, b"a:1")
    async with candidate(etcd, "a:1", clocks) as a:
        await until(lambda: a.leader == "a:1")
        with pytest.raises(NotLeader, match=r"no pump is elected .* of a process before this one"):
            await a.timestamps(1)


async def test_stored_bound_stays_ahead_of_advancing_clock() -> None:
    etcd, clocks = MemoryEtcd(), Clocks()
    async with candidate(etcd, "a:1", clocks) as a:
        await until(lambda: a.leads)
        last = 0
        for _ in range(5):
            clocks.ms += 2500
            ts = await a.timestamps(1)
            assert ts > last
            last = ts
        bound = await etcd.get(BOUND_KEY)
        assert bound is not None
        assert int(bound.value) > clocks.ms


async def test_leader_answers_through_short_etcd_outage_and_refuses_after_long_one() -> None:
    """A term outlives a short outage, and ends with a long one."""
    etcd, clocks = MemoryEtcd(), Clocks()
    async with candidate(etcd, "a:1", clocks) as a:
        await until(lambda: a.leads)
        etcd.fail()
        assert await a.timestamps(1)
        clocks.boot_s += 5
        with pytest.raises(NotLeader):
            await a.timestamps(1)
        etcd.recover()


async def test_bound_that_is_not_a_number_prevents_election() -> None:
    """Starting at 0 would take time back."""
    etcd, clocks = MemoryEtcd(), Clocks()
    await etcd.put(BOUND_KEY, b"soon")
    async with candidate(etcd, "a:1", clocks) as a:
        await asyncio.sleep(0.1)
        assert not a.leads


async def test_bound_far_ahead_prevents_election_until_it_is_repaired() -> None:
    """Nobody sees this pump lead meanwhile, so that one with a better clock can."""
    etcd, clocks = MemoryEtcd(), Clocks()
    far_ms = clocks.ms + 86_400_001
    await etcd.put(BOUND_KEY, str(far_ms).encode())
    async with candidate(etcd, "a:1", clocks) as a:
        await until(lambda: bool(a.refusal))
        assert "reset-tso-bound" in a.refusal
        assert all(event.kv.key != LEADER_KEY for event in etcd._history), "not for a moment"
        with pytest.raises(NotLeader):
            await a.timestamps(1)
        bound = await etcd.get(BOUND_KEY)
        assert bound is not None
        assert bound.value == str(far_ms).encode()
        await etcd.put(BOUND_KEY, str(clocks.ms).encode())
        await until(lambda: a.leads)
        assert a.refusal == ""
        assert physical_ms(await a.timestamps(1)) < clocks.ms + 10


async def test_clock_set_far_forward_during_term_is_not_followed_by_bound() -> None:
    """The bound would follow it, and never come back."""
    etcd, clocks = MemoryEtcd(), Clocks()
    async with candidate(etcd, "a:1", clocks) as a:
        await until(lambda: a.leads)
        clocks.ms += 3_600_000
        assert physical_ms(await a.timestamps(1)) >= clocks.ms, "an hour is"
        clocks.ms += 86_400_000_000
        clocks.boot_s += 1
        ts = await a.timestamps(1)
        assert physical_ms(ts) < 1_000_000 + 3_600_000 + 10_000
        bound = await etcd.get(BOUND_KEY)
        assert bound is not None
        assert int(bound.value) < 1_000_000 + 3_600_000 + 10_000


async def test_get_members_names_leader_and_fails_without_one() -> None:
    etcd, clocks = MemoryEtcd(), Clocks()
    async with candidate(etcd, "a:1", clocks, log_max_ts=compose(9_000_000)) as a:
        service = TsoService(a, 7)
        await until(lambda: a.leads)
        assert b"a:1" in await service.get_members(b"")
        assert await a.timestamps(1) > compose(9_000_000)
    with pytest.raises(NotLeader):
        await service.get_members(b"")
