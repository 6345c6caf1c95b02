"""Backpressure: limits how many transactions are sent at the same time, and how many wait."""

from __future__ import annotations

import asyncio
import time

from pumpclient.sdk.errors import BadDeclaration, Busy
from pumpclient.sdk.report import IN_FLIGHT, QUEUED

IN_FLIGHT_MAX = 1024
QUEUE_MAX = 10_240
QUEUE_WAIT_S = 5.0


class Permits:
    """Permits for `in_flight_max` transactions. Up to `queue_max` more wait in order, each for at most `queue_wait_s`
    seconds.

    A transaction keeps its permit until no more messages are sent for it, even if its caller stopped waiting. It
    releases the permit earlier if it has waited as long as a caller waits for a commit: its pump may be unreachable for
    much longer. When pumps are slow, callers thus get Busy, and the memory of the service does not fill up.
    """

    def __init__(
        self,
        *,
        in_flight_max: int = IN_FLIGHT_MAX,
        queue_max: int = QUEUE_MAX,
        queue_wait_s: float = QUEUE_WAIT_S,
    ) -> None:
        """Raises BadDeclaration for numbers out of range."""
        for name, value, least in (("in_flight_max", in_flight_max, 1), ("queue_max", queue_max, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise BadDeclaration(f"{name}={value!r}: it must be a whole number of at least {least}")
        if not isinstance(queue_wait_s, int | float) or isinstance(queue_wait_s, bool) or not queue_wait_s >= 0:
            raise BadDeclaration(f"queue_wait_s={queue_wait_s!r}: it must be 0 seconds or more")
        self._queue_max = queue_max
        self._queue_wait_s = queue_wait_s
        self._free = asyncio.Semaphore(in_flight_max)
        self.in_flight = 0
        self.queued = 0

    async def take(self, what: str) -> float:
        """Wait for a permit and take it. Return the seconds waited. Raises Busy if no permit became free in time."""
        if not self._free.locked():
            await self._free.acquire()  # does not wait
            self._taken()
            return 0.0
        if self.queued >= self._queue_max:
            raise Busy(
                f"{what} was not sent: {self.in_flight} are being sent and {self.queued} wait, both at their limit"
            )
        begun_s = time.monotonic()
        self.queued += 1
        QUEUED.inc()
        try:
            async with asyncio.timeout(self._queue_wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise Busy(
                f"{what} was not sent: none of the {self.in_flight} being sent ended within {self._queue_wait_s} s"
            ) from None
        finally:
            self.queued -= 1
            QUEUED.dec()
        self._taken()
        return time.monotonic() - begun_s

    def _taken(self) -> None:
        self.in_flight += 1
        IN_FLIGHT.inc()

    def leave(self) -> None:
        """Release a permit for the next waiting transaction."""
        self.in_flight -= 1
        IN_FLIGHT.dec()
        self._free.release()
