"""The pending prewrites, and the resolved ts that follows from them: T is fetched first, then the pending set is read.

docs/architecture.md says why `resolved = min(T, oldest pending - 1)` is final in that order.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from binlog.cluster.timestamp import TimestampSource
from binlog.errors import BinlogError
from binlog.runtime.log import Outage, get_logger

from pump.store.limits import Horizon

_LEFT_MAX = 1000  # start_ts that have left are removed from the heap when they are half of it, and more than this

_log = get_logger("pump.store.resolver")


@dataclass(slots=True)
class Pending:
    """A prewrite whose outcome is not stored. `since_s`: its arrival, on the caller's monotonic clock."""

    start_ts: int
    since_s: float
    size: int
    ddl_job_id: int = 0
    prewrite_key: bytes = b""
    writer: bytes = b""  # id of its writer, which holds a lease in etcd under that id
    in_flight: int = 0  # requests with this prewrite that were read and are not yet written or refused
    held: bool = False  # the log holds it, or may hold it
    safepoint_ts: int = 0  # PD's GC safepoint, if it is at or above start_ts: TiKV cannot report the outcome


@dataclass(slots=True)
class PendingSet:
    """The prewrites whose request was read and whose commit or rollback is not yet stored and visible.

    A start_ts may arrive several times, because a client repeats a prewrite that was not answered. It leaves the set
    when no request for it is in flight and the log holds no prewrite of it without an outcome.
    """

    _entries: dict[int, Pending] = field(default_factory=dict)
    _heap: list[int] = field(default_factory=list)  # every start_ts of _entries, and some that have left
    _reserved: list[int] = field(default_factory=list)  # a ts below that of each fake binlog that is being made

    def __len__(self) -> int:
        """Return how many prewrites are pending, and fake binlogs being made."""
        return len(self._entries) + len(self._reserved)

    def __contains__(self, start_ts: int) -> bool:
        return start_ts in self._entries

    def get(self, start_ts: int) -> Pending | None:
        return self._entries.get(start_ts)

    def arrive(self, arrived: Pending) -> None:
        """Record that a request with this prewrite was read. Never called for the ts-0 probe (`P-RPC-05`)."""
        assert arrived.start_ts > 0
        entry = self._entries.setdefault(arrived.start_ts, arrived)
        if entry is arrived:
            heapq.heappush(self._heap, arrived.start_ts)
        entry.in_flight += 1

    def reserve(self, ts: int) -> None:
        """Hold the resolved ts below `ts` until `release(ts)`: a fake binlog is being made, whose ts will not be below.

        It is no entry, because a prewrite may have the same ts as its start_ts."""
        self._reserved.append(ts)

    def release(self, ts: int) -> None:
        self._reserved.remove(ts)

    def arrive_all(self, prewrites: Iterable[tuple[int, int, bytes]], since_s: float) -> None:
        """Do `arrive` for fast-path prewrites that were read together. `prewrites`: start_ts, size, prewrite_key of
        each."""
        entries, heap = self._entries, self._heap
        for start_ts, size, key in prewrites:
            entry = entries.get(start_ts)
            if entry is None:
                entry = entries[start_ts] = Pending(start_ts, since_s, size, 0, key)
                heapq.heappush(heap, start_ts)
            entry.in_flight += 1

    def stored(self, starts: Iterable[int]) -> None:
        """Record that a request for each start_ts has ended and that the log holds the prewrite, or may hold it (a
        write whose result is unknown)."""
        entries = self._entries
        for start_ts in starts:
            entry = entries[start_ts]
            entry.in_flight -= 1
            entry.held = True

    def settled(self, starts: Iterable[int]) -> None:
        """Record that the commit or rollback of each start_ts is stored and visible to pulls."""
        entries = self._entries
        for start_ts in starts:
            entry = entries.get(start_ts)
            if entry is not None:
                entry.held = False
                if entry.in_flight == 0:
                    del entries[start_ts]

    def refused(self, start_ts: int) -> None:
        """Record that a request for it has ended and stored no prewrite without an outcome."""
        entry = self._entries[start_ts]
        entry.in_flight -= 1
        if not entry.held and entry.in_flight == 0:
            del self._entries[start_ts]

    def oldest(self) -> int | None:
        """Return the smallest pending start_ts or reserved ts, or None."""
        heap, entries = self._heap, self._entries
        while heap and heap[0] not in entries:
            heapq.heappop(heap)
        if len(heap) > 2 * len(entries) + _LEFT_MAX:  # the oldest one stays, and later ones have left
            heap[:] = entries
            heapq.heapify(heap)
        return min([*heap[:1], *self._reserved], default=None)

    def first(self, count_max: int) -> list[Pending]:
        """Return the oldest `count_max` prewrites, ascending by start_ts."""
        return [self._entries[ts] for ts in heapq.nsmallest(count_max, self._entries)]

    def below_safepoint(self) -> list[Pending]:
        """Return the prewrites whose outcome TiKV can no longer report (see `Pending.safepoint_ts`)."""
        return [entry for entry in self._entries.values() if entry.safepoint_ts]

    def older_than(self, since_s: float) -> list[Pending]:
        """Return the held prewrites that arrived at or before `since_s`, ascending by start_ts."""
        return sorted((e for e in self._entries.values() if e.held and e.since_s <= since_s), key=lambda e: e.start_ts)

    def restore(self, entries: Iterable[Pending]) -> None:
        """Add the prewrites that recovery found in the log without an outcome."""
        for entry in entries:
            entry.held = True
            self._entries[entry.start_ts] = entry
            heapq.heappush(self._heap, entry.start_ts)


