"""The thread that waits for the disk: each job's end is told once, whether or not the loop waits for it."""

from __future__ import annotations

import asyncio
import threading

from pump.store.group_commit import DiskThread

WAIT_S = 60.0


class Running:
    """A started thread, and what its jobs did."""

    def __init__(self, *, wait_max_s: float) -> None:
        self.thread = DiskThread("test-disk", wait_max_s=wait_max_s)
        self.thread.start()
        self.told = asyncio.Event()
        self.ran: list[int] = []

    def run(self, number: int, gate: threading.Event | None = None, *, short: bool = True) -> bool:
        def job() -> None:
            if gate is not None:
                assert gate.wait(WAIT_S)
            self.ran.append(number)

        return self.thread.run(job, self.told.set, short=short)


async def test_a_short_job_is_done_when_run_returns() -> None:
    running = Running(wait_max_s=WAIT_S)
    for number in range(100):
        assert running.run(number)
        assert running.ran[-1] == number
    await running.thread.stop()
    assert not running.told.is_set() and not running.thread._thread.is_alive()


async def test_disk_thread_notifies_about_job_that_takes_longer_than_patience() -> None:
    running, gate = Running(wait_max_s=0.001), threading.Event()
    assert not running.run(1, gate)
    await asyncio.sleep(0)
    assert running.ran == [] and not running.told.is_set()
    gate.set()
    await asyncio.wait_for(running.told.wait(), WAIT_S)
    assert running.ran == [1]
    running.thread._slowest_s = WAIT_S
    running.told.clear()
    assert not running.run(2), "a disk that was slow is not waited for"
    await asyncio.wait_for(running.told.wait(), WAIT_S)
    await running.thread.stop()


async def test_disk_thread_never_waits_for_job_not_marked_short() -> None:
    running = Running(wait_max_s=WAIT_S)
    for number in range(100):
        running.told.clear()
        assert not running.run(number, short=False)
        await asyncio.wait_for(running.told.wait(), WAIT_S)
        assert running.ran[-1] == number
        running.thread._slowest_s = 0.0
        assert running.run(-number)
    await running.thread.stop()


async def test_disk_thread_reports_end_once_if_job_ends_as_patience_ends() -> None:
    """Told in one of the two ways, never in both or neither."""
    running = Running(wait_max_s=0.0)
    for number in range(500):
        running.told.clear()
        running.thread._slowest_s = -1.0
        if not running.run(number):
            await asyncio.wait_for(running.told.wait(), WAIT_S)
        assert running.ran == list(range(number + 1))
    await running.thread.stop()
