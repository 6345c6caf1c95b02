"""Back-pressure: so many transactions are being sent at once, so many wait for their turn, and no more."""

from __future__ import annotations

import asyncio
import time

from pumpclient.sdk import metrics
from pumpclient.sdk.errors import BadDeclaration, Busy

IN_FLIGHT_MAX = 1024
QUEUE_MAX = 10_240
QUEUE_WAIT_S = 5.0


class Places:
    """`in_flight_max` transactions have a place; up to `queue_max` wait for one, in order, `queue_wait_s` at most.

    A place is kept until nothing more is sent for its transaction, also where its caller does not wait any more; but
    not for longer than a caller waits for a commit, since a pump may be away for much longer. So when pumps are slow
    the service's callers are told, instead of its memory filling up.
    """

    def __init__(
        self,
        *,
        in_flight_max: int = IN_FLIGHT_MAX,
        queue_max: int = QUEUE_MAX,
        queue_wait_s: float = QUEUE_WAIT_S,
    ) -> None:
        """BadDeclaration for numbers that leave no place."""
        for name, value, least in (("in_flight_max", in_flight_max, 1), ("queue_max", queue_max, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise BadDeclaration(f"{name}={value!r}: it must be a whole number of at least {least}")
        if not isinstance(queue_wait_s, int | float) or isinstance(queue_wait_s, bool) or not queue_wait_s >= 0:
            raise BadDeclaration(f"queue_wait_s={queue_wait_s!r}: it must be 0 seconds or more")
        self._in_flight_max = in_flight_max
        self._queue_max = queue_max
        self._queue_wait_s = queue_wait_s
        self._free = asyncio.Semaphore(in_flight_max)
        self.in_flight = 0
        self.queued = 0

    async def take(self, what: str) -> float:
        """Have a place when this returns: the seconds it was waited for. Busy where there is none in time."""
        if not self._free.locked():
            await self._free.acquire()  # at once
            self._taken()
            return 0.0
        if self.queued >= self._queue_max:
            raise Busy(f"{what} was not sent: {self.in_flight} are under way and {self.queued} wait, as many as may")
        begun_s = time.monotonic()
        self.queued += 1
        metrics.QUEUED.inc()
        try:
            async with asyncio.timeout(self._queue_wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise Busy(
                f"{what} was not sent: none of the {self.in_flight} before it ended within {self._queue_wait_s} s"
            ) from None
        finally:
            self.queued -= 1
            metrics.QUEUED.dec()
        self._taken()
        return time.monotonic() - begun_s

    def _taken(self) -> None:
        self.in_flight += 1
        metrics.IN_FLIGHT.inc()

    def leave(self) -> None:
        """Give a place that was taken to the next."""
        self.in_flight -= 1
        metrics.IN_FLIGHT.dec()
        self._free.release()
