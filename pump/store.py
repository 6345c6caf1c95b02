"""Everything a pump stores, behind one face: write, resolve, pull, inspect. Knows no transport and no registry.

A `Store` is closed, then recovered by `open`, serving after `serve`, then closed for good. Its methods belong
to the event loop; what blocks runs in threads.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from binlog import tso
from binlog.envelope import BinlogType, Envelope, encode_binlog, encode_fake, scan
from binlog.errors import BinlogError, NotOnline
from binlog.log import get_logger

from pump.errors import DamagedRecord, NoSuchPrewrite, NotResolved, Stopping
from pump.index import Index, IndexOptions
from pump.log import ValueLog
from pump.match import Fate, Matcher, check, is_fake
from pump.pending import Pending, PendingSet, Resolved
from pump.plan import BatchPlan, Limits, plan_batch
from pump.pull import Reader, Served
from pump.record import Pointer
from pump.recovery import Recovered, recover
from pump.resolver import Resolver, Timestamps
from pump.space import Space
from pump.writer import Submission, Writer, Written

LATE_KEPT = 100  # of the newest; and so many have a line of their own
ALARM_INTERVAL_S = 1.0
PLAN_INLINE_ENTRIES = 512  # a batch so small is planned without a thread

_log = get_logger("pump.store")


@dataclass(slots=True)
class Counters:
    """What metrics and status show."""

    written: int = 0
    refused: int = 0
    commits: int = 0
    late_commits: int = 0
    late_ts: deque[int] = field(default_factory=lambda: deque(maxlen=LATE_KEPT))


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """`file_bytes_max` and `sync` as in ValueLog; `stop_bytes`: see Space."""

    stop_bytes: int = 0
    sync: bool = True
    file_bytes_max: int = 500 << 20
    index: IndexOptions = field(default_factory=IndexOptions)


class Store:
    """See the module. `largest_ts`, after `open`: no ts above it is in this log."""

    def __init__(self, directory: Path, timestamps: Timestamps, options: StoreOptions | None = None) -> None:
        self._options = options or StoreOptions()
        self._directory = directory
        self.counters = Counters()
        self.space = Space(directory, stop_bytes=self._options.stop_bytes)
        self.damage: list[DamagedRecord] = []
        self._pending = PendingSet()
        self._resolved = Resolved()
        self.resolver = Resolver(self._pending, self._resolved, timestamps)
        self._timestamps = timestamps
        self._drained = asyncio.Event()
        self._under_way = 0  # requests whose report has not come
        self._sealed = ""
        self._resolver_task: asyncio.Task[None] | None = None
        self._alarmed_s = 0.0
        self.activity = 0  # accepted writes; fakes do not count

    # Life

    async def open(self) -> None:
        """Recover (FORMAT.md). Needs no timestamps: whoever allocates them must know this log first (rule 7)."""
        self.space.refresh()
        recovered = await asyncio.to_thread(self._recover)
        self.damage = recovered.damage
        now_s, now_ms = time.monotonic(), time.time() * 1000
        self._pending.restore(
            Pending(
                found.start_ts,
                now_s - max(0.0, (now_ms - tso.physical_ms(found.start_ts)) / 1000),
                found.prewrite.length,
                found.prewrite.ddl_job_id,
                found.prewrite_key,
            )
            for found in recovered.unmatched
        )
        self._resolved.ts = self.index.max_commit_ts()
        matcher = Matcher(self.index, self.log.read, self._largest_ts(recovered))
        matcher.unmatched = {found.start_ts: found.prewrite for found in recovered.unmatched}
        self._writer = Writer(self.log, self.index, matcher, resolved_ts=lambda: self._resolved.ts)
        self._writer.start(recovered.head or self.index.head())
        self.largest_ts = max(matcher.largest_ts, self._resolved.ts)

    async def serve(self) -> None:
        """Fetch T; only after that anything may be served (correctness rule 3)."""
        self.resolver.nudge(self.largest_ts)
        await self.resolver.refresh()
        self._resolver_task = asyncio.create_task(self.resolver.run(), name="resolver")

    def _recover(self) -> Recovered:
        self.index = Index(self._directory / "kv", self._options.index)
        self.log = ValueLog(
            self._directory / "value",
            file_bytes_max=self._options.file_bytes_max,
            **({} if self._options.sync else {"sync": None}),
        )
        damage = self.log.open(self.index.own_head())
        recovered = recover(self.log, self.index, damage)
        self.reader = Reader(self.index, self.log)
        return recovered

    def _largest_ts(self, recovered: Recovered) -> int:
        """No ts above it is in the index: not as a `ts:` key, and not as the start_ts of an outcome."""
        unmatched = max((found.start_ts for found in recovered.unmatched), default=0)
        return max(self.index.largest_ts(), self.index.largest_outcome(), unmatched)

    async def close(self) -> None:
        """Write what is queued, save progress, close the files."""
        if self._resolver_task is not None:
            self._resolver_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._resolver_task
        await self._writer.stop()
        await asyncio.to_thread(self.log.close)
        self.index.close()

    # Writing

    async def write(self, payloads: Sequence[bytes], *, refuse_prewrites: str = "") -> list[BinlogError | None]:
        """Store binlogs, in order; one result for each: None once durable and visible, else why not.

        `refuse_prewrites`: the state of a pump that takes none (P-RPC-03). A prewrite counts as pending from this
        call on, before anything is waited for. Stopping once the store is sealed.
        """
        if self._sealed:
            raise Stopping(self._sealed)
        results: list[BinlogError | None] = [None] * len(payloads)
        places: list[int] = []
        envelopes: list[Envelope] = []
        accepted: list[bytes] = []
        size = 0
        now_s = time.monotonic()
        for place, payload in enumerate(payloads):
            try:
                envelope = scan(payload)
                check(envelope)
                if envelope.tp == BinlogType.PREWRITE and refuse_prewrites:
                    raise NotOnline(refuse_prewrites)
                if self.space.full and not is_fake(envelope):
                    self.space.check()
            except BinlogError as error:
                results[place] = error
                continue
            if envelope.start_ts == 0:
                continue  # the probe (P-RPC-05)
            if envelope.tp == BinlogType.PREWRITE:
                self._arrive(envelope, payload, now_s)
            places.append(place)
            envelopes.append(envelope)
            accepted.append(payload)
            size += len(payload)
        if accepted:
            self.activity += len(accepted)
            written = await self._submit(envelopes, accepted, size)
            for place, verdict in zip(places, written.verdicts, strict=True):
                results[place] = verdict.error
        self.counters.refused += sum(1 for error in results if error is not None)
        return results

    def _arrive(self, envelope: Envelope, payload: bytes, now_s: float) -> None:
        self._pending.arrive(
            envelope.start_ts,
            since_s=now_s,
            size=len(payload),
            ddl_job_id=envelope.ddl_job_id,
            prewrite_key=payload[envelope.key_at : envelope.key_end],
        )

    async def _submit(self, envelopes: list[Envelope], payloads: list[bytes], size: int) -> Written:
        """The pending set follows the report, whether or not the caller still waits for it."""
        answer: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        self._under_way += 1

        def report(written: Written) -> None:
            self._under_way -= 1
            self._account(envelopes, written)
            if not answer.done():
                answer.set_result(written)

        try:
            await self._writer.room()
            self._writer.submit(Submission(envelopes, payloads, size, report))
        except BaseException:
            self._under_way -= 1
            for envelope in envelopes:
                if envelope.tp == BinlogType.PREWRITE:
                    self._pending.refused(envelope.start_ts)
            self._settle_down()
            raise
        return await answer

    def _account(self, envelopes: Sequence[Envelope], written: Written) -> None:
        """Bring the pending set up to what the writer did (correctness rule 3: visible before it leaves the set)."""
        pending = self._pending
        held_back = len(pending)
        for envelope, verdict in zip(envelopes, written.verdicts, strict=True):
            if envelope.tp == BinlogType.PREWRITE:
                if (verdict.write and verdict.fate is Fate.PENDING) or (verdict.error is not None and verdict.write):
                    pending.stored(envelope.start_ts)
                else:
                    pending.refused(envelope.start_ts)
            elif verdict.error is None and verdict.fate is not Fate.FAKE:
                pending.settled(envelope.start_ts)
            if verdict.write and verdict.error is None:
                self.counters.written += 1
        for commit_ts in written.visible:
            if self._resolved.is_late(commit_ts):
                self._alarm(commit_ts)
        if written.visible:
            self.counters.commits += len(written.visible)
        if written.visible or len(pending) < held_back:
            self.resolver.nudge(max(written.visible, default=0))
        self._settle_down()

    def _settle_down(self) -> None:
        if not len(self._pending) or not self._under_way:
            self._drained.set()

    def _alarm(self, commit_ts: int) -> None:
        """Every late commit is counted and kept for Inspect; a flood of them is not a flood of lines."""
        self.counters.late_commits += 1
        self.counters.late_ts.append(commit_ts)
        now_s = time.monotonic()
        if self.counters.late_commits > LATE_KEPT and now_s - self._alarmed_s < ALARM_INTERVAL_S:
            return
        self._alarmed_s = now_s
        _log.error(
            "a commit arrived at or below a resolved ts already given out",
            commit_ts=commit_ts,
            resolved_ts=self._resolved.ts,
            so_far=self.counters.late_commits,
        )

    async def write_fake(self) -> int:
        """One fake binlog; its ts. Its place is reserved before its ts is fetched (correctness rule 4)."""
        placeholder = self._resolved.ts + 1
        self._pending.arrive(placeholder, since_s=time.monotonic(), size=0)
        try:
            ts = await self._timestamps.get()
            payload = encode_fake(ts)
            await self._submit([scan(payload)], [payload], len(payload))
        finally:
            self._pending.refused(placeholder)
            self._settle_down()
        self.resolver.advance(ts)
        return ts

    async def settle(self, start_ts: int, commit_ts: int) -> None:
        """End a pending prewrite: commit it at commit_ts, or roll it back (0). NoSuchPrewrite if it is not pending."""
        entry = self._pending.get(start_ts)
        if entry is None:
            raise NoSuchPrewrite(f"no prewrite of start_ts {start_ts} is pending here")
        tp = BinlogType.COMMIT if commit_ts else BinlogType.ROLLBACK
        payload = encode_binlog(tp=tp, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=entry.prewrite_key or None)
        (error,) = await self.write([payload])
        if error is not None:
            raise error

    async def drained(self, deadline_s: float) -> bool:
        """Wait until nothing is pending, at most so long."""
        return await self._until(lambda: not len(self._pending), deadline_s)

    async def seal(self, why: str, deadline_s: float) -> int | None:
        """Take no binlog any more (`why` is the refusal's text) and wait for those that were taken, at most so long.

        The largest commit_ts that can be served, fakes apart; None where that is no last word: a prewrite is pending,
        a write has not ended, or one ended in a way nobody knows.
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

    # Reading

    @property
    def resolved_ts(self) -> int:
        return self._resolved.ts

    async def plan(self, after_ts: int, resolved_ts: int, limits: Limits) -> BatchPlan:
        """Where a batch after `after_ts` ends; `resolved_ts` was given out before this call."""

        entries = iter(self.index.completes(after_ts, resolved_ts))
        first = list(islice(entries, PLAN_INLINE_ENTRIES))
        if len(first) < PLAN_INLINE_ENTRIES:
            return plan_batch(first, resolved_ts, limits)
        return await asyncio.to_thread(plan_batch, chain(first, entries), resolved_ts, limits)

    async def pull(
        self, after_ts: int, until_ts: int, *, bytes_max: int, fakes: bool = False
    ) -> AsyncIterator[list[Served]]:
        """All complete binlogs in (after_ts, until_ts], in chunks. NotResolved, PurgedPosition, DamagedRecord.

        The next chunk is read while the caller sends this one.
        """
        if until_ts > self._resolved.ts:
            raise NotResolved(until_ts, self._resolved.ts)
        chunks = self.reader.pull(after_ts, until_ts, bytes_max=bytes_max, fakes=fakes)
        step: Callable[[], list[Served] | None] = lambda: next(chunks, None)  # noqa: E731
        ahead = asyncio.ensure_future(asyncio.to_thread(step))
        try:
            while (chunk := await ahead) is not None:
                ahead = asyncio.ensure_future(asyncio.to_thread(step))
                yield chunk
        finally:
            ahead.cancel()

    def read_at(self, ts: int) -> bytes | None:
        """The payload under a `ts:` key, or None (`/debug/binlog/{ts}`)."""
        pointer: Pointer | None = self.index.pointer(ts)
        return None if pointer is None else self.log.read(pointer)

    def outcome(self, start_ts: int) -> int:
        """The commit_ts of a start_ts whose binlog this pump serves; else 0. A rollback is no evidence (rule 5)."""
        commit_ts = self.index.outcome(start_ts) or 0
        return commit_ts if commit_ts and self.index.complete(commit_ts) is not None else 0

    @property
    def purged_ts(self) -> int:
        """Binlogs at or below may be gone."""
        return self.index.purged_ts()

    # Pending

    def is_pending(self, start_ts: int) -> bool:
        return start_ts in self._pending

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    def pending(self, count_max: int) -> list[Pending]:
        """The oldest ones."""
        return self._pending.first(count_max)

    def pending_older_than(self, age_s: float) -> list[Pending]:
        return self._pending.older_than(time.monotonic() - age_s)
