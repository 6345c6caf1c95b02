"""What /debug/pprof/ serves."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest
from binlog.runtime.http import Request, Response
from binlog.runtime.profiling import actions


async def asked(name: str, *, enabled: bool = True, **query: str) -> Response:
    (index, page) = actions(enabled=enabled).values()
    request = Request("GET", {"name": name} if name else {}, query, b"")
    return await (page if name else index)(request)


def busy(stop: threading.Event) -> None:
    while not stop.is_set():
        sum(range(2000))


def waiting(stop: threading.Event, begun: threading.Event | None = None) -> None:
    if begun is not None:
        begun.set()
    stop.wait(60)


async def test_off_it_says_how_to_turn_it_on() -> None:
    for name in ("", "profile", "heap"):
        answer = await asked(name, enabled=False)
        assert (answer.status, answer.body) == (404, b"profiling is off: start with -enable-debug\n")


async def test_the_pages_are_listed() -> None:
    index = await asked("")
    assert index.status == 200
    assert all(name in index.body for name in (b"/debug/pprof/profile: ", b"/debug/pprof/stacks: "))
    assert (await asked("nothing")).status == 404


@pytest.mark.parametrize("name", ["stacks", "goroutine"])
async def test_stacks_of_threads_and_tasks(name: str) -> None:
    stop, begun = threading.Event(), threading.Event()
    thread = threading.Thread(target=waiting, args=(stop, begun), name="a waiting thread")
    thread.start()
    assert begun.wait(60), "a thread that was started may not have called its function yet"
    event = asyncio.Event()

    async def inner() -> None:
        await event.wait()

    async def outer() -> None:
        await inner()

    task = asyncio.create_task(outer(), name="a waiting task")
    try:
        await asyncio.sleep(0)
        text = (await asked(name)).body.decode()
    finally:
        stop.set()
        thread.join()
        event.set()
        await task
    part = text[text.index("thread a waiting thread:") :].split("\n\n")[0]
    assert "in waiting" in part
    part = text[text.index("task a waiting task:") :].split("\n\n")[0]
    assert part.index("in outer") < part.index("in inner") < part.index("locks.py")


async def test_a_profile_shows_who_uses_the_cpu_and_not_who_waits() -> None:
    stop = threading.Event()
    threads = [threading.Thread(target=work, args=(stop,), name=work.__name__) for work in (busy, waiting)]
    for thread in threads:
        thread.start()
    try:
        text = ""
        async with asyncio.timeout(60):  # a busy machine may give it nothing for a while
            while "busy (runtime/test_profiling.py:" not in text:
                text = (await asked("profile", seconds="0.3")).body.decode()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    used: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, microseconds = line.rpartition(" ")
        assert int(microseconds) > 0
        used[stack.partition(";")[0]] += int(microseconds)
    assert used["waiting"] < used["busy"]
    assert "profiler" not in used


async def test_allocations_that_are_held() -> None:
    held: list[bytes] = []

    async def allocate() -> None:  # in the first turn of the loop after tracing began
        held.extend(bytes(1000) for _ in range(1000))

    task = asyncio.create_task(allocate())
    text = (await asked("allocs", seconds="0.5")).body.decode()
    await task
    first = next(line for line in text.splitlines() if "test_profiling.py" in line)
    assert int(first.split()[0]) >= 1_000_000
    assert len(held) == 1000


async def test_memory_and_objects() -> None:
    text = (await asked("heap")).body.decode()
    assert int(text.split("resident ")[1].split()[0]) > 1 << 20
    assert "builtins.dict" in text
    assert b"python" in (await asked("cmdline")).body


@pytest.mark.parametrize("seconds", ["0", "-1", "x", "301", "nan"])
async def test_how_long_is_checked(seconds: str) -> None:
    assert (await asked("profile", seconds=seconds)).status == 400


async def test_one_at_a_time() -> None:
    (_, page) = actions(enabled=True).values()
    requests = [Request("GET", {"name": name}, {"seconds": "0.2"}, b"") for name in ("profile", "allocs")]
    answers = await asyncio.gather(*(page(request) for request in requests))
    assert [answer.status for answer in answers] == [200, 409]
