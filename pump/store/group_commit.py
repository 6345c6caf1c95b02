"""Group commit: queued binlogs are judged, appended with one sync, indexed, and reported.

A `Writer` accepts submissions on the event loop between `start` and `stop`; `stop` waits for the queued ones. It
processes one batch at a time, always in this order: judge → append → fdatasync → index batch → report. So a binlog that
is reported is durable *and* visible to pulls. A batch of usual size is judged on the loop, and a thread does the work
that waits for the disk. The thread processes a large batch completely.

The writer's progress is saved once a second, and with a checkpoint per CHECKPOINT_BYTES of the log. Both wait for the
disk, in another thread; no acknowledgement waits for them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

from binlog.envelope import Envelope, scan
from binlog.errors import BinlogError, LogBroken
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger

from pump.errors import Stopping
from pump.index.checkpoint import Checkpoints
from pump.index.leveldb import Batch, Index, IndexOptions
from pump.log.record import HEADER_BYTES, Pointer
from pump.log.value_log import Head, ValueLog
from pump.store.fast_path import FastBinlogs, enter_fast
from pump.store.limits import AHEAD_MAX_S
from pump.store.matcher import RECENT_MAX, Matcher, Result, ResultKind, WriteOffset, Written, enter

BATCH_BYTES_MAX = 8 << 20
QUEUE_BYTES_MAX = 64 << 20
SHORT_MAX = 64  # the loop may wait for the write of a batch of at most this many binlogs
WAIT_MAX_S = 0.002
CHECKPOINT_BYTES = 16 << 20  # of the value log; about as much is read again at a start after a crash
_FORGETTING = 0.8  # factor by which the duration of the slowest recent job decays with each job

_log = get_logger("pump.store.group_commit")


class DiskThread:
    """A thread for jobs that wait for the disk. Call `run` only on the event loop on which it was started, and only
    when no job is under way. A job must not raise. `wait_max_s`: the longest time for which the loop waits for a job.

    Waking the loop costs more than waiting for a quick disk (docs/architecture.md), so the loop itself may wait for a
    short job, unless a recent job took longer than that."""

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


class Reached(NamedTuple):
    """The writer's state between two batches: everything up to `head` is in the index, no prewrite before `handle` is
    pending, and `max_commit_ts` is resolved. `written_bytes`: bytes of binlogs written since the start."""

    head: Head
    handle: Pointer
    max_commit_ts: int
    written_bytes: int


@dataclass(slots=True, eq=False)
class Progress:
    """Saves progress, as the module says. A failure breaks the log: the index accepts nothing more, and a restart
    rebuilds its missing entries. Use it only on the event loop."""

    _log: ValueLog
    _index: Index
    _checkpoints: Checkpoints
    checkpoint_bytes: int = CHECKPOINT_BYTES
    _saving: asyncio.Future[None] | None = None
    _checked_bytes: int = 0  # used only by the thread that saves

    def offer(self, reached: Reached) -> bool:
        """Have `reached` saved, without waiting. Return False if an earlier state is still being saved: nothing is
        done then."""
        if self._saving is not None and not self._saving.done():
            return False
        self._saving = asyncio.get_running_loop().run_in_executor(None, self._save, reached, False)
        return True

    async def stop(self, reached: Reached) -> None:
        """Save a checkpoint of the last state."""
        if self._saving is not None:
            await asyncio.wait([self._saving])
        await asyncio.to_thread(self._save, reached, True)

    def _save(self, reached: Reached, checkpoint: bool) -> None:
        if self._log.broken is not None:
            return
        try:
            self._index.save_progress(handle=reached.handle, max_commit_ts=reached.max_commit_ts)
            if checkpoint or reached.written_bytes - self._checked_bytes >= self.checkpoint_bytes:
                self._checkpoints.save(reached.head, reached.handle)
                self._checked_bytes = reached.written_bytes
        except (BinlogError, OSError) as error:
            self._log.give_up(f"cannot save the progress of the index: {error}")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Options with which a store is opened. `file_bytes_max` and `sync` as in ValueLog; `stop_bytes`: see Space;
    `checkpoint_bytes`: see Progress; `ts_ahead_max_s`: see Horizon; `transaction_bytes_max`: larger binlogs are
    refused. `loop_bytes_max`: a batch of more bytes is judged in the writer's thread; `wait_max_s`: see DiskThread;
    `progress_interval_s`: the shortest time between two times that progress is saved; `recent_max`: see Matcher."""

    stop_bytes: int = 0
    transaction_bytes_max: int = 1 << 30
    sync: bool = True
    file_bytes_max: int = 500 << 20
    checkpoint_bytes: int = CHECKPOINT_BYTES
    ts_ahead_max_s: int = AHEAD_MAX_S
    index: IndexOptions = field(default_factory=IndexOptions)
    loop_bytes_max: int = 1 << 20
    wait_max_s: float = WAIT_MAX_S
    progress_interval_s: float = 1.0
    recent_max: int = RECENT_MAX


