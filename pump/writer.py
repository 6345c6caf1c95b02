"""Group commit: one thread that takes what is queued, appends it with one sync, indexes it, and reports.

A `Writer` accepts submissions from the event loop between `start` and `stop`; `stop` lets it finish what is queued.
Order within the thread, which everything else rests on: judge → append → fdatasync → index batch → report. So what
is reported is durable *and* visible to pulls.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from binlog.envelope import Envelope
from binlog.errors import BinlogError, LogBroken
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger

from pump.errors import Stopping
from pump.index import Index, IndexFailed
from pump.log import Head, ValueLog
from pump.match import Fate, Matcher, Verdict
from pump.progress import Progress, Reached
from pump.record import HEADER_BYTES, Pointer

BATCH_BYTES_MAX = 8 << 20
QUEUE_BYTES_MAX = 64 << 20
PROGRESS_INTERVAL_S = 1.0

_log = get_logger("pump.writer")


class Written(NamedTuple):
    """What became of one submission: verdicts parallel to its binlogs, and the commits that became visible."""

    verdicts: list[Verdict]
    visible: list[int]


@dataclass(slots=True, eq=False)
class Submission:
    """Binlogs of one request, already checked. `report` is called on the event loop, once."""

    envelopes: Sequence[Envelope]
    payloads: Sequence[bytes]
    size: int
    report: Callable[[Written], None]


class Writer:
    """See the module. `resolved_ts` is read whenever progress is saved (correctness rule 3)."""

    def __init__(
        self, log: ValueLog, index: Index, matcher: Matcher, progress: Progress, *, resolved_ts: Callable[[], int]
    ) -> None:
        # Of any thread
        self._log = log
        self._index = index
        self._progress = progress
        self._resolved_ts = resolved_ts
        # Under the lock
        self._ready = threading.Condition()
        self._queue: deque[Submission] = deque()
        self._queued_bytes = 0
        self._stopping = False
        # Of the event loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._room = asyncio.Event()
        self._room.set()
        # Of the writer's thread
        self._matcher = matcher
        self._saved_s = 0.0
        self._head: Head | None = None
        self._written_bytes = 0
        self._thread = threading.Thread(target=self._run, name="pump-writer", daemon=True)

    # On the event loop

    def start(self, head: Head | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._head = head
        self._progress.start()
        self._thread.start()

    async def room(self) -> None:
        """Wait until the queue takes more bytes."""
        while not self._room.is_set():
            await self._room.wait()

    def submit(self, submission: Submission) -> None:
        """Queue it; Stopping after `stop`."""
        with self._ready:
            if self._stopping:
                raise Stopping("the pump is closing and writes nothing more")
            self._queue.append(submission)
            self._queued_bytes += submission.size
            if self._queued_bytes > QUEUE_BYTES_MAX:
                self._room.clear()
            self._ready.notify()

    async def stop(self) -> None:
        """Write what is queued, save progress, end the thread."""
        with self._ready:
            self._stopping = True
            self._ready.notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)
        await asyncio.sleep(0)  # reports of the last batch are queued on the loop before this

    def _deliver(self, reports: list[tuple[Submission, Written]]) -> None:
        for submission, written in reports:
            submission.report(written)
        if self._queued_bytes <= QUEUE_BYTES_MAX:
            self._room.set()
        crash_point("pump.after_ack")

    # On the writer's thread

    def _run(self) -> None:
        while True:
            batch = self._take()
            if not batch:
                break
            try:
                reports = self._write(batch)
            except Exception as error:  # noqa: BLE001  a mistake of ours must not leave callers waiting for ever
                _log.exception("the writer failed")
                reports = [(s, _all_unknown(s, LogBroken(f"the writer failed: {error!r}"))) for s in batch]
                self._log.give_up(f"the writer failed: {error!r}")
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._deliver, reports)
            del batch, reports  # or the last batch would stay in memory until the next one comes
            self._save_progress(now=False)
        self._save_progress(now=True)
        self._progress.stop()

    def _take(self) -> list[Submission]:
        """What is queued, up to BATCH_BYTES_MAX; nothing once stopped and empty."""
        with self._ready:
            while not self._queue and not self._stopping:
                self._ready.wait()
            batch: list[Submission] = []
            taken = 0
            while self._queue and (not batch or taken + self._queue[0].size <= BATCH_BYTES_MAX):
                submission = self._queue.popleft()
                taken += submission.size
                batch.append(submission)
            self._queued_bytes -= taken
            return batch

    def _write(self, batch: list[Submission]) -> list[tuple[Submission, Written]]:
        if self._log.broken is not None:
            broken = LogBroken(self._log.broken)
            return [(s, Written([Verdict(Fate.SKIPPED, False, broken)] * len(s.payloads), [])) for s in batch]
        judge = self._matcher.judge
        reports: list[tuple[Submission, Written]] = []
        payloads: list[bytes] = []
        largest: list[int] = []
        for submission in batch:
            verdicts: list[Verdict] = []
            for envelope, payload in zip(submission.envelopes, submission.payloads, strict=True):
                verdict = judge(envelope, payload)
                verdicts.append(verdict)
                if verdict.write:
                    payloads.append(payload)
                    largest.append(max(envelope.start_ts, envelope.commit_ts))
            reports.append((submission, Written(verdicts, [])))
        if payloads:
            try:
                self._store(reports, self._log.append(payloads, largest), payloads[-1])
            except BinlogError as error:  # LogBroken, or the index failed: the disk may hold these, or not
                self._log.give_up(str(error))
                return [(s, _failed(written, error)) for s, written in reports]
        self._matcher.end_batch()
        return reports

    def _store(self, reports: list[tuple[Submission, Written]], pointers: list[Pointer], last_payload: bytes) -> None:
        """Index what was appended; one LevelDB batch."""
        batch, raw = self._index.batch()
        record = self._matcher.record
        places = iter(pointers)
        for submission, written in reports:
            for envelope, payload, verdict in zip(
                submission.envelopes, submission.payloads, written.verdicts, strict=True
            ):
                if verdict.write:
                    commit_ts = record(batch, envelope, payload, next(places))
                    if commit_ts:
                        written.visible.append(commit_ts)
        last = pointers[-1]
        head = Head(last, last.offset + HEADER_BYTES + len(last_payload), self._log.file(last.fid).max_ts)
        batch.head(head)
        try:
            self._index.write(raw)
        except IndexFailed as error:
            self._log.give_up(str(error))
            raise
        self._head = head
        self._written_bytes += sum(submission.size for submission, _ in reports)
        crash_point("pump.after_index")

    def _save_progress(self, *, now: bool) -> None:
        """Have it saved how far we are, at most once a second and at the end, as upstream (`P-ST-08`)."""
        clock_s = time.monotonic()
        if self._head is None or self._log.broken or (not now and clock_s - self._saved_s < PROGRESS_INTERVAL_S):
            return
        head = self._head
        handle = min(self._matcher.oldest_pointer() or head.pointer, head.pointer)
        self._progress.offer(Reached(head, handle, self._resolved_ts(), self._written_bytes))
        self._saved_s = clock_s


def _failed(written: Written, error: BinlogError) -> Written:
    """Nothing of a failed batch is answered with more than the error (correctness rule 23).

    What should have been written may be there or not. A repetition, or a refusal, may have been judged by a binlog of
    this same batch: it is worth no more than that one. `write` stays, for the pending set: what was not written by
    this request needs no entry of its own.
    """
    return Written([Verdict(v.fate, v.write, error) for v in written.verdicts], [])


def _all_unknown(submission: Submission, error: BinlogError) -> Written:
    return Written([Verdict(Fate.SKIPPED, True, error)] * len(submission.payloads), [])
