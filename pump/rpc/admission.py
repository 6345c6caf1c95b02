"""Admission control: limits the bytes of requests and answers that a pump holds at once, over all calls.

Each call has limits of its own, but a hundred calls would still hold a hundred times as much. A write is counted from
the moment its length is known, before its bytes arrive, until it is answered; a pull for its read-ahead and send
buffer, from its first step to its last. A request above the limit is refused and may be retried.

A message of a stream must be read before it can be refused, or the stream would fail with all its open requests. Such
messages may exceed the limit by a quarter, or by a single message of any size; beyond that the stream is not read until
bytes are released.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

from binlog.rpc.method import MemoryBudget

from pump.errors import Overloaded
from pump.metrics import OVERLOADED

SMALL_BYTES_MAX = 64 << 10
BYTES_MAX = 2 << 30


class InFlight(MemoryBudget):
    """Byte counter of the event loop. Small requests, commits among them, may exceed `bytes_max` by an eighth, so that
    they are not refused while large ones fill it; pulls may use half of it. A single request is never refused."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._pulls = 0
        self._tolerated = 0
        self._retries: list[Callable[[], None]] = []
        self._is_retrying = False
        self._changed = asyncio.Event()
        self.bytes = 0

    def fits(self, size: int, *, held: int = 0) -> bool:
        """Return whether a request of `size` bytes is admitted now. Pulls alone never cause a refusal, because they may
        last for ever, nor do the `held` bytes that are counted for this request already."""
        budget = self._bytes_max + (self._bytes_max // 8 if size <= SMALL_BYTES_MAX else 0)
        return self.bytes - held <= self._pulls or self.bytes + size <= budget

    def _error(self, size: int) -> Overloaded:
        OVERLOADED.inc()
        return Overloaded(size, self.bytes, self._bytes_max)

    @contextlib.contextmanager
    def request(self, size: int, *, held: int = 0) -> Iterator[None]:
        """Count `size` bytes while a request is processed. Raises Overloaded above the limit. `held`: see `fits`."""
        if not self.fits(size, held=held):
            raise self._error(size)
        with self._taken(size):
            yield

    def take(self, size: int) -> None:
        """Count `size` bytes until `give` releases them. Raises Overloaded above the limit."""
        if not self.fits(size):
            raise self._error(size)
        self.bytes += size

    def give(self, size: int) -> None:
        """Release bytes counted by `take`."""
        self.bytes -= size
        self._changed.set()
        if self._retries and not self._is_retrying:
            self._is_retrying = True
            asyncio.get_running_loop().call_soon(self._retry)

    def wait(self, retry: Callable[[], None]) -> None:
        """Call `retry` once, in the turn of the event loop after bytes were released; of several in the order in which
        they were given."""
        self._retries.append(retry)

    def _retry(self) -> None:
        self._is_retrying = False
        retries, self._retries = self._retries, []
        for retry in retries:
            retry()

    def tolerate(self, size: int) -> bool:
        """Count, until `forgive`, a message that is refused but must be read first. Return False if it must wait for
        room."""
        if self._tolerated and self._tolerated + size > self._bytes_max // 4:
            return False
        self._tolerated += size
        self.bytes += size
        return True

    def forgive(self, size: int) -> None:
        """Release bytes counted by `tolerate`."""
        self._tolerated -= size
        self.give(size)

    @contextlib.contextmanager
    def pull(self, size: int) -> Iterator[None]:
        """Count `size` bytes while a pull is open. Raises Overloaded if pulls would use more than half of the
        limit."""
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
        """Count `size` bytes while an answer is built and sent. Waits until they fit."""
        while self.bytes + size > self._bytes_max and self.bytes > self._pulls:
            self._changed.clear()
            await self._changed.wait()
        with self._taken(size):
            yield

    @contextlib.contextmanager
    def _taken(self, size: int) -> Iterator[None]:
        self.bytes += size
        try:
            yield
        finally:
            self.give(size)