@dataclass(slots=True, eq=False)
class Submission:
    """Checked binlogs of one request, or fast-path binlogs of several requests. `size`: bytes of the payloads. `report`
    is called once, on the event loop."""

    payloads: Sequence[bytes]
    size: int
    report: Callable[[Written], None]
    envelopes: Sequence[Envelope] = ()  # empty for fast-path binlogs
    fast: FastBinlogs | None = None

    def scanned(self) -> Sequence[Envelope]:
        """Return the envelopes, also of fast-path binlogs."""
        return self.envelopes if self.fast is None else [scan(payload) for payload in self.payloads]


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch that is being written: its submissions, the bytes to write, and the results."""

    submissions: list[Submission]
    reports: list[tuple[Submission, Written]] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)  # headers and payloads
    error: BinlogError | None = None
    entered: tuple[Head, Batch] | None = None  # the log's end behind it and its index entries, once it is judged
    head: Head | None = None  # set when the complete batch is in the index


@dataclass(eq=False)
class Writer:
    """Writes submissions, as the module says. Use it only on the event loop. `resolved_ts` is called whenever progress
    is saved (correctness rule 3: pending prewrites survive a restart)."""

    # Parts of the store. "The batch's thread" is the one that works on the current batch: the event loop's, or the disk
    # thread.
    _log: ValueLog  # the batch's thread appends; any thread reads
    _index: Index  # the batch's thread writes; any thread reads
    _matcher: Matcher  # the batch's thread
    _progress: Progress  # event loop
    _: KW_ONLY
    resolved_ts: Callable[[], int]  # event loop
    options: StoreOptions  # constant
    # Owned by this object
    _loop: asyncio.AbstractEventLoop | None = None  # event loop; set by `start`
    _queue: deque[Submission] = field(default_factory=deque)  # event loop
    _queued_bytes: int = 0  # event loop
    _batch: _Batch | None = None  # the current batch; event loop; what is in it: the batch's thread
    _scheduled: bool = False  # event loop
    _is_beginning: bool = False  # event loop
    _stopping: bool = False  # event loop
    _idle: asyncio.Event = field(default_factory=asyncio.Event)  # event loop; set when the queue is empty
    _room: asyncio.Event = field(default_factory=asyncio.Event)  # event loop; set while the queue accepts more bytes
    _saved_s: float = 0.0  # event loop; when progress was last offered
    _head: Head | None = None  # event loop; the end of the last written batch
    _written_bytes: int = 0  # event loop

    def __post_init__(self) -> None:
        self._disk = DiskThread("pump-writer", wait_max_s=self.options.wait_max_s)  # event loop
        self._room.set()

    def start(self, head: Head | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._head = head
        self._disk.start()

    async def room(self) -> None:
        """Wait until the queue accepts more bytes."""
        while not self._room.is_set():
            await self._room.wait()

    def submit(self, submission: Submission, *, now: bool = False) -> None:
        """Queue a submission. Raises Stopping after `stop`. `now`: begin its batch immediately, because nothing else
        for this batch will be submitted in this turn of the loop. It may then be reported before this returns."""
        if self._stopping:
            raise Stopping("the pump is closing and writes nothing more")
        self._queue.append(submission)
        self._queued_bytes += submission.size
        if self._queued_bytes > QUEUE_BYTES_MAX:
            self._room.clear()
        if now:
            self._begin()
        else:
            self._schedule()

    async def stop(self) -> None:
        """Write the queued submissions, end the thread, and save progress."""
        self._stopping = True
        while self._queue or self._batch is not None:
            self._idle.clear()
            await self._idle.wait()
        if self._loop is not None:
            await self._disk.stop()
            if self._head is not None:
                await self._progress.stop(self._reached(self._head))

    def _schedule(self) -> None:
        """Begin the next batch after this turn of the loop."""
        if self._batch is None and not self._scheduled and self._loop is not None:
            self._scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        if self._loop is None or self._is_beginning:  # called by a report: the outer call begins the next batch
            return
        self._scheduled = False
        self._is_beginning = True
        try:
            self._begin_next()
        finally:
            self._is_beginning = False

    def _begin_next(self) -> None:
        while self._batch is None and self._queue:
            batch = self._batch = _Batch(self._take())
            job = self._job(batch)
            short = 0 < len(batch.parts) <= 2 * SHORT_MAX  # no parts yet: the thread judges the batch
            if job is not None and not self._disk.run(job, self._end_later, short=short):
                return
            del job
            self._end(batch)

    def _end_later(self) -> None:
        self._is_beginning = True  # a batch that a report submits waits until this batch is reported completely
        try:
            if self._batch is not None:
                self._end(self._batch)
        finally:
            self._is_beginning = False
        self._begin()

    def _take(self) -> list[Submission]:
        """Take submissions off the queue, up to BATCH_BYTES_MAX, but at least one."""
        taken: list[Submission] = []
        size = 0
        while self._queue and (not taken or size + self._queue[0].size <= BATCH_BYTES_MAX):
            submission = self._queue.popleft()
            size += submission.size
            taken.append(submission)
        self._queued_bytes -= size
        return taken

    def _job(self, batch: _Batch) -> Callable[[], None] | None:
        """Return the thread's work for a batch, or None if there is none. A batch of usual size is judged here."""
        if self._log.broken is not None:
            broken = LogBroken(self._log.broken)
            batch.reports = [
                (s, Written([Result(ResultKind.SKIPPED, False, broken)] * len(s.payloads), []))
                for s in batch.submissions
            ]
            return None
        size = sum(submission.size for submission in batch.submissions)
        if size > self.options.loop_bytes_max:
            return lambda: self._guarded(batch, self._enter, self._commit)
        self._guarded(batch, self._enter)
        if batch.entered is None:
            return None
        if not batch.parts:
            self._matcher.end_batch()
            return None
        return lambda: self._guarded(batch, self._commit)

    def _enter(self, batch: _Batch) -> None:
        """Judge a batch. Put its records and its index entries into it."""
        writes = self._index.batch()
        tail, parts = self._log.tail, batch.parts
        write_offset = WriteOffset(tail.fid, tail.size, tail.max_ts)
        for submission in batch.submissions:
            fast, payloads = submission.fast, submission.payloads
            if fast is not None:
                written = enter_fast(fast, payloads, self._matcher, writes, parts, write_offset)
            else:
                written = enter(submission.envelopes, payloads, self._matcher, writes, parts, write_offset)
            batch.reports.append((submission, written))
        last = write_offset.at - HEADER_BYTES - len(parts[-1]) if parts else write_offset.at
        head = Head(Pointer(write_offset.fid, last), write_offset.at, write_offset.max_ts)
        writes.head(head)
        batch.entered = head, writes

    # In the thread, or while a batch is judged on the loop

    def _guarded(self, batch: _Batch, *steps: Callable[[_Batch], None]) -> None:
        try:
            for step in steps:
                step(batch)
        except BinlogError as error:  # LogBroken, or the index failed: the disk may or may not hold these binlogs
            self._log.give_up(str(error))
            batch.error = error
        except Exception as error:  # noqa: BLE001  a bug here must not leave callers without an answer
            _log.exception("the writer failed")
            broken = LogBroken(f"the writer failed: {error!r}")
            batch.reports = [(submission, _all_unknown(submission, broken)) for submission in batch.submissions]
            self._log.give_up(str(broken))

    def _commit(self, batch: _Batch) -> None:
        """Write a judged batch to the log and to the index, which makes the binlogs visible."""
        assert batch.entered is not None
        head, writes = batch.entered
        if batch.parts:
            self._log.write(batch.parts, head.max_ts)
            self._index.write(writes)
            batch.head = head
        self._matcher.end_batch()
        if batch.parts:
            crash_point("pump.after_index")

    # On the event loop

    def _end(self, batch: _Batch) -> None:
        self._batch = None
        reports = batch.reports
        if batch.head is not None:
            self._head = batch.head
            self._written_bytes += sum(submission.size for submission in batch.submissions)
        if batch.error is not None:
            judged, error = dict(reports), batch.error
            reports = [(s, _failed(s, judged.get(s), error)) for s in batch.submissions]
        for submission, written in reports:
            try:
                submission.report(written)
            except Exception:  # noqa: BLE001  the other submissions still wait for their reports
                _log.exception("cannot report the result of a write")
        if self._queued_bytes <= QUEUE_BYTES_MAX:
            self._room.set()
        crash_point("pump.after_ack")
        self._save_progress()
        if not self._queue:
            self._idle.set()

    def _save_progress(self) -> None:
        """Begin to save the progress, at most once a second, like upstream (`P-ST-08`)."""
        clock_s = time.monotonic()
        if self._head is None or self._log.broken or clock_s - self._saved_s < self.options.progress_interval_s:
            return
        if self._progress.offer(self._reached(self._head)):
            self._saved_s = clock_s

    def _reached(self, head: Head) -> Reached:
        handle = min(self._matcher.oldest_pointer() or head.pointer, head.pointer)
        return Reached(head, handle, self.resolved_ts(), self._written_bytes)


def _failed(submission: Submission, written: Written | None, error: BinlogError) -> Written:
    """Return the results of a submission of a failed batch: every binlog gets the error (FORMAT.md, "Write order").
    `write` is kept for the pending set: a prewrite that this request did not write stays pending only if another
    request wrote it. If the submission was not judged completely, every binlog counts as possibly written."""
    if written is not None and len(written.results) == len(submission.payloads):
        return Written([Result(v.kind, v.write, error) for v in written.results], [])
    return _all_unknown(submission, error)


def _all_unknown(submission: Submission, error: BinlogError) -> Written:
    return Written([Result(ResultKind.SKIPPED, True, error)] * len(submission.payloads), [])
