"""Advances the resolved ts: fetches T first, then reads the pending set. pending.py says why in that order."""

from __future__ import annotations

import asyncio

from binlog.cluster.timestamp import TimestampSource
from binlog.errors import BinlogError
from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage

from pump.store.pending import PendingSet
from pump.store.ts_limit import Horizon

_log = get_logger("pump.store.resolver")


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
