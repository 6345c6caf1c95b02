"""Keeps the resolved ts moving: fetches T, then reads the pending set (pending.py says why in that order)."""

from __future__ import annotations

import asyncio
from typing import Protocol

from binlog.errors import BinlogError
from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage

from pump.horizon import Horizon
from pump.pending import PendingSet, Resolved

_log = get_logger("pump.resolver")


class Timestamps(Protocol):
    """What a pump needs of a timestamp source: each call returns more than any call that returned before it began."""

    async def get(self) -> int: ...


class Resolver:
    """`refresh` on demand; `nudge` when something became visible while somebody waits. Lives on the event loop."""

    def __init__(
        self, pending: PendingSet, resolved: Resolved, timestamps: Timestamps, horizon: Horizon | None = None
    ) -> None:
        self.horizon = horizon or Horizon()
        self._pending = pending
        self._resolved = resolved
        self._timestamps = timestamps
        self._moved = asyncio.Event()
        self._waiting = 0
        self._visible_ts = 0
        self._nudged = asyncio.Event()

    @property
    def ts(self) -> int:
        """The resolved ts given out last."""
        return self._resolved.ts

    async def refresh(self) -> int:
        """The resolved ts now. TimestampUnavailable if no T could be had."""
        return self.advance(await self._timestamps.get())

    def advance(self, fetched_ts: int) -> int:
        """As `refresh`, with a T fetched by somebody else before this call."""
        self.horizon.saw(fetched_ts)
        before = self._resolved.ts
        after = self._resolved.advance(fetched_ts, self._pending.oldest())
        if after > before:
            self._moved.set()
            self._moved = asyncio.Event()
        return after

    async def passed(self, ts: int) -> int:
        """Wait until the resolved ts is above `ts`; the resolved ts. Counts as somebody who waits.

        Only what is visible above `ts` is worth asking for: a pull that has everything would otherwise fetch one
        timestamp after the other for nothing.
        """
        self._waiting += 1
        try:
            if self._visible_ts > ts:
                self._nudged.set()
            while self._resolved.ts <= ts:
                await self._moved.wait()
            return self._resolved.ts
        finally:
            self._waiting -= 1

    def nudge(self, visible_ts: int = 0) -> None:
        """Something became visible, up to `visible_ts`, or left the pending set: worth a refresh if a pull waits."""
        self._visible_ts = max(self._visible_ts, visible_ts)
        if self._waiting:
            self._nudged.set()

    async def run(self) -> None:
        """Refresh after nudges, one at a time: those that come during a refresh share the next."""
        outage = Outage(_log, "the resolved ts does not advance", "the resolved ts advances again")
        while True:
            await self._nudged.wait()
            self._nudged.clear()
            try:
                await self.refresh()
                outage.over()
            except BinlogError as error:
                outage.failed(error=error)
                await asyncio.sleep(0.2)
                self._nudged.set()
