"""The open calls of a service. When the service is closed, they are first waited for, then cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from pumpclient.errors import ClientClosed


class UnderWay:
    """Calls that have sent something or are about to, from `entered` until they end. Open, then closed (`shut`).

    A call can be cancelled as long as it has not sent the message that decides its transaction. It then raises
    ClientClosed, and its caller's task continues. The task is cancelled from outside as `asyncio.timeout` does it.
    """

    def __init__(self) -> None:
        self._shut = False
        self._open: set[asyncio.Task[object]] = set()
        self._cancelled: set[asyncio.Task[object]] = set()
        self._deciding = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._open) + self._deciding

    def check(self, what: str) -> None:
        """Raise ClientClosed if it is shut."""
        if self._shut:
            raise ClientClosed(f"the service is closed: {what} was not sent")

    @contextlib.contextmanager
    def entered(self, what: str) -> Iterator[None]:
        """Enter a part of a call that may be cancelled. If it ends early, `what` will never be visible."""
        self.check(what)
        task = asyncio.current_task()
        assert task is not None, "only tasks make calls"
        before = task.cancelling()
        self._open.add(task)
        self._idle.clear()
        try:
            yield
        except asyncio.CancelledError:
            if task in self._cancelled and task.uncancel() <= before:
                raise ClientClosed(f"the service was closed while {what} was under way: it is not committed") from None
            raise
        finally:
            self._open.discard(task)
            self._cancelled.discard(task)
            self._rest()

    @contextlib.contextmanager
    def deciding(self) -> Iterator[None]:
        """Enter a part that is waited for and never cancelled: the message that decides the transaction has
        been sent.
        """
        self._deciding += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._deciding -= 1
            self._rest()

    def _rest(self) -> None:
        if not len(self):
            self._idle.set()

    def shut(self) -> None:
        """Refuse new calls from now on."""
        self._shut = True

    async def ended(self, wait_s: float) -> bool:
        """Wait up to `wait_s` seconds until all open calls have ended. Return whether they have."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._idle.wait()
        return not len(self)

    def cancel(self) -> int:
        """Cancel the calls that may be cancelled and return their number."""
        tasks = self._open - self._cancelled
        self._cancelled |= tasks
        for task in tasks:
            task.cancel()
        return len(tasks)
