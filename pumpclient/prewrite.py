"""Sends one prewrite to pump after pump until one acknowledges it (C-10, C-13).

If a pump has not answered within its `patience`, the try stays open, and another pump is tried in parallel. The first
acknowledgement wins. Every pump whose answer is then no longer awaited may hold a copy. The tracker notes these pumps,
and the copies are rolled back after the outcome is settled (correctness rule 5: clean-up rollbacks).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from pumpclient.answer import Answer, Outcome
from pumpclient.errors import NoPump, PayloadTooLarge, PrewriteFailed

if TYPE_CHECKING:
    from pumpclient.writer import Writer

STALL_S = 0.1  # a timer this late shows that this process was suspended or busy, not that the pump is slow
RECHECK_S = 0.5  # how often to look for newly available pumps after all available ones were tried


class Prewriting:
    """The prewrite of one transaction. Call `run` once."""

    def __init__(self, start_ts: int, payload: bytes, writer: Writer) -> None:
        self._start_ts = start_ts
        self._payload = payload
        self._writer = writer
        self._pool = writer.pool
        self._begun_s = time.monotonic()
        self._open: dict[asyncio.Task[Answer], str] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._tried: set[str] = set()
        self._count = 0
        self._last = "no available pump to write binlog"

    async def run(self) -> str:
        """Return the id of the pump that acknowledged. Raises PrewriteFailed, PayloadTooLarge or NoPump."""
        try:
            pump = await self._somewhere()
            return pump if pump is not None else await self._anywhere()
        finally:
            self._abandon()

    async def _somewhere(self) -> str | None:
        while True:
            pump = self._choose()
            if pump is not None:
                self._start(pump)
            elif not self._open:
                return None
            if (acked := await self._answered(pump)) is not None:
                return acked
            if self._open:
                continue
            available = self._pool.available()
            if time.monotonic() > self._begun_s + self._writer.limits.write_timeout_s and self._count > len(available):
                return None
            if available and self._tried.issuperset(available):  # every pump has failed once: pause before retrying
                await asyncio.sleep(self._writer.limits.prewrite_retry_s)

    def _choose(self) -> str | None:
        """Return the next pump to try, or None. While another try is open, only untried pumps are chosen."""
        available = self._pool.available()
        for more in range(len(available)):
            pump = self._writer.selector.select(
                available, start_ts=self._start_ts, tries=self._count + more, tried=self._tried
            )
            if pump is None or not self._open or pump not in self._tried:
                return pump
        return None

    def _start(self, pump: str) -> None:
        self._count += 1
        self._tried.add(pump)
        task = asyncio.create_task(self._writer.attempt(pump, self._payload))
        task.add_done_callback(self._wake)
        self._open[task] = pump

    async def _answered(self, newest: str | None) -> str | None:
        """Wait until a try has ended, or `newest` has not answered within its patience. Return the pump that
        acknowledged, or None. If two pumps acknowledged, the second try stays in `_open`.
        """
        wait_s = self._writer.patience_s(newest, len(self._payload)) if newest is not None else RECHECK_S
        while True:
            due_s = time.monotonic() + wait_s
            done = await self._ended(wait_s)
            if done or time.monotonic() < due_s + STALL_S:
                break
        if not done and newest is not None:
            self._writer.found_slow(newest)
        for task in sorted(done, key=lambda task: not task.result().acked) if len(done) > 1 else done:
            pump, answer = self._open.pop(task), task.result()
            if answer.acked:
                self._writer.tracker.acked(self._start_ts, pump)
                return pump
            self._refused(pump, answer)
        return None

    async def _ended(self, wait_s: float) -> list[asyncio.Task[Answer]]:
        """Wait up to `wait_s` for a try to end and return the ended ones. It costs half as much as asyncio.wait."""
        done = [task for task in self._open if task.done()]
        if done:
            return done
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(wait_s, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
        return [task for task in self._open if task.done()]

    def _wake(self, _: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _refused(self, pump: str, answer: Answer) -> None:
        if answer.outcome is Outcome.TOO_LARGE:
            raise PayloadTooLarge(self._start_ts, payload_bytes=len(self._payload), detail=answer.detail)
        self._last = f"{pump}: {answer.detail}"
        self._writer.found_failing(pump, self._start_ts, answer)
        if answer.outcome is Outcome.UNKNOWN:
            self._writer.tracker.unknown(self._start_ts, pump)

    async def _anywhere(self) -> str:
        """Try each online pump, as the last resort (C-13), on connections younger than the prewrite.

        Existing younger connections are kept: if many transactions get here together, each would otherwise close the
        connections that the others use.
        """
        online = self._pool.online()
        if not online and not self._count:
            raise NoPump(f"prewrite {self._start_ts}: no available pump to write binlog ({self._pool.told()})")
        self._writer.falls_back()
        for pump in online:
            self._writer.renew(pump, self._begun_s)
            self._start(pump)
            if (acked := await self._answered(pump)) is not None:
                return acked
        while self._open:
            if (acked := await self._answered(None)) is not None:
                return acked
        raise PrewriteFailed(self._start_ts, tries=self._count, last=self._last)

    def _abandon(self) -> None:
        """Stop waiting for open tries. Each may have stored a copy, or may still store one."""
        for task, pump in self._open.items():
            self._writer.tracker.unknown(self._start_ts, pump)
            if not task.cancel() and not task.cancelled():
                task.exception()  # retrieve it, so that asyncio does not log it
        self._open.clear()
