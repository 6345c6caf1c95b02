"""How many bytes of requests and answers a pump holds at once, over all of its calls.

One call is bounded by its own limits; a hundred of them together would still take a hundred times as much. A write is
counted from the moment its length is known, before its bytes come, until it is answered; a pull for what it reads and
sends ahead, from its first step to its last. What finds no room is refused and may be repeated.

A message of a stream must be read before it can be refused, or the stream would end with all that is under way on it.
For such messages a quarter is tolerated beside the bound, or one message alone; what exceeds that is not read on until
there is room.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

from pump.errors import Overloaded
from pump.gauges import OVERLOADED

SMALL_BYTES_MAX = 64 << 10
BYTES_MAX = 2 << 30


class InFlight:
    """Belongs to the event loop. Small requests, commits among them, have an eighth beside `bytes_max`, so that they
    are not refused while large ones fill it; pulls have a half of it. One request alone is never refused."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._pulls = 0
        self._tolerated = 0
        self.on_room: Callable[[], None] = lambda: None  # called after something was given back
        self._changed = asyncio.Event()
        self.bytes = 0

    def fits(self, size: int) -> bool:
        """Whether a request of this size is taken now. Pulls alone refuse none: a drainer's may go on for ever."""
        room = self._bytes_max + (self._bytes_max // 8 if size <= SMALL_BYTES_MAX else 0)
        return self.bytes <= self._pulls or self.bytes + size <= room

    def _error(self, size: int) -> Overloaded:
        OVERLOADED.inc()
        return Overloaded(size, self.bytes, self._bytes_max)

    @contextlib.contextmanager
    def request(self, size: int) -> Iterator[None]:
        """While a request is being worked on. Overloaded where there is no room."""
        if not self.fits(size):
            raise self._error(size)
        with self._taken(size):
            yield

    def take(self, size: int) -> None:
        """As `request`, until `give`."""
        if not self.fits(size):
            raise self._error(size)
        self._add(size)

    def give(self, size: int) -> None:
        """What was taken is held no more."""
        self._add(-size)
        self._changed.set()
        self.on_room()

    def tolerate(self, size: int) -> bool:
        """Count, until `forgive`, what is refused but must be read for that. False: not now."""
        if self._tolerated and self._tolerated + size > self._bytes_max // 4:
            return False
        self._tolerated += size
        self._add(size)
        return True

    def forgive(self, size: int) -> None:
        """What was tolerated is held no more."""
        self._tolerated -= size
        self.give(size)

    @contextlib.contextmanager
    def pull(self, size: int) -> Iterator[None]:
        """While a pull goes on, which holds so many bytes. Overloaded where there is no room."""
        if self._pulls and self._pulls + size > self._bytes_max // 2:
            raise self._error(size)
        self._pulls += size
        try:
            with self._taken(size):
                yield
        finally:
            self._pulls -= size

    @contextlib.asynccontextmanager
    async def answer(self, size: int) -> AsyncIterator[None]:
        """While an answer of this size is put together and sent. It waits for room: its reader is in no hurry."""
        while self.bytes + size > self._bytes_max and self.bytes > self._pulls:
            self._changed.clear()
            await self._changed.wait()
        with self._taken(size):
            yield

    @contextlib.contextmanager
    def _taken(self, size: int) -> Iterator[None]:
        self._add(size)
        try:
            yield
        finally:
            self.give(size)

    def _add(self, size: int) -> None:
        self.bytes += size
