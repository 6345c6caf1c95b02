"""Everything a pump stores, behind one face: write, resolve, pull, inspect. Knows no transport and no registry.

A `Store` is closed, then recovered by `open`, serving after `serve`, then closed for good. Its methods belong
to the event loop; what blocks runs in threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from binlog.cluster import tso
from binlog.envelope import BinlogType, Envelope, encode_binlog, encode_fake, scan, writer_of
from binlog.errors import BinlogError, LogBroken, NotOnline
from binlog.runtime.log import get_logger

from pump.checkpoint import Checkpoints
from pump.counters import LATE_KEPT, Counters
from pump.errors import DamagedRecord, NoSuchPrewrite, Stopping, TooLarge
from pump.horizon import Horizon
from pump.index import Index
from pump.log import ValueLog
from pump.match import Fate, Matcher, check, is_fake
from pump.pending import Pending, PendingSet, Resolved
from pump.progress import Progress
from pump.pull import Reader
from pump.record import Pointer
from pump.recovery import Recovered, recover
from pump.resolver import Resolver, Timestamps
from pump.serving import Serving
from pump.space import Space, lacks_room
from pump.store_options import StoreOptions
from pump.writer import Submission, Writer, Written

ALARM_INTERVAL_S = 1.0
REFUSED_UNTIL = {False: "restart the pump", True: "the pump goes on by itself when the disk has room"}

_log = get_logger("pump.store")


class Store(Serving):
    """See the module. `largest_ts`, after `open`: no ts above it is in this log."""

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
        self._under_way = 0  # requests whose report has not come
        self._sealed = ""
        self._resolver_task: asyncio.Task[None] | None = None
        self._alarmed_s = self._refused_s = 0.0
        self.activity = 0  # accepted writes; fakes do not count

    # Life

    async def open(self) -> None:
        """Recover (FORMAT.md). Needs no timestamps: whoever allocates them must know this log first (rule 7)."""
        self.space.refresh()
        with ExitStack() as undo:
            self._restore(await asyncio.to_thread(self._recover, undo))
            undo.pop_all()

    def _restore(self, recovered: Recovered) -> None:
        """Go on from what the disk has."""
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
        """Fetch T; only after that anything may be served (correctness rule 3)."""
        await self.resolver.refresh()
        if self._horizon.beyond(self.largest_ts):
            _log.error(
                "the value log has a ts far ahead of the timestamp source; its binlogs are not served until the "
                "source reaches it",
                largest_ts=self.largest_ts,
                source_ts=self._horizon.source_ts,
            )
        self.resolver.nudge(self.largest_ts_until(self._horizon.limit_ts))
        self._resolver_task = asyncio.create_task(self.resolver.run(), name="resolver")

    def _recover(self, undo: ExitStack) -> Recovered:
        self.index = Index(self._directory / "kv", self._options.index)
        undo.callback(self.index.close)
        self.log = ValueLog(
            self._directory / "value",
            file_bytes_max=self._options.file_bytes_max,
            **({} if self._options.sync else {"sync": None}),
        )
        self.checkpoints = Checkpoints(self._directory, self.index)
        trusted = self.checkpoints.trusted()
        damage = self.log.open(trusted.head if trusted is not None else None, self.index.own_head())
        recovered = recover(self.log, self.index, damage, trusted)
        self.checkpoints.save(recovered.head, recovered.handle)
        self.reader = Reader(self.index, self.log)
        return recovered

    def _lost_at(self) -> Pointer | None:
        """Where records were lost in the files that are there; the newest place."""
        return max((begin for begin, _ in self.index.damages() if self.log.has(begin.fid)), default=None)

    def _largest_ts(self, recovered: Recovered) -> int:
        """No ts above it is in the index: not as a `ts:` key, and not as the start_ts of an outcome."""
        unmatched = max((found.start_ts for found in recovered.unmatched), default=0)
        return max(self.index.largest_ts(), self.index.largest_outcome(), unmatched)

    def largest_ts_until(self, until_ts: int) -> int:
        """The largest ts of this log, as it was when it was opened, that is not above `until_ts`."""
        if self.largest_ts <= until_ts:
            return self.largest_ts
        return max(self.index.largest_ts(until_ts), self.index.largest_outcome(until_ts))

    async def close(self) -> None:
        """Write what is queued, save progress, close the files."""
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

    async def write(
        self, payloads: Sequence[bytes], *, refuse_prewrites: str = "", far: list[int] | None = None
    ) -> list[BinlogError | None]:
        """Store binlogs, in order; one result for each: None once durable and visible, else why not.

        `refuse_prewrites`: the state of a pump that takes none (P-RPC-03); a broken log refuses them so. A prewrite
        counts as pending from this call on, before anything is waited for. Stopping once the store is sealed. `far`
        gets the places of those that seem too far ahead; they were not written, and nobody waits for the source.
        """
        if self._sealed:
            raise Stopping(self._sealed)
        if self.log.broken is not None:
            refuse_prewrites = f"{self.log.broken}; {REFUSED_UNTIL[lacks_room(self.log.broken)]}"
        results: list[BinlogError | None] = [None] * len(payloads)
        places: list[int] = []
        envelopes: list[Envelope] = []
        accepted: list[bytes] = []
        ahead: list[int] = [] if far is None else far
        size = 0
        now_s = time.monotonic()
        for place, payload in enumerate(payloads):
            try:
                envelope = scan(payload)
                check(envelope)
                if len(payload) > self._options.transaction_bytes_max:
                    raise TooLarge(envelope.start_ts, len(payload), self._options.transaction_bytes_max)
                if envelope.tp == BinlogType.PREWRITE and refuse_prewrites:
                    raise NotOnline(refuse_prewrites)
                if self.log.broken is not None:
                    raise LogBroken(self.log.broken)
                if self.space.full and not is_fake(envelope):
                    self.space.check()
                if self._is_far(envelope):
                    ahead.append(place)
                    continue
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
        for place in ahead if far is None else ():
            results[place] = await self._look_again(payloads[place], refuse_prewrites)
        self.counters.refused += sum(1 for error in results if error is not None)
        return results

    def _is_far(self, envelope: Envelope) -> bool:
        """A rollback of what is pending brings no new ts, and is how such a prewrite is ended."""
        return self._horizon.beyond(max(envelope.start_ts, envelope.commit_ts)) and not (
            envelope.tp == BinlogType.ROLLBACK and envelope.start_ts in self._pending
        )

    async def _look_again(self, payload: bytes, refuse_prewrites: str) -> BinlogError | None:
        """A binlog that seems too far ahead: ask the source where it is, then write it or refuse it."""
        try:
            await self.resolver.refresh()
        except BinlogError as error:
            return error
        envelope = scan(payload)
        if not self._is_far(envelope):
            return (await self.write([payload], refuse_prewrites=refuse_prewrites))[0]
        refusal = self._horizon.refusal(max(envelope.start_ts, envelope.commit_ts))
        now_s = time.monotonic()
        if now_s - self._refused_s >= ALARM_INTERVAL_S:
            self._refused_s = now_s
            _log.error("binlog refused", error=refusal, start_ts=envelope.start_ts, commit_ts=envelope.commit_ts)
        return refusal

    def _arrive(self, envelope: Envelope, payload: bytes, now_s: float) -> None:
        self._pending.arrive(
            envelope.start_ts,
            since_s=now_s,
            size=len(payload),
            ddl_job_id=envelope.ddl_job_id,
            prewrite_key=bytes(payload[envelope.key_at : envelope.key_end]),
            writer=writer_of(payload, envelope),
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
            elif verdict.error is None and not is_fake(envelope):  # a fake that was left out ends nothing either
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
            "a commit arrived at or below a resolved ts that drainers may have read already",
            commit_ts=commit_ts,
            resolved_ts=self._resolved.ts,
            so_far=self.counters.late_commits,
        )

    async def write_fake(self) -> int:
        """One fake binlog; its ts. Its place is reserved before its ts is fetched (rule 4). LogBroken on failure."""
        placeholder = self._resolved.ts + 1
        self._pending.arrive(placeholder, since_s=time.monotonic(), size=0)
        try:
            ts = await self._timestamps.get()
            payload = encode_fake(ts)
            (verdict,) = (await self._submit([scan(payload)], [payload], len(payload))).verdicts
        finally:
            self._pending.refused(placeholder)
            self._settle_down()
        if verdict.error is not None:
            raise verdict.error
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

    async def broken(self) -> str:
        """Wait until the log is broken, and say why. What it stores can still be read."""
        await self._broken.wait()
        return self.log.broken or ""

    # Pending

    def is_pending(self, start_ts: int) -> bool:
        return start_ts in self._pending

    @property
    def pending_count(self) -> int:
        return len(self._pending)

    def pending(self, count_max: int) -> list[Pending]:
        """The oldest ones."""
        return self._pending.first(count_max)

    def oldest_pending(self) -> Pending | None:
        """The one with the smallest start_ts, if the log holds it."""
        start_ts = self._pending.oldest()
        entry = self._pending.get(start_ts) if start_ts is not None else None
        return entry if entry is not None and entry.held else None

    def pending_below_safepoint(self) -> list[Pending]:
        """Those of which TiKV keeps no record any more, so that only a person can decide."""
        return self._pending.below_safepoint()

    def pending_older_than(self, age_s: float) -> list[Pending]:
        return self._pending.older_than(time.monotonic() - age_s)
