"""A thread for jobs that wait for the disk. The event loop gives it one job at a time.

Waking the loop through its selector takes longer than a quick disk takes for a small write. While both threads run
Python, they take the interpreter from each other. So the loop itself may wait for a short job, by default at most
WAIT_MAX_S. It does not wait if a recent job took longer than that.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

WAIT_MAX_S = 0.002
_FORGETTING = 0.8  # factor by which the duration of the slowest recent job decays with each job


class DiskThread:
    """A thread that runs jobs. Call `run` only on the event loop on which it was started, and only when no job is under
    way. A job must not raise. `wait_max_s`: the longest time for which the loop waits for a job."""

    def __init__(self, name: str, *, wait_max_s: float = WAIT_MAX_S) -> None:
        self._wait_max_s = wait_max_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._job: Callable[[], None] | None = None
        self._done: Callable[[], object] | None = None
        self._go = threading.Lock()
        self._go.acquire()
        self._ended = threading.Lock()
        self._ended.acquire()
        self._telling = threading.Lock()  # guards the next two
        self._is_ended = False
        self._tells_loop = False
        self._slowest_s = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def run(self, job: Callable[[], None], done: Callable[[], object], *, short: bool) -> bool:
        """Run a job. Return True if it has already ended. Otherwise return False, and `done` is called on the loop when
        it has ended. `short`: the job may be worth waiting for."""
        self._job, self._done = job, done
        waits = short and self._slowest_s < self._wait_max_s
        self._is_ended, self._tells_loop = False, not waits
        self._go.release()
        if not waits:
            return False
        if self._ended.acquire(timeout=self._wait_max_s):
            return True
        with self._telling:
            self._tells_loop = not self._is_ended
        if self._tells_loop:
            return False
        self._ended.acquire()
        return True

    async def stop(self) -> None:
        """End the thread. No job may be under way."""
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
            self._job = job = None  # otherwise its data would stay in memory until the next job
            with self._telling:
                self._is_ended = True
                tells_loop = self._tells_loop
            if not tells_loop:
                self._ended.release()
            elif self._loop is not None and not self._loop.is_closed() and self._done is not None:
                self._loop.call_soon_threadsafe(self._done)
