"""Pages below /debug/pprof/ that show what a process does: its stacks, its use of CPU, and its memory.

The original's programs have pages of Go with these names; here the answers are text. A CPU profile has the folded form
that flame graph tools read. The pages cost CPU while they run, so a program serves them only if they are enabled.
"""

from __future__ import annotations

import asyncio
import gc
import io
import os
import sys
import threading
import time
import traceback
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from binlog.runtime.http import Action, Request, Response, text_response

SAMPLE_S = 0.01
SECONDS_MAX = 300.0
SECONDS_DEFAULT = 10.0
SHOWN = 50
STACK_FRAMES = 10  # frames kept for each allocation

_PAGES = {
    "stacks": "the stack of every thread and every asyncio task (also: goroutine)",
    "profile": "CPU time by stack, in microseconds, sampled for ?seconds=10; for flamegraph.pl or speedscope.app",
    "heap": "memory of the process, and its objects by type",
    "allocs": f"memory allocated during ?seconds=10 and still held, by line, the {SHOWN} largest; slows the process",
    "cmdline": "the command line",
}
# Attributes of a coroutine, a generator and an asynchronous generator.
_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_AWAITED = ("cr_await", "gi_yieldfrom", "ag_await")
_ALIASES = {"goroutine": "stacks", "threadcreate": "stacks"}


def actions(*, enabled: bool) -> dict[str, Action]:
    """Return the actions for StatusServer. If not `enabled`, they answer how to enable profiling."""
    pages = Pages() if enabled else None
    return {"GET /debug/pprof/": _guarded(pages), "GET /debug/pprof/{name}": _guarded(pages)}


def _guarded(pages: Pages | None) -> Action:
    async def serve(request: Request) -> Response:
        if pages is None:
            return text_response("profiling is off: start with -enable-debug\n", status=404)
        return await pages.answer(request)

    return serve


class Pages:
    """The pages. Only one measurement runs at a time."""

    def __init__(self) -> None:
        self._busy = asyncio.Lock()

    async def answer(self, request: Request) -> Response:
        name = request.path.get("name", "")
        name = _ALIASES.get(name, name)
        if name in ("profile", "allocs"):
            return await self._measured(name, request.query)
        if name == "stacks":
            return text_response(stacks())
        if name == "heap":
            return text_response(await asyncio.to_thread(heap))
        if name == "cmdline":
            return text_response("\0".join([sys.executable, *sys.argv]))
        index = "".join(f"/debug/pprof/{page}: {what}\n" for page, what in _PAGES.items())
        return text_response(index, status=404 if name else 200)

    async def _measured(self, name: str, query: Mapping[str, str]) -> Response:
        try:
            seconds = float(query.get("seconds", SECONDS_DEFAULT))
        except ValueError:
            seconds = -1.0
        if not 0 < seconds <= SECONDS_MAX:
            return text_response(f"seconds must be above 0, and {SECONDS_MAX:g} at most\n", status=400)
        if self._busy.locked():
            return text_response("another profile is being taken; try again later\n", status=409)
        async with self._busy:
            return text_response(await (cpu_profile(seconds) if name == "profile" else allocations(seconds)))


def stacks() -> str:
    """Return the stack of every thread and task. Call it in the event loop."""
    out = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        out.write(f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}\n")
    for task in sorted(asyncio.all_tasks(), key=asyncio.Task.get_name):
        summary = traceback.StackSummary.extract((frame, frame.f_lineno or 0) for frame in _awaiting(task))
        out.write(f"task {task.get_name()}:\n{''.join(summary.format())}\n")
    return out.getvalue()


def _awaiting(task: asyncio.Task[object]) -> Iterator[FrameType]:
    """Yield the frames of the task's coroutine, of the coroutine it awaits, and so on. Compiled coroutines have no
    frames.
    """
    awaited: object = task.get_coro()
    while awaited is not None:
        frame = next((found for name in _FRAMES if (found := getattr(awaited, name, None)) is not None), None)
        if isinstance(frame, FrameType):
            yield frame
        awaited = next((found for name in _AWAITED if (found := getattr(awaited, name, None)) is not None), None)


async def cpu_profile(seconds: float) -> str:
    """Sample the CPU time of each thread by stack. Return lines `thread;outer;…;inner microseconds`."""
    spent: Counter[str] = Counter()
    done = threading.Event()
    sampler = threading.Thread(target=_sample, args=(spent, done), name="profiler", daemon=True)
    sampler.start()
    try:
        await asyncio.sleep(seconds)
    finally:
        done.set()
        await asyncio.to_thread(sampler.join)
    lines = (f"{stack} {nanoseconds // 1000}\n" for stack, nanoseconds in spent.most_common() if nanoseconds >= 1000)
    return "".join(lines) or "no CPU was used\n"


def _sample(spent: Counter[str], done: threading.Event) -> None:
    """Sample until `done` is set. The CPU time a thread used since the last sample counts for its current stack."""
    own = threading.get_ident()
    used: dict[int, int] = {}
    while not done.wait(SAMPLE_S):
        frames = sys._current_frames()
        for thread in threading.enumerate():
            frame, native_id = frames.get(thread.ident or 0), thread.native_id
            if thread.ident == own or frame is None or native_id is None:
                continue
            now = _cpu_ns(native_id)
            if now > used.setdefault(native_id, now):
                spent[_folded(thread.name, frame)] += now - used[native_id]
                used[native_id] = now


def _cpu_ns(native_id: int) -> int:
    """Return the CPU time of a thread so far, in nanoseconds; 0 if it has ended or the kernel does not report it."""
    try:
        return int(Path(f"/proc/self/task/{native_id}/schedstat").read_text().split()[0])
    except (OSError, IndexError, ValueError):
        return 0


def _folded(thread: str, frame: FrameType | None) -> str:
    names = []
    while frame is not None:
        code = frame.f_code
        place = "/".join(Path(code.co_filename).parts[-2:])
        names.append(f"{code.co_qualname} ({place}:{frame.f_lineno})")
        frame = frame.f_back
    return ";".join(name.replace(";", ",") for name in [thread, *reversed(names)])


def heap() -> str:
    """Return the memory of the process in bytes, and the number of objects of each type known to the garbage
    collector.
    """
    pages = Path("/proc/self/statm").read_text().split()
    resident = int(pages[1]) * os.sysconf("SC_PAGE_SIZE")
    kinds = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    lines = [f"resident {resident} bytes", f"threads {threading.active_count()}"]
    lines += [f"garbage collector: {gc.get_count()} of {gc.get_threshold()}, frozen {gc.get_freeze_count()}", ""]
    lines += [f"{count:10} {kind}" for kind, count in kinds.most_common(SHOWN)]
    return "\n".join(lines) + "\n"


async def allocations(seconds: float) -> str:
    """Return the memory that was allocated during these seconds and is still held, by line."""
    tracemalloc.start(STACK_FRAMES)
    try:
        began_s = time.monotonic()
        await asyncio.sleep(seconds)
        took_s = time.monotonic() - began_s
        snapshot = await asyncio.to_thread(tracemalloc.take_snapshot)
    finally:
        tracemalloc.stop()
    found = await asyncio.to_thread(snapshot.statistics, "lineno")
    total = sum(each.size for each in found)
    lines = [f"{total} bytes allocated in {took_s:.1f} s are still held", ""]
    for each in found[:SHOWN]:
        frame = each.traceback[0]
        lines.append(f"{each.size:12} bytes {each.count:9} blocks  {frame.filename}:{frame.lineno}")
    return "\n".join(lines) + "\n"
