"""The read path of a store: for pulls, for drainers' plans, and for queries of single binlogs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain, islice
from typing import TypeVar

from binlog.pb.pump_ext_pb2 import PassOverResp, WatermarkReq, WatermarkResp

from pump.errors import NotResolved
from pump.index.keys import FLAG_DAMAGED, FLAG_SKIPPED
from pump.index.leveldb import Index
from pump.log.record import Pointer
from pump.log.value_log import ValueLog
from pump.pull.batch_end import plan_batch
from pump.pull.binlog_parts import BinlogPart
from pump.pull.ranges import Chunk, Reader
from pump.pull.skip import skip_binlog
from pump.store.resolver import Resolver

PLAN_INLINE_ENTRIES = 512  # a batch of fewer entries is planned without a thread

_T = TypeVar("_T")


class ReadPath:
    """Reads what a store serves. Nothing here writes but `skip_binlog`, which marks one damaged binlog in the index."""

    def __init__(self, index: Index, log: ValueLog, resolver: Resolver) -> None:
        # Parts of the store
        self._index = index  # any thread
        self._log = log  # any thread: only reads
        self._resolver = resolver  # event loop: only reads
        # Owned by this object
        self._reader = Reader(index, log)  # any thread

    async def plan(self, after_ts: int, resolved_ts: int, limits: WatermarkReq) -> WatermarkResp:
        """Plan a batch that begins after `after_ts`. `resolved_ts` must have been resolved before this call."""
        entries = iter(self._index.completes(after_ts, resolved_ts))
        first = list(islice(entries, PLAN_INLINE_ENTRIES))
        if len(first) < PLAN_INLINE_ENTRIES:
            return plan_batch(first, resolved_ts, limits)
        return await asyncio.to_thread(plan_batch, chain(first, entries), resolved_ts, limits)

    def check_position(self, after_ts: int) -> None:
        """Raise PurgedPosition if binlogs after `after_ts` may have been removed."""
        self._reader.check_position(after_ts)

    async def count(self, after_ts: int, until_ts: int) -> WatermarkResp:
        """Return what a pull of (after_ts, until_ts] must return, as a batch. Raises NotResolved, PurgedPosition."""
        if until_ts > self._resolver.ts:
            raise NotResolved(until_ts, self._resolver.ts)
        plan = await self.plan(after_ts, until_ts, WatermarkReq())
        self._reader.check_position(after_ts)  # after the index was read, as in a pull
        return plan

    def pull(
        self, after_ts: int, until_ts: int, *, bytes_max: int, fakes: bool = False, part_bytes_max: int = 0
    ) -> AsyncIterator[Chunk | BinlogPart]:
        """Yield all complete binlogs in (after_ts, until_ts] in chunks, and binlogs above `part_bytes_max` bytes in
        parts (0: no parts). Raises NotResolved, PurgedPosition, DamagedRecord."""
        return self.pull_as(iter, after_ts, until_ts, bytes_max=bytes_max, fakes=fakes, part_bytes_max=part_bytes_max)

    async def pull_as(
        self,
        shape: Callable[[Iterator[Chunk | BinlogPart]], Iterator[_T]],
        after_ts: int,
        until_ts: int,
        *,
        bytes_max: int,
        fakes: bool,
        part_bytes_max: int,
    ) -> AsyncIterator[_T]:
        """Do `pull`, but yield what `shape` makes of the chunks. `shape` runs in a thread.

        The next piece is made while the caller sends the current one."""
        if until_ts > self._resolver.ts:
            raise NotResolved(until_ts, self._resolver.ts)
        chunks = self._reader.pull(after_ts, until_ts, bytes_max=bytes_max, fakes=fakes, part_bytes_max=part_bytes_max)
        shaped = shape(chunks)
        step: Callable[[], _T | None] = lambda: next(shaped, None)  # noqa: E731
        ahead = asyncio.ensure_future(asyncio.to_thread(step))
        try:
            while (found := await ahead) is not None:
                ahead = asyncio.ensure_future(asyncio.to_thread(step))
                yield found
        finally:
            ahead.cancel()

    def read_at(self, ts: int) -> bytes | None:
        """Return the payload stored under a `ts:` key, or None (`/debug/binlog/{ts}`)."""
        pointer: Pointer | None = self._index.pointer(ts)
        return None if pointer is None else self._log.read(pointer)

    def outcome(self, start_ts: int) -> int:
        """Return the commit_ts of a start_ts if this pump serves its binlog, else 0. A rollback proves nothing (rule
        5)."""
        commit_ts = self._index.outcome(start_ts) or 0
        complete = self._index.complete(commit_ts) if commit_ts else None
        return commit_ts if complete is not None and not complete.flags & (FLAG_DAMAGED | FLAG_SKIPPED) else 0

    async def skip_binlog(self, commit_ts: int, *, dry_run: bool) -> PassOverResp:
        """See pump.pull.skip.skip_binlog."""
        return await asyncio.to_thread(skip_binlog, self._index, self._reader, commit_ts, dry_run=dry_run)

    @property
    def purged_ts(self) -> int:
        """Binlogs at or below this ts may have been removed."""
        return self._index.purged_ts()
