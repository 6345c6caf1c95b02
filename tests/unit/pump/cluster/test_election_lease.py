"""Rule 7, the lease: from when it counts, when it is over, and which writes go through only under it.

etcd is in memory and may be slow: what a request costs is seconds of the pump's own clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from binlog.cluster.etcd import Compare, Put
from binlog.cluster.timestamp import BOUND_KEY, LEADER_KEY
from binlog.cluster.tso import compose, physical_ms
from binlog.errors import EtcdError

from pump.cluster.election import WINDOW_MS, Election
from pump.errors import NotLeader
from tests.support.memory_etcd import MemoryEtcd, MemoryLease
from tests.unit.pump.cluster.test_election import Clocks, candidate, until

# A lease of 3 s holds for 2.4 s: a fifth is kept for clocks that run at different speeds.
HOLDS_S = 2.4


class SlowEtcd(MemoryEtcd):
    """Leases take time to be granted and renewed, and at most `leases_max` are granted: one term is looked at alone."""

    def __init__(self, clocks: Clocks, *, grant_s: float = 0, keep_alive_s: float = 0, leases_max: int = 1) -> None:
        super().__init__()
        self.grant_s, self.keep_alive_s = grant_s, keep_alive_s
        self.granted = self.renewed = 0
        self.clocks = clocks
        self._leases_max = leases_max

    async def lease(self, ttl_s: int) -> MemoryLease:
        if self.granted == self._leases_max:
            raise EtcdError("lease: no more of them in this test")
        granted = await super().lease(ttl_s)
        granted.stop()
        slow = self.leases[granted.id] = _SlowLease(granted.id, ttl_s, self)
        slow.restart()
        self.clocks.boot_s += self.grant_s
        self.granted += 1
        return slow


class _SlowLease(MemoryLease):
    async def keep_alive(self) -> int:
        etcd: Any = self._etcd
        left_s = await super().keep_alive()
        etcd.clocks.boot_s += etcd.keep_alive_s
        etcd.renewed += 1
        return left_s


async def test_first_term_counts_from_before_the_lease_grant() -> None:
    """etcd counted from the moment it granted; when the answer came is of no matter."""
    clocks = Clocks()
    async with candidate(SlowEtcd(clocks, grant_s=1), "a:1", clocks) as a:
        await until(lambda: a.leads)
        clocks.boot_s = 100 + HOLDS_S - 0.01
        assert await a.timestamps(1)
        clocks.boot_s = 100 + HOLDS_S
        with pytest.raises(NotLeader):
            await a.timestamps(1)


async def test_lease_grant_that_took_longer_than_the_term_starts_no_term() -> None:
    clocks = Clocks()
    etcd = SlowEtcd(clocks, grant_s=HOLDS_S, leases_max=3)
    led = False

    def seen() -> bool:
        nonlocal led
        led |= a.leads
        return etcd.granted == 3

    async with candidate(etcd, "a:1", clocks) as a:
        await until(seen)
        assert not led


async def test_lease_renewal_counts_from_before_its_request() -> None:
    clocks = Clocks()
    etcd = SlowEtcd(clocks, keep_alive_s=1)
    async with candidate(etcd, "a:1", clocks) as a:
        await until(lambda: a.leads)
        clocks.boot_s = 101
        await until(lambda: etcd.renewed == 1)
        etcd.fail()  # it stays at one renewal
        clocks.boot_s = 101 + HOLDS_S - 0.01
        assert await a.timestamps(1)
        clocks.boot_s = 101 + HOLDS_S
        with pytest.raises(NotLeader):
            await a.timestamps(1)


async def test_ended_term_is_not_resumed_by_late_renewal_answer() -> None:
    """The renewal's answer comes when the term is over: somebody else may have had one since, and its end is final,
    also where the answer, counted from its question, would reach further."""
    clocks = Clocks()
    etcd = SlowEtcd(clocks, keep_alive_s=HOLDS_S - 0.5)
    async with candidate(etcd, "a:1", clocks) as a:
        await until(lambda: a.leads)
        clocks.boot_s = 101
        await until(lambda: etcd.renewed == 1)
        assert not a.leads
        await until(lambda: a.leader == "")
        with pytest.raises(NotLeader):
            await a.timestamps(1)
        await until(lambda: not etcd.leases)  # it is given back, so that another pump need not wait for its end
        assert await etcd.get(LEADER_KEY) is None


async def test_lease_is_renewed_before_term_ends() -> None:
    """Without renewals the term would be over."""
    clocks = Clocks()
    etcd = SlowEtcd(clocks)
    async with candidate(etcd, "a:1", clocks) as a:
        await until(lambda: a.leads)
        clocks.boot_s = 102
        await until(lambda: etcd.renewed == 1)
        clocks.boot_s = 104
        assert await a.timestamps(1)


async def test_candidate_does_not_overwrite_leader_key_created_meanwhile() -> None:
    """The key is created, never written over: a candidate that read "nobody leads" before the other one won."""
    clocks = Clocks()

    class LateEtcd(SlowEtcd):
        async def lease(self, ttl_s: int) -> MemoryLease:
            await self.put(LEADER_KEY, b"b:1")
            return await super().lease(ttl_s)

    etcd = LateEtcd(clocks)
    async with candidate(etcd, "a:1", clocks) as a:
        await until(lambda: a.leader != "")
        assert not a.leads
        assert a.leader == "b:1"
        found = await etcd.get(LEADER_KEY)
        assert found is not None
        assert found.value == b"b:1"


class Elected(SlowEtcd):
    """`before_txn` happens between an election's look at the bound and its write."""

    before_txn: Any = None

    async def txn(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int | None:
        if self.before_txn is not None and any(put.key == BOUND_KEY for put in puts):
            happening, self.before_txn = self.before_txn, None
            await happening()
        return await super().txn(compares, puts, deletes)


async def _refused_to_raise(etcd: Elected, clocks: Clocks, a: Election) -> None:
    """It cannot give out what lies beyond the bound that it had."""
    clocks.ms += 2 * WINDOW_MS
    asked = asyncio.create_task(a.timestamps(1))
    await until(lambda: etcd.before_txn is None)
    clocks.boot_s += HOLDS_S
    with pytest.raises(NotLeader):
        await asked


async def test_bound_is_not_raised_after_leader_key_changed() -> None:
    """Another pump leads since the look: the write compares the leader's key."""
    clocks = Clocks()
    etcd = Elected(clocks)
    async with candidate(etcd, "a:1", clocks) as a:
        await until(lambda: a.leads)
        before = await etcd.get(BOUND_KEY)

        async def succeeded() -> None:
            await etcd.put(LEADER_KEY, b"b:1")

        etcd.before_txn = succeeded
        await _refused_to_raise(etcd, clocks, a)
        assert await etcd.get(BOUND_KEY) == before


async def test_bound_raised_meanwhile_is_not_overwritten_by_lower_one() -> None:
    """A higher bound that came since the look is not written over."""
    clocks = Clocks()
    etcd = Elected(clocks)
    async with candidate(etcd, "a:1", clocks) as a:
        await until(lambda: a.leads)
        far = str(clocks.ms + 100 * WINDOW_MS).encode()

        async def raised() -> None:
            await etcd.put(BOUND_KEY, far)

        etcd.before_txn = raised
        clocks.ms += 2 * WINDOW_MS
        assert await a.timestamps(1)
        found = await etcd.get(BOUND_KEY)
        assert found is not None
        assert found.value == far


async def test_stored_high_bound_is_not_used_after_leader_key_changed() -> None:
    """Nothing need be written then, so nothing is compared: the leader's key is looked at instead."""
    clocks = Clocks()
    etcd = SlowEtcd(clocks)
    async with candidate(etcd, "a:1", clocks) as a:
        await until(lambda: a.leads)
        await etcd.put(BOUND_KEY, str(clocks.ms + 100 * WINDOW_MS).encode())
        await etcd.put(LEADER_KEY, b"b:1")
        clocks.ms += 2 * WINDOW_MS
        asked = asyncio.create_task(a.timestamps(1))
        await asyncio.sleep(0)
        await _turns()
        assert not asked.done()
        clocks.boot_s += HOLDS_S
        with pytest.raises(NotLeader):
            await asked


async def _turns() -> None:
    """Everything that can go on without time passing has gone on."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_new_leader_starts_above_bound_log_and_clock() -> None:
    for bound_ms, log_ms in ((5_000_000, 0), (0, 6_000_000), (5_000_000, 6_000_000)):
        clocks = Clocks()
        etcd = SlowEtcd(clocks)
        if bound_ms:
            await etcd.put(BOUND_KEY, str(bound_ms).encode())
        async with candidate(etcd, "a:1", clocks, log_max_ts=compose(log_ms)) as a:
            await until(lambda: a.leads)
            ts = await a.timestamps(1)
            assert physical_ms(ts) >= max(bound_ms, clocks.ms)
            assert ts > compose(log_ms)
