"""Timestamp allocation without PD: the election of the pump that allocates them, and which timestamps it may return.

Correctness rule 7 (one allocator of timestamps) says how a later request gets a larger timestamp, over all processes,
restarts and failovers, and why nothing far ahead of the clock is continued.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field

from binlog.cluster.etcd import KV, Compare, Etcd, Lease, Put, wait_for_change
from binlog.cluster.timestamp import BOUND_KEY, LEADER_KEY
from binlog.cluster.tso import LOGICAL_MAX, boot_clock_s, compose, format_local, physical_ms
from binlog.errors import EtcdError, LeaseExpired
from binlog.runtime.log import Outage, get_logger
from binlog.runtime.waiting import cancel, is_set_within

from pump.errors import AbsurdBound, NotLeader

LEASE_S = 3
POLL_S = 0.5
BOUND_WAIT_S = 2.0
REFUSED_POLL_S = 3.0
LOG_INTERVAL_S = 60.0
BOUND_AHEAD_MAX_S = 86_400  # a day, more than any time zone error
TS_MAX = (1 << 63) - 1
WINDOW_MS = 3000
LEASE_MARGIN = 0.2  # of the lease's length, for clocks that drift

_log = get_logger("pump.cluster.election")


@dataclass(slots=True)
class Term:
    """How long this pump may answer as leader. Seconds of CLOCK_BOOTTIME."""

    until_s: float = 0.0

    def renewed(self, *, asked_s: float, ttl_s: float) -> None:
        """The lease was granted or renewed for `ttl_s`, by a request sent at `asked_s`."""
        self.until_s = max(self.until_s, asked_s + ttl_s * (1 - LEASE_MARGIN))

    def holds(self, now_s: float) -> bool:
        return now_s < self.until_s

    def end(self) -> None:
        self.until_s = 0.0


def start_after(
    *, bound_ms: int | None, clock_ms: int, log_ts_until: Callable[[int], int], ahead_max_s: int = BOUND_AHEAD_MAX_S
) -> int:
    """Return the ts of this pump's own log above which a leader starts. Raises AbsurdBound if it must not start. A ts
    of the log proves less than the bound, because writers supply it: far ahead it is ignored if there is a bound.

    `bound_ms`: None if none is stored. `log_ts_until(ts)`: returns the largest ts of the log that is not above `ts`.
    """
    limit_ms = clock_ms + ahead_max_s * 1000
    clock = f"this machine's clock ({format_local(compose(clock_ms))}) by more than bound-ahead-max ({ahead_max_s} s)"
    remedy = (
        "Correct the clock if it is wrong. Otherwise a timestamp of another source was accepted: stop the writers and "
        "run `binlogctl reset-tso-bound -dry-run`"
    )
    if bound_ms is not None and bound_ms > limit_ms:
        shown = format_local(compose(bound_ms))
        raise AbsurdBound(
            f"this pump allocates no timestamps: etcd key {BOUND_KEY} says {bound_ms} ({shown}), which is ahead of "
            f"{clock}. {remedy}"
        )
    newest_ts = log_ts_until(TS_MAX)
    if physical_ms(newest_ts) <= limit_ms:
        return newest_ts
    if bound_ms is None:
        raise AbsurdBound(
            f"this pump allocates no timestamps: its log holds ts {newest_ts} ({format_local(newest_ts)}), which is "
            f"ahead of {clock}, and etcd key {BOUND_KEY} is absent: whether that timestamp was allocated is unknown. "
            f"{remedy}"
        )
    return log_ts_until(compose(limit_ms, LOGICAL_MAX))


@dataclass(slots=True)
class Allocator:
    """Allocates timestamps after `begin_term`. `bound_ms`: the bound in etcd; every allocated timestamp is below it."""

    bound_ms: int = 0
    _physical_ms: int = 0
    _logical: int = -1

    def begin_term(self, *, bound_ms: int, clock_ms: int, log_max_ts: int) -> None:
        """Start a term above every timestamp of predecessors and of this pump's own log, because etcd may have lost its
        data. Nothing can be allocated before `granted`."""
        start_ms = max(bound_ms, clock_ms, physical_ms(log_max_ts) + 1)
        if start_ms > self._physical_ms:
            self._physical_ms, self._logical = start_ms, -1
        self.bound_ms = min(bound_ms, self._physical_ms)

    def wanted_bound(self, clock_ms: int) -> int | None:
        """Return the bound to store in etcd now, in ms; None while the stored bound is far enough ahead."""
        at_ms = max(clock_ms, self._physical_ms)
        return at_ms + WINDOW_MS if self.bound_ms - at_ms < WINDOW_MS // 2 else None

    def granted(self, bound_ms: int) -> None:
        """Record that etcd holds this bound, stored by this pump as leader."""
        self.bound_ms = max(self.bound_ms, bound_ms)

    def allocate(self, count: int, clock_ms: int) -> int | None:
        """Allocate `count` consecutive timestamps of one millisecond. Return the last, or None if the bound is
        reached."""
        assert 0 < count <= LOGICAL_MAX + 1
        physical, logical = self._physical_ms, self._logical
        if clock_ms > physical:
            physical, logical = clock_ms, -1
        if logical + count > LOGICAL_MAX:
            physical, logical = physical + 1, -1
        if physical >= self.bound_ms:
            return None
        self._physical_ms, self._logical = physical, logical + count
        return compose(physical, self._logical)


@dataclass(eq=False)
class Election:
    """Campaigns for leadership and leads while its lease lasts; `run` until cancelled, on the event loop.

    `leader`: host:port of the current leader, "" if unknown. `refusal`: why this pump does not campaign, or "".
    """

    _etcd: Etcd
    _: KW_ONLY
    log_ts_until: Callable[[int], int]
    ahead_max_s: int = BOUND_AHEAD_MAX_S
    boot_s: Callable[[], float] = boot_clock_s
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    leader: str = ""
    refusal: str = ""
    _address: str = ""
    _term_start: tuple[int, float] | None = None  # (wall clock ms, boot clock s) when this term began
    _logged_s: float = float("-inf")
    _allocator: Allocator = field(default_factory=Allocator)
    _term: Term = field(default_factory=Term)
    _leader_revision: int = 0
    _raise_wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _raised: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def leads(self) -> bool:
        return self._term.holds(self.boot_s())

    async def timestamps(self, count: int) -> int:
        """Allocate `count` consecutive timestamps; returns the last. NotLeader if this pump may not allocate any."""
        deadline_s = self.boot_s() + BOUND_WAIT_S
        while True:
            if not self.leads:
                raise NotLeader(self._why_not())
            last_ts = self._allocator.allocate(count, self._bounded_clock_ms())
            if self._allocator.wanted_bound(self._bounded_clock_ms()) is not None:
                self._raise_wanted.set()
            if last_ts is not None:
                if not self._term.holds(self.boot_s()):  # checked after the allocation, without an await in between
                    raise NotLeader(f"the lease of {self._address} ended while timestamps were allocated")
                return last_ts
            if self.boot_s() > deadline_s:
                raise NotLeader(f"{self._address} cannot raise the bound in etcd")
            self._raised.clear()
            await is_set_within(POLL_S, self._raised)

    def _why_not(self) -> str:
        """Return the text of NotLeader. The leader's key in etcd may hold this pump's own address: it was written by an
        earlier process, or with a lease that this process has just lost."""
        if self.leader == self._address:
            return (
                f"no pump is elected to allocate timestamps: the lease of {self._address} has ended, or is that of a "
                f"process before this one; a pump is elected within {LEASE_S} s"
            )
        return f"timestamps are allocated by {self.leader or 'no pump yet'}, not by {self._address}"

    async def run(self, address: str) -> None:
        """Campaign and lead in turn until cancelled. `address`: host:port of this pump's Tso service.

        On cancellation the lease is revoked, after the last answer.
        """
        self._address = address
        outage = Outage(_log, "election failed", "election works again")
        while True:
            try:
                await self._campaign()
                outage.over()
            except AbsurdBound as error:
                self.refusal = str(error)
                self._log_seldom("this pump does not allocate timestamps", error=self.refusal)
                await asyncio.sleep(REFUSED_POLL_S)  # another pump may have a correct clock
            except EtcdError as error:
                outage.failed(error=error)
                await asyncio.sleep(POLL_S)

    def _log_seldom(self, text: str, **facts: str) -> None:
        now_s = self.boot_s()
        if now_s - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now_s
            _log.error(text, **facts)

    def _bounded_clock_ms(self) -> int:
        """Return the wall clock in ms. While this pump leads, ignore a jump far forward: the bound would follow the
        jump and cannot be lowered."""
        now_ms = self.clock_ms()
        if self._term_start is None:
            return now_ms
        began_ms, began_s = self._term_start
        steady_ms = began_ms + int((self.boot_s() - began_s) * 1000)
        if now_ms <= steady_ms + self.ahead_max_s * 1000:
            return now_ms
        self._log_seldom(
            "this machine's clock jumped far forward and timestamps do not follow it; if the clock is right, restart "
            "the pump",
            clock=format_local(compose(now_ms)),
            followed=format_local(compose(steady_ms)),
        )
        return steady_ms

    async def _campaign(self) -> None:
        """If there is a leader, wait for a change. Otherwise take the leader key and lead until the term ends."""
        found = await self._etcd.get(LEADER_KEY)
        if found is not None:
            self.leader = found.value.decode(errors="replace")
            await wait_for_change(self._etcd, LEADER_KEY, revision=found.mod_revision, within_s=LEASE_S)
            return
        self._log_ts(await self._etcd.get(BOUND_KEY))  # raises AbsurdBound before this pump becomes leader
        self.refusal = ""
        asked_s = self.boot_s()
        lease = await self._etcd.lease(LEASE_S)
        try:
            put = Put(LEADER_KEY, self._address.encode(), lease.id)
            revision = await self._etcd.txn([Compare(LEADER_KEY, mod_revision=0)], [put])
            if revision is None:
                return
            self._leader_revision = revision
            await self._lead(lease, asked_s)
        finally:
            self._term.end()
            with suppress(EtcdError):
                await lease.revoke()

    async def _lead(self, lease: Lease, asked_s: float) -> None:
        """Raise the bound and begin a term. Renew the lease and raise the bound until the lease is lost."""
        bound = await self._etcd.get(BOUND_KEY)
        self._allocator.begin_term(
            bound_ms=_bound_ms(bound.value) if bound else 0,
            clock_ms=self._bounded_clock_ms(),
            log_max_ts=self._log_ts(bound),
        )
        self._term_start = (self._bounded_clock_ms(), self.boot_s())
        await self._raise_bound()
        self.leader = self._address
        self._term.renewed(asked_s=asked_s, ttl_s=lease.ttl_s)
        _log.info("this pump allocates timestamps", address=self._address, bound_ms=self._allocator.bound_ms)
        keeper = asyncio.create_task(self._keep(lease))
        raiser = asyncio.create_task(self._keep_bound())
        try:
            await asyncio.wait((keeper, raiser), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._term.end()
            self._term_start = None
            self.leader = ""
            await cancel(keeper, raiser)
        _log.warning("this pump no longer allocates timestamps", address=self._address)

    def _log_ts(self, bound: KV | None) -> int:
        """Return the ts of this pump's log above which a term starts: see start_after. Raises AbsurdBound."""
        return start_after(
            bound_ms=_bound_ms(bound.value) if bound else None,
            clock_ms=self._bounded_clock_ms(),
            log_ts_until=self.log_ts_until,
            ahead_max_s=self.ahead_max_s,
        )

    async def _keep(self, lease: Lease) -> None:
        """Renew the lease. Return when it is lost or has expired on this machine's clock."""
        outage = Outage(_log, "cannot renew the lease", "the lease is renewed again")
        while self.leads:
            await asyncio.sleep(lease.ttl_s / 6)
            asked_s = self.boot_s()
            try:
                left_s = max(0.05, self._term.until_s - asked_s)
                async with asyncio.timeout(left_s):
                    ttl_s = await lease.keep_alive()
            except LeaseExpired:
                return
            except (EtcdError, TimeoutError) as error:
                outage.failed(error=str(error) or "no answer")
                continue
            outage.over()
            if self.leads:  # a term that ended is not resumed: another pump may have led since
                self._term.renewed(asked_s=asked_s, ttl_s=ttl_s)

    async def _keep_bound(self) -> None:
        outage = Outage(_log, "cannot raise the bound", "the bound is raised again")
        while True:
            await is_set_within(POLL_S, self._raise_wanted)
            self._raise_wanted.clear()
            with outage.catching(EtcdError):
                await self._raise_bound()
                continue
            await asyncio.sleep(0.1)

    async def _raise_bound(self) -> None:
        """Store a higher bound in etcd if one is due.

        Raises EtcdError if etcd does not record this pump as the leader. After any EtcdError it is unknown whether the
        bound was stored; the next try reads it again.
        """
        wanted_ms = self._allocator.wanted_bound(self._bounded_clock_ms())
        if wanted_ms is None:
            return
        stored = await self._etcd.get(BOUND_KEY)
        if stored is None or _bound_ms(stored.value) < wanted_ms:
            conditions = [
                Compare(LEADER_KEY, mod_revision=self._leader_revision),
                Compare(BOUND_KEY, mod_revision=stored.mod_revision if stored else 0),
            ]
            if await self._etcd.txn(conditions, [Put(BOUND_KEY, str(wanted_ms).encode())]) is None:
                raise EtcdError("the leader's key or the bound is not what this pump wrote")
        else:
            leader = await self._etcd.get(LEADER_KEY)
            if leader is None or leader.mod_revision != self._leader_revision:
                raise EtcdError("another pump leads")
        self._allocator.granted(wanted_ms)
        self._raised.set()


def _bound_ms(text: bytes) -> int:
    """Parse the bound. EtcdError if it is not a number: starting from 0 would take timestamps back."""
    if not text.isdigit():
        raise EtcdError(f"etcd key {BOUND_KEY} holds {text[:50]!r}, which is not a time in ms")
    return int(text)
