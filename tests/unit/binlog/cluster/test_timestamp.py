"""Whoever asks later gets more (correctness rule 6)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest
from binlog.cluster.timestamp import LEADER_KEY, OwnTimestamps, TimestampSource
from binlog.errors import ClusterMismatch, TimestampUnavailable

from tests.support.memory_etcd import MemoryEtcd
from tests.support.stub_pd import StubPD


class Counter:
    """One allocator that many sources ask; answers take a moment, so that callers pile up."""

    def __init__(self) -> None:
        self.last_ts = 0
        self.requests: list[int] = []
        self.failures: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.random = random.Random(7)

    async def timestamps(self, count: int) -> Sequence[int]:
        self.requests.append(count)
        await self.gate.wait()
        for _ in range(self.random.randrange(3)):
            await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        self.last_ts += count
        given = range(self.last_ts - count + 1, self.last_ts + 1)
        for _ in range(self.random.randrange(3)):
            await asyncio.sleep(0)  # the answer is on its way while others are served
        return given

    async def close(self) -> None:
        pass


async def test_callers_that_wait_together_share_a_request() -> None:
    origin = Counter()
    source = TimestampSource(origin)
    origin.gate.clear()
    first = asyncio.ensure_future(source.get())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = [asyncio.ensure_future(source.get()) for _ in range(8)]
    await asyncio.sleep(0)
    origin.gate.set()
    assert await first == 1
    assert await asyncio.gather(*later) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert origin.requests == [1, 8], "who comes while a request is under way waits for the next one"
    await source.close()


async def test_unused_timestamps_are_not_kept_for_later_callers() -> None:
    """The counterexample: a client that keeps a window commits below what a pump has resolved meanwhile."""
    origin = Counter()
    client, pump = TimestampSource(origin), TimestampSource(origin)
    gone = asyncio.ensure_future(client.get())
    await asyncio.sleep(0)
    gone.cancel()  # one was asked for and its caller has left
    await asyncio.gather(gone, return_exceptions=True)
    resolved = await pump.get()
    assert await client.get() > resolved
    await client.close()
    await pump.close()


async def test_later_timestamp_requests_get_larger_timestamps_over_all_sources() -> None:
    """Many sources, many callers, cancellations and failures: a call that began after another ended got more."""
    origin = Counter()
    sources = [TimestampSource(origin, wait_s=60) for _ in range(4)]
    chance = random.Random(11)
    ended_max = 0
    seen: list[int] = []

    async def caller() -> None:
        nonlocal ended_max
        for _ in range(40):
            if chance.random() < 0.02:
                origin.failures.append(TimestampUnavailable("lost"))
            known = ended_max
            work = asyncio.ensure_future(chance.choice(sources).get())
            if chance.random() < 0.1:
                await asyncio.sleep(0)
                work.cancel()
            try:
                given = await work
            except asyncio.CancelledError:
                continue
            assert given > known
            seen.append(given)
            ended_max = max(ended_max, given)

    await asyncio.gather(*(caller() for _ in range(30)))
    assert len(set(seen)) == len(seen) > 500
    for source in sources:
        await source.close()


async def test_a_failed_request_is_repeated_until_the_deadline() -> None:
    origin = Counter()
    source = TimestampSource(origin, wait_s=5)
    origin.failures = [TimestampUnavailable("no leader"), TimestampUnavailable("no leader")]
    assert await source.get() == 1
    assert origin.requests == [1, 1, 1]
    impatient = TimestampSource(origin, wait_s=0.12)
    origin.failures = [TimestampUnavailable("nobody is elected")] * 50
    with pytest.raises(TimestampUnavailable, match=r"no timestamp within 0.12 s: nobody is elected"):
        await impatient.get()
    await source.close()
    await impatient.close()


async def test_timestamp_request_without_answer_fails_at_deadline() -> None:
    origin = Counter()
    origin.gate.clear()
    source = TimestampSource(origin, wait_s=0.05)
    with pytest.raises(TimestampUnavailable, match=r"no timestamp within 0.05 s: no answer"):
        await source.get()
    await source.close()


async def test_permanent_timestamp_error_is_not_repeated() -> None:
    origin = Counter()
    source = TimestampSource(origin)
    origin.failures = [ClusterMismatch.of(1, 2)]
    with pytest.raises(ClusterMismatch):
        await source.get()
    origin.failures = [KeyError("a mistake of ours")]
    with pytest.raises(KeyError):
        await source.get()
    assert await source.get() == 1
    await source.close()


async def test_closed_timestamp_source_fails_its_waiting_callers() -> None:
    origin = Counter()
    origin.gate.clear()
    source = TimestampSource(origin)
    waiting = [asyncio.ensure_future(source.get()) for _ in range(3)]
    for _ in range(3):
        await asyncio.sleep(0)
    waiting.append(asyncio.ensure_future(source.get()))
    await asyncio.sleep(0)
    await source.close()
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, TimestampUnavailable)
    with pytest.raises(TimestampUnavailable, match="closed"):
        await source.get()


async def test_own_timestamps_follow_the_elected_pump(closing: AsyncExitStack) -> None:
    """Nobody elected, then one, then another after a failover: callers wait, and what they get rises."""
    etcd = MemoryEtcd()
    await etcd.put("/tidb-binlog/v1/cluster_id", b"42")
    source = TimestampSource(OwnTimestamps(etcd), wait_s=10)
    waiting = asyncio.ensure_future(source.get())
    one = await StubPD.start(cluster_id=42)
    closing.push_async_callback(one.close)
    await etcd.put(LEADER_KEY, one.addr.encode())
    first = await waiting
    many = await asyncio.gather(*(source.get() for _ in range(20)))
    assert first < min(many)
    await one.close()
    waiting = asyncio.ensure_future(source.get())
    two = await StubPD.start(cluster_id=42)
    closing.push_async_callback(two.close)
    two.set(max(many) + (60_000 << 18))  # a successor starts above the bound
    await etcd.put(LEADER_KEY, two.addr.encode())
    assert await waiting > max(many)
    await source.close()


async def test_own_timestamps_below_previous_ones_are_refused_after_failover(closing: AsyncExitStack) -> None:
    etcd = MemoryEtcd()
    await etcd.put("/tidb-binlog/v1/cluster_id", b"42")
    one, two = await StubPD.start(cluster_id=42), await StubPD.start(cluster_id=42)
    closing.push_async_callback(one.close)
    closing.push_async_callback(two.close)
    await etcd.put(LEADER_KEY, one.addr.encode())
    one.set(one.allocate(1)[0] + (3_600_000 << 18))  # its clock was an hour ahead
    source = TimestampSource(OwnTimestamps(etcd), wait_s=0.3)
    await source.get()
    await etcd.put(LEADER_KEY, two.addr.encode())
    await one.close()
    with pytest.raises(TimestampUnavailable, match="went backwards: it returned"):
        await source.get()
    await source.close()
