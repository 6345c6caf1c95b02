"""The store of a pump: write, resolve, pull and inspect binlogs. Independent of transport and registry.

A new `Store` is closed. `open` recovers it, `serve` lets it serve, and `close` closes it for good. Call its methods on
the event loop; blocking work runs in threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from binlog.cluster import tso
from binlog.envelope import BinlogType, encode_binlog, encode_fake, scan
from binlog.runtime.log import get_logger

from pump.errors import DamagedRecord, NoSuchPrewrite
from pump.index.checkpoint import Checkpoints
from pump.index.leveldb import Index
from pump.log.read_progress import ReadingProgress
from pump.log.record import Pointer
from pump.log.value_log import ValueLog
from pump.pull.ranges import Reader
from pump.store.counters import Counters
from pump.store.group_commit import Writer
from pump.store.matcher import Matcher
from pump.store.options import StoreOptions
from pump.store.pending import Pending, PendingSet, Resolved
from pump.store.progress import Progress
from pump.store.reads import Serving
from pump.store.recovery import Recovered, recover
from pump.store.resolver import Resolver, Timestamps
from pump.store.space import Space
from pump.store.ts_limit import Horizon
from pump.store.writes import Writing

ALARM_INTERVAL_S = 1.0

_log = get_logger("pump.store.store")


class Store(Serving, Writing):
    """See the module. `largest_ts`: after `open`, no ts in this log is above it. `reading`: the progress of `open`."""

    def __init__(self, directory: Path, timestamps: Timestamps, options: StoreOptions | None = None) -> None:
        self._options = options or StoreOptions()
        self._directory = directory
        self.counters = Counters()
        self.space = Space(directory, stop_bytes=self._options.stop_bytes)
        self.damage: list[DamagedRecord] = []
        self._pending = PendingSet()
        self._resolved = Resolved()
        self._horizon = Horizon(self._options.ts_ahead_max_s)
        self.resolver = Resolver(self._pending, self._resolved, timestamps, self._horizon)
        self._timestamps = timestamps
        self._drained = asyncio.Event()
        self._broken = asyncio.Event()
        self._under_way = 0  # submissions that the writer has not reported
        self._sealed = ""
        self._resolver_task: asyncio.Task[None] | None = None
        self._alarmed_s = self._refused_s = 0.0
        self.activity = 0  # accepted writes; fakes do not count
        self.reading = ReadingProgress()
        self.opened = False

    # Life

    async def open(self) -> None:
        """Recover (FORMAT.md). No timestamps are fetched: this pump may have to allocate them, and an allocator must
        know its log first (rule 7). If the caller is cancelled, the reading stops."""
        self.space.refresh()
        with ExitStack() as undo:
            recovering = asyncio.create_task(asyncio.to_thread(self._recover, undo))
            try:
                recovered = await asyncio.shield(recovering)
            except asyncio.CancelledError:
                self.reading.stop()
                await asyncio.gather(recovering, return_exceptions=True)
                raise
            self._restore(recovered)
            undo.pop_all()
        self.opened = True

    def _restore(self, recovered: Recovered) -> None:
        """Set up the parts of the store from the recovered state."""
        loop = asyncio.get_running_loop()
        self.log.on_broken = lambda: loop.call_soon_threadsafe(self._broken.set)
        self.damage = recovered.damage
        now_s, now_ms = time.monotonic(), time.time() * 1000
        self._pending.restore(
            Pending(
                found.start_ts,
                now_s - max(0.0, (now_ms - tso.physical_ms(found.start_ts)) / 1000),
                found.prewrite.length,
                found.prewrite.ddl_job_id,
                found.prewrite_key,
                found.writer,
            )
            for found in recovered.unmatched
            if found.start_ts not in recovered.ended
        )
        self._resolved.ts = self.index.max_commit_ts()
        matcher = Matcher(self.index, self.log.read, self._largest_ts(recovered))
        matcher.holds = self.log.holds
        matcher.lost = self._lost_at
        matcher.unmatched = {found.start_ts: found.prewrite for found in recovered.unmatched}
        progress = Progress(self.log, self.index, self.checkpoints, checkpoint_bytes=self._options.checkpoint_bytes)
        self._writer = Writer(self.log, self.index, matcher, progress, resolved_ts=lambda: self._resolved.ts)
        self._writer.start(recovered.head)
        self.largest_ts = max(matcher.largest_ts, self._resolved.ts)

    async def serve(self) -> None:
        """Fetch T and start to resolve. Nothing may be served before (correctness rule 3)."""
        await self.resolver.refresh()
        if self._horizon.beyond(self.largest_ts):
            _log.error(
                "the value log has a ts far ahead of the timestamp source; its binlogs are not served until the "
                "source reaches it",
                largest_ts=self.largest_ts,
                source_ts=self._horizon.source_ts,
            )
        self.resolver.request_refresh(self.largest_ts_until(self._horizon.limit_ts))
        self._resolver_task = asyncio.create_task(self.resolver.run(), name="resolver")

    def _recover(self, undo: ExitStack) -> Recovered:
        self.index = Index(self._directory / "kv", self._options.index)
        undo.callback(self.index.close)
        self.log = ValueLog(
            self._directory / "value",
            file_bytes_max=self._options.file_bytes_max,
            progress=self.reading,
            **({} if self._options.sync else {"sync": None}),
        )
        self.checkpoints = Checkpoints(self._directory, self.index)
        trusted = self.checkpoints.trusted()
        head, known_is_all = (None, False) if trusted is None else (trusted.head, self.checkpoints.index_is_complete())
        damage = self.log.open(head, self.index.own_head(), known_is_all=known_is_all)
        recovered = recover(self.log, self.index, damage, trusted, self.reading)
        self.checkpoints.save(recovered.head, recovered.handle)
        self.reader = Reader(self.index, self.log)
        return recovered

    def _lost_at(self) -> Pointer | None:
        """Return the newest position of lost records in the existing files, or None."""
        return max((begin for begin, _ in self.index.damages() if self.log.has(begin.fid)), default=None)

    def _largest_ts(self, recovered: Recovered) -> int:
        """Return a ts that no ts in the index exceeds, neither a `ts:` key nor the start_ts of an outcome."""
        unmatched = max((found.start_ts for found in recovered.unmatched), default=0)
        return max(self.index.largest_ts(), self.index.largest_outcome(), unmatched)

    def largest_ts_until(self, until_ts: int) -> int:
        """Return the largest ts that this log held when it was opened and that is not above `until_ts`."""
        if self.largest_ts <= until_ts:
            return self.largest_ts
        return max(self.index.largest_ts(until_ts), self.index.largest_outcome(until_ts))

    async def close(self) -> None:
        """Write the queued binlogs, save progress, close the files."""
        if self._resolver_task is not None:
            self._resolver_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._resolver_task
        await self._writer.stop()
        try:
            await asyncio.to_thread(self.log.close)
        finally:
            self.index.close()

    # Writing

    async def write_fake(self) -> int:
        """Write one fake binlog and return its ts. A ts below it is reserved before it is fetched (rule 4). Raises
        LogBroken if the write fails."""
        placeholder = self._resolved.ts + 1
        self._pending.reserve(placeholder)
        try:
            ts = await self._timestamps.get()
            payload = encode_fake(ts)
            (error,) = await self._submit([scan(payload)], [payload], len(payload))
        finally:
            self._pending.release(placeholder)
            self._settle_down()
        if error is not None:
            raise error
        self.resolver.advance(ts)
        return ts

    async def settle(self, start_ts: int, commit_ts: int) -> None:
        """Settle a pending prewrite: commit it at `commit_ts`, or roll it back (0). Raises NoSuchPrewrite if it is not
        pending."""
        entry = self._pending.get(start_ts)
        if entry is None:
            raise NoSuchPrewrite(f"no prewrite of start_ts {start_ts} is pending here")
        tp = BinlogType.COMMIT if commit_ts else BinlogType.ROLLBACK
        payload = encode_binlog(tp=tp, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=entry.prewrite_key or None)
        (error,) = await self.write([payload])
        if error is not None:
            raise error

    async def drained(self, deadline_s: float) -> bool:
        """Wait until no prewrite is pending, at most `deadline_s` seconds. Return whether none is pending."""
        return await self._until(lambda: not len(self._pending), deadline_s)

    async def seal(self, why: str, deadline_s: float) -> int | None:
        """Refuse all further binlogs (`why` is the error's text) and wait for the accepted ones, at most `deadline_s`
        seconds.

        Return the largest commit_ts that can be served, without fakes. Return None if that is not final: a prewrite is
        pending, a write has not ended, or the result of a write is unknown.
        """
        self._sealed = why
        still = await self._until(lambda: not len(self._pending) and not self._under_way, deadline_s)
        if not still or self.log.broken is not None:
            return None
        return await asyncio.to_thread(self.index.largest_commit)

    async def _until(self, reached: Callable[[], bool], deadline_s: float) -> bool:
        end_s = time.monotonic() + deadline_s
        while not reached():
            self._drained.clear()
            try:
                async with asyncio.timeout(max(0.0, end_s - time.monotonic())):
                    await self._drained.wait()
            except TimeoutError:
                return reached()
        return True

    async def broken(self) -> str:
        """Wait until the log is broken. Return the reason. Stored binlogs can still be read."""
        await self._broken.wait()
        return self.log.broken or ""

    # Pending

    def is_pending(self, start_ts: int) -> bool:
        return start_ts in self._pending

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    def pending(self, count_max: int) -> list[Pending]:
        """Return the oldest `count_max` pending prewrites."""
        return self._pending.first(count_max)

    def oldest_pending(self) -> Pending | None:
        """Return the pending prewrite with the smallest start_ts if the log holds it, else None."""
        start_ts = self._pending.oldest()
        entry = self._pending.get(start_ts) if start_ts is not None else None
        return entry if entry is not None and entry.held else None

    def pending_below_safepoint(self) -> list[Pending]:
        """Return the prewrites whose outcome TiKV can no longer report, so that only a person can decide."""
        return self._pending.below_safepoint()

    def pending_older_than(self, age_s: float) -> list[Pending]:
        return self._pending.older_than(time.monotonic() - age_s)