class Resolver:
    """Advances the resolved ts: on `refresh`, and after `request_refresh` while a pull waits. Use it only on the event
    loop.

    `ts` is the resolved ts that was returned last. It never decreases while the pump runs (correctness rule 4: resolved
    never decreases). It starts at the persisted value. After a kill that value may be up to a second old; the rule says
    why this is harmless."""

    def __init__(self, pending: PendingSet, timestamps: TimestampSource, horizon: Horizon) -> None:
        self.horizon = horizon
        self.ts = 0
        self._pending = pending
        self._timestamps = timestamps
        self._moved = asyncio.Event()
        self._waiting = 0
        self._visible_ts = 0
        self._requested = asyncio.Event()

    def is_late(self, commit_ts: int) -> bool:
        """Return whether a commit that becomes visible now breaks the protocol: pulls may have passed its ts."""
        return commit_ts <= self.ts

    async def fetch(self) -> int:
        """Fetch T, for `advance`. Raises TimestampUnavailable."""
        return await self._timestamps.get()

    async def refresh(self) -> int:
        """Fetch T, advance and return the resolved ts. Raises TimestampUnavailable."""
        return self.advance(await self._timestamps.get())

    def advance(self, fetched_ts: int) -> int:
        """Advance and return the resolved ts with a T that the caller fetched before this call."""
        self.horizon.saw(fetched_ts)
        oldest = self._pending.oldest()
        reach = fetched_ts if oldest is None else min(fetched_ts, oldest - 1)
        if reach > self.ts:
            self.ts = reach
            self._moved.set()
            self._moved = asyncio.Event()
        return self.ts

    async def passed(self, ts: int) -> int:
        """Wait until the resolved ts is above `ts`, then return it. While the caller waits, requested refreshes are
        made.

        A refresh is requested now only if a commit above `ts` is visible. Otherwise a pull that has received
        everything would fetch one timestamp after another for nothing.
        """
        self._waiting += 1
        try:
            if self._visible_ts > ts:
                self._requested.set()
            while self.ts <= ts:
                await self._moved.wait()
            return self.ts
        finally:
            self._waiting -= 1

    def request_refresh(self, visible_ts: int = 0) -> None:
        """Request a refresh if a pull waits: a commit up to `visible_ts` became visible, or a prewrite left the pending
        set."""
        self._visible_ts = max(self._visible_ts, visible_ts)
        if self._waiting:
            self._requested.set()

    async def run(self) -> None:
        """Make the requested refreshes, one at a time. Requests that arrive during a refresh share the next one."""
        outage = Outage(_log, "the resolved ts does not advance", "the resolved ts advances again")
        while True:
            await self._requested.wait()
            self._requested.clear()
            with outage.catching(BinlogError):
                await self.refresh()
                continue
            await asyncio.sleep(0.2)
            self._requested.set()
