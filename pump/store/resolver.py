"""Advances the resolved ts: fetches T first, then reads the pending set. pending.py says why in that order."""

from __future__ import annotations

import asyncio

from binlog.cluster.timestamp import TimestampSource
from binlog.errors import BinlogError
from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage

from pump.store.pending import PendingSet, Resolved
from pump.store.ts_limit import Horizon

_log = get_logger("pump.store.resolver")


class Resolver:
    """Advances the resolved ts: on `refresh`, and after `request_refresh` while a pull waits. Use it only on the event
    loop."""

    def __init__(
        self, pending: PendingSet, resolved: Resolved, timestamps: TimestampSource, horizon: Horizon | None = None
    ) -> None:
        self.horizon = horizon or Horizon()
        self._pending = pending
        self._resolved = resolved
        self._timestamps = timestamps
        self._moved = asyncio.Event()
        self._waiting = 0
        self._visible_ts = 0
        self._requested = asyncio.Event()

    @property
    def ts(self) -> int:
        """The resolved ts that was returned last."""
        return self._resolved.ts

    def is_late(self, commit_ts: int) -> bool:
        """See Resolved.is_late."""
        return self._resolved.is_late(commit_ts)

    async def fetch(self) -> int:
        """Fetch T, for `advance`. Raises TimestampUnavailable."""
        return await self._timestamps.get()

    async def refresh(self) -> int:
        """Fetch T, advance and return the resolved ts. Raises TimestampUnavailable."""
        return self.advance(await self._timestamps.get())

    def advance(self, fetched_ts: int) -> int:
        """Advance and return the resolved ts with a T that the caller fetched before this call."""
        self.horizon.saw(fetched_ts)
        before = self._resolved.ts
        after = self._resolved.advance(fetched_ts, self._pending.oldest())
        if after > before:
            self._moved.set()
            self._moved = asyncio.Event()
        return after

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
            while self._resolved.ts <= ts:
                await self._moved.wait()
            return self._resolved.ts
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
            try:
                await self.refresh()
                outage.over()
            except BinlogError as error:
                outage.failed(error=error)
                await asyncio.sleep(0.2)
                self._requested.set()
