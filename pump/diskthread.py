"""A thread for what waits for the disk: one job at a time, given by the event loop.

Waking the loop through its selector costs more than a quick disk takes for a small write, and while both threads run
Python they take the interpreter from each other. So the loop may wait for a short job itself, for so little time that
nobody notices; a disk that has lately been slower than that is not waited for.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

PATIENCE_S = 0.002
_FORGETTING = 0.8  # how much of the slowest recent job is left after the next


class DiskThread:
    """`run` belongs to the event loop it was started on, and is not called again before the job is done. A job must not
    raise."""

    def __init__(self, name: str) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._job: Callable[[], None] | None = None
        self._done: Callable[[], object] | None = None
        self._go = threading.Lock()
        self._go.acquire()
        self._ended = threading.Lock()
        self._ended.acquire()
        self._telling = threading.Lock()  # over the next two
        self._is_ended = False
        self._tells_loop = False
        self._slowest_s = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def run(self, job: Callable[[], None], done: Callable[[], object], *, short: bool) -> bool:
        """True: it is done already. Else `done` is called on the loop when it is. `short`: worth to be waited for."""
        self._job, self._done = job, done
        waits = short and self._slowest_s < PATIENCE_S
        self._is_ended, self._tells_loop = False, not waits
        self._go.release()
        if not waits:
            return False
        if self._ended.acquire(timeout=PATIENCE_S):
            return True
        with self._telling:
            self._tells_loop = not self._is_ended
        if self._tells_loop:
            return False
        self._ended.acquire()
        return True

    async def stop(self) -> None:
        """No job is under way."""
        if self._thread.is_alive():
            self._job = None
            self._go.release()
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        while True:
            self._go.acquire()
            job = self._job
            if job is None:
                return
            began_s = time.monotonic()
            job()
            self._slowest_s = max(time.monotonic() - began_s, self._slowest_s * _FORGETTING)
            self._job = job = None  # or what it holds would stay in memory until the next one comes
            with self._telling:
                self._is_ended = True
                tells_loop = self._tells_loop
            if not tells_loop:
                self._ended.release()
            elif self._loop is not None and not self._loop.is_closed() and self._done is not None:
                self._loop.call_soon_threadsafe(self._done)
