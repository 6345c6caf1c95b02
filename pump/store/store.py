"""The store of a pump: write, resolve, pull and inspect binlogs. Independent of transport and registry.

A new `Store` is closed. `open` recovers it, `serve` lets it serve, and `close` closes it for good. Call its methods on
the event loop; blocking work runs in threads.
`expose` has the gauges read a store.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from binlog.cluster import tso
from binlog.cluster.timestamp import TimestampSource
from binlog.runtime.log import get_logger
from binlog.runtime.metrics import gauge
from prometheus_client import Gauge

from pump.errors import DamagedRecord
from pump.index.checkpoint import Checkpoints
from pump.index.leveldb import Index
from pump.log.record import Pointer
from pump.log.value_log import ReadingProgress, ValueLog
from pump.store.group_commit import Progress, StoreOptions, Writer
from pump.store.limits import Horizon, Space
from pump.store.matcher import Matcher
from pump.store.read_path import ReadPath
from pump.store.recovery import Recovered, recover
from pump.store.resolver import Pending, PendingSet, Resolver
from pump.store.write_path import WritePath

_log = get_logger("pump.store.store")


class Store:
    """Owns the files of a store, its pending prewrites, its resolved ts, and the two paths that share them.

    `writes` puts binlogs in, `reads` gets them out. They do not know each other: a binlog that `writes` reports is in
    the index and the log, from which `reads` serves it once the resolved ts has reached it."""

    # Fields set by `open`
    index: Index  # any thread; the writer's threads write
    log: ValueLog  # any thread; the writer's threads write
    checkpoints: Checkpoints  # the progress thread
    damage: list[DamagedRecord]  # event loop; damaged records found by `open`
    largest_ts: int  # event loop; after `open`, no ts in the log was above it
    writes: WritePath  # event loop
    reads: ReadPath  # event loop; pulls read in threads
    _writer: Writer  # event loop, with a thread of its own

    def __init__(self, directory: Path, timestamps: TimestampSource, options: StoreOptions | None = None) -> None:
        self._directory = directory  # constant
        self._options = options or StoreOptions()  # constant
        self.space = Space(directory, stop_bytes=self._options.stop_bytes)  # event loop; a thread may refresh it
        self.reading = ReadingProgress()  # the thread of `open`; any thread may read it
        self.opened = False  # event loop
        self.pending = PendingSet()  # event loop; after `open`, only `writes` changes it
        self.resolver = Resolver(self.pending, timestamps, Horizon(self._options.ts_ahead_max_s))  # event loop
        self._resolver_task: asyncio.Task[None] | None = None  # event loop
        self._broken = asyncio.Event()  # event loop; set when the log is broken

    # Life

    async def open(self) -> None:
        """Recover (FORMAT.md). No timestamps are fetched: this pump may have to allocate them, and an allocator must
        know its log first (rule 7: one allocator of timestamps). If the caller is cancelled, the reading stops."""
        self.space.refresh()
        with ExitStack() as undo:
            recovering = asyncio.create_task(asyncio.to_thread(self._recover, undo))
            try:
                files = await asyncio.shield(recovering)
            except asyncio.CancelledError:
                self.reading.stop()
                await asyncio.gather(recovering, return_exceptions=True)
                raise
            self._restore(*files)
            undo.pop_all()
        self.opened = True

    def _recover(self, undo: ExitStack) -> tuple[Index, ValueLog, Checkpoints, Recovered]:
        index = Index(self._directory / "kv", self._options.index)
        undo.callback(index.close)
        log = ValueLog(
            self._directory / "value",
            file_bytes_max=self._options.file_bytes_max,
            progress=self.reading,
            sync=os.fdatasync if self._options.sync else None,
        )
        checkpoints = Checkpoints(self._directory, index)
        trusted = checkpoints.trusted()
        head, known_is_all = (None, False) if trusted is None else (trusted.head, checkpoints.index_is_complete())
        damage = log.open(head, index.own_head(), known_is_all=known_is_all)
        recovered = recover(log, index, damage, trusted, self.reading)
        checkpoints.save(recovered.head, recovered.handle)
        return index, log, checkpoints, recovered

    def _restore(self, index: Index, log: ValueLog, checkpoints: Checkpoints, recovered: Recovered) -> None:
        """Set up the parts of the store from the recovered files."""
        options, resolver = self._options, self.resolver
        self.index, self.log, self.checkpoints = index, log, checkpoints
        loop = asyncio.get_running_loop()
        log.on_broken = lambda: loop.call_soon_threadsafe(self._broken.set)
        self.damage = recovered.damage
        self._restore_pending(recovered)
        resolver.ts = index.max_commit_ts()
        matcher = Matcher(
            index,
            log.read,
            max(index.largest_ts(), index.largest_outcome(), *(found.start_ts for found in recovered.unmatched)),
            {found.start_ts: found.prewrite for found in recovered.unmatched},
            holds=log.holds,
            lost=self._lost_at,
            recent_max=options.recent_max,
        )
        self.largest_ts = max(matcher.largest_ts, resolver.ts)
        progress = Progress(log, index, self.checkpoints, checkpoint_bytes=options.checkpoint_bytes)
        self._writer = Writer(log, index, matcher, progress, resolved_ts=lambda: resolver.ts, options=options)
        self._writer.start(recovered.head)
        self.writes = WritePath(
            log, index, self._writer, self.space, self.pending, resolver, options.transaction_bytes_max
        )
        self.reads = ReadPath(index, log, resolver)

    def _restore_pending(self, recovered: Recovered) -> None:
        now_s, now_ms = time.monotonic(), time.time() * 1000
        self.pending.restore(
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

    async def serve(self) -> None:
        """Fetch T and start to resolve. Nothing may be served before (correctness rule 3: pending prewrites survive a
        restart)."""
        await self.resolver.refresh()
        horizon = self.resolver.horizon
        if horizon.beyond(self.largest_ts):
            _log.error(
                "the value log has a ts far ahead of the timestamp source; its binlogs are not served until the "
                "source reaches it",
                largest_ts=self.largest_ts,
                source_ts=horizon.source_ts,
            )
        self.resolver.request_refresh(self.largest_ts_until(horizon.limit_ts))
        self._resolver_task = asyncio.create_task(self.resolver.run(), name="resolver")

    def _lost_at(self) -> Pointer | None:
        """Return the newest position of lost records in the existing files, or None."""
        return max((begin for begin, _ in self.index.damages() if self.log.has(begin.fid)), default=None)

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

    async def broken(self) -> str:
        """Wait until the log is broken. Return the reason. Stored binlogs can still be read."""
        await self._broken.wait()
        return self.log.broken or ""

    # Pending and resolved

    @property
    def resolved_ts(self) -> int:
        """The resolved ts that was returned last."""
        return self.resolver.ts

    def oldest_pending(self) -> Pending | None:
        """Return the pending prewrite with the smallest start_ts if the log holds it, else None."""
        start_ts = self.pending.oldest()
        entry = self.pending.get(start_ts) if start_ts is not None else None
        return entry if entry is not None and entry.held else None

    @property
    def oldest_age_s(self) -> float:
        """Seconds since the oldest pending prewrite arrived; 0 if none is pending."""
        oldest = self.pending.first(1)
        return time.monotonic() - oldest[0].since_s if oldest else 0.0


_GAUGES: tuple[tuple[Gauge, Callable[[Store], float]], ...] = (
    (gauge("pump_storage_max_commit_ts", "Resolved ts, physical ms"), lambda store: tso.physical_ms(store.resolved_ts)),
    (gauge("pump_storage_gc_ts", "Purge point, physical ms"), lambda store: tso.physical_ms(store.reads.purged_ts)),
    (gauge("pump_pending_count", "Prewrites without an outcome"), lambda store: len(store.pending)),
    (gauge("pump_pending_oldest_seconds", "Age of the oldest pending prewrite"), lambda store: store.oldest_age_s),
    (
        gauge("pump_pending_below_gc_safepoint", "Pending prewrites of which TiKV keeps no record any more"),
        lambda store: len(store.pending.below_safepoint()),
    ),
    (
        gauge("pump_late_commit_count", "Commits accepted at or below a resolved ts that was already published"),
        lambda store: store.writes.late_commits,
    ),
    (
        gauge("pump_damaged_count", "Damaged places found in the value log at start"),
        lambda store: len(store.damage),
    ),
    (gauge("pump_log_broken", "1 after a write or sync of the value log failed"), lambda store: bool(store.log.broken)),
)
_SIZE = gauge("pump_storage_storage_size_bytes", "The disk of data-dir", ["type"])


def expose(store: Store) -> None:
    """Let the gauges read this store when they are scraped."""
    for each, read in _GAUGES:
        each.set_function(partial(read, store))
    _SIZE.labels("capacity").set_function(lambda: store.space.capacity_bytes)
    _SIZE.labels("available").set_function(lambda: store.space.available_bytes)


def withdraw() -> None:
    """Set the gauges to 0 and let them read nothing more, because the store is closed."""
    for each in (*(each for each, _ in _GAUGES), _SIZE.labels("capacity"), _SIZE.labels("available")):
        each.set_function(float)
