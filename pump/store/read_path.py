"""The read path of a store: for pulls, for drainers' plans, and for single binlogs. It can pass over a damaged one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain, islice
from typing import TypeVar

from binlog.envelope import BinlogType, encode_binlog
from binlog.pb.pump_ext_pb2 import PassOverResp, WatermarkReq, WatermarkResp
from binlog.runtime.log import get_logger
from binlog.runtime.metrics import counter

from pump.errors import DamagedRecord, NoSuchBinlog, NotDamaged, NotResolved
from pump.index.keys import FLAG_DAMAGED, FLAG_DDL, FLAG_FAKE, FLAG_SKIPPED, Complete
from pump.index.leveldb import Index
from pump.log.record import Pointer
from pump.log.value_log import ValueLog
from pump.pull import BinlogPart, Chunk, Reader, plan_batch
from pump.store.resolver import Resolver

PLAN_INLINE_ENTRIES = 512  # a batch of fewer entries is planned without a thread
PART_BYTES = 1 << 20
SKIPPED_BINLOGS = counter(
    "pump_passed_over_binlogs_count", "Damaged binlogs that were skipped on an operator's request"
)

_T = TypeVar("_T")
_log = get_logger("pump.store.read_path")


def skip_binlog(index: Index, reader: Reader, commit_ts: int, *, dry_run: bool = False) -> PassOverResp:
    """Pass over a damaged binlog on an operator's request (`binlogctl pass-over`): serve it without its rows from now
    on, at its place and counted as before (correctness rule 25); with `dry_run` only return what would be done. `why`
    in the answer: the error of reading it; "" if it had been skipped before.
    Raises NoSuchBinlog, NotDamaged if it is readable, PurgedPosition.
    """
    complete = index.complete(commit_ts)
    if complete is None or complete.flags & FLAG_FAKE:
        raise NoSuchBinlog(f"no binlog of commit_ts {commit_ts} is served here")
    if complete.flags & FLAG_SKIPPED:
        return PassOverResp(start_ts=complete.start_ts, ddl_job_id=complete.ddl_job_id)
    why = _read_error(reader, commit_ts)
    if not dry_run:
        batch = index.batch()
        batch.complete(commit_ts, without_rows(commit_ts, complete))
        index.write(batch)
        SKIPPED_BINLOGS.inc()
        _log.error(
            "a damaged binlog is skipped on an operator's request; drainers that read it from this pump do not "
            "get its rows",
            commit_ts=commit_ts,
            start_ts=complete.start_ts,
            ddl_job_id=complete.ddl_job_id,
            why=why,
        )
    return PassOverResp(start_ts=complete.start_ts, ddl_job_id=complete.ddl_job_id, why=why)


def without_rows(commit_ts: int, complete: Complete) -> Complete:
    """The index entry that serves the transaction's start_ts, commit_ts and DDL job id without its payload."""
    payload = encode_binlog(
        tp=BinlogType.COMMIT, start_ts=complete.start_ts, commit_ts=commit_ts, ddl_job_id=complete.ddl_job_id
    )
    flags = FLAG_SKIPPED | (complete.flags & FLAG_DDL)
    return complete._replace(length=0, tail_at=0, flags=flags, head=payload)


def _read_error(reader: Reader, commit_ts: int) -> str:
    chunks = reader.pull(commit_ts - 1, commit_ts, bytes_max=PART_BYTES, fakes=False, part_bytes_max=PART_BYTES)
    try:
        for _ in chunks:
            pass
    except DamagedRecord as error:
        return str(error)
    raise NotDamaged(
        f"the binlog of commit_ts {commit_ts} is readable and is not skipped. To skip a transaction that a "
        "destination refuses, use the drainer's ignore-txn-commit-ts"
    )


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
        """Do `skip_binlog` in a thread."""
        return await asyncio.to_thread(skip_binlog, self._index, self._reader, commit_ts, dry_run=dry_run)

    @property
    def purged_ts(self) -> int:
        """Binlogs at or below this ts may have been removed."""
        return self._index.purged_ts()
