"""Writes binlogs to a store: refuses them on arrival, tracks pending prewrites, and evaluates the writer's reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from binlog.envelope import BinlogType, Envelope, scan, writer_of
from binlog.errors import BinlogError, LogBroken, NotOnline, without_frames
from binlog.runtime.log import get_logger

from pump.errors import Stopping, TooLarge
from pump.log.value_log import ValueLog
from pump.store.counters import LATE_KEPT, Counters
from pump.store.group_commit import Submission, Writer
from pump.store.matcher import Fate, Written, check, is_fake
from pump.store.options import StoreOptions
from pump.store.pending import PendingSet, Resolved
from pump.store.resolver import Resolver
from pump.store.space import Space, lacks_room
from pump.store.ts_limit import Horizon
from pump.store.usual_binlogs import Usual, scan_usual, usual_prewrites

ALARM_INTERVAL_S = 1.0
REFUSED_UNTIL = {False: "restart the pump", True: "the pump goes on by itself when the disk has room"}

Done = Callable[[list[BinlogError | None], Sequence[int]], object]

_log = get_logger("pump.store.store")


class _Admitted:
    """The binlogs of one call that are to be written, and the results of the others.

    `results`: one for each binlog of the call. `places`: positions in the call, parallel to `envelopes` and `payloads`.
    `ahead`: positions of binlogs that seem too far ahead of the timestamp source. `size`: bytes of `payloads`."""

    __slots__ = ("ahead", "envelopes", "payloads", "places", "results", "size")

    def __init__(self, results: list[BinlogError | None]) -> None:
        self.results = results
        self.places: list[int] = []
        self.envelopes: list[Envelope] = []
        self.payloads: list[bytes] = []
        self.ahead: list[int] = []
        self.size = 0


class Writing:
    """The writing half of a Store. The Store creates the attributes."""

    counters: Counters
    log: ValueLog
    resolver: Resolver
    space: Space
    activity: int
    _alarmed_s: float
    _drained: asyncio.Event
    _horizon: Horizon
    _options: StoreOptions
    _pending: PendingSet
    _refused_s: float
    _resolved: Resolved
    _sealed: str
    _under_way: int
    _writer: Writer

    async def write(self, payloads: Sequence[bytes], *, refuse_prewrites: str = "") -> list[BinlogError | None]:
        """Store binlogs in order. Return one result for each: None once it is durable and visible, else the error.

        `refuse_prewrites`: the reason why this pump accepts no prewrites (P-RPC-03), "" if it accepts them; a broken
        log is such a reason, too. A prewrite is pending from this call on, before the first await. Raises Stopping
        once the store is sealed.
        """
        usual = self._usual(payloads, refuse_prewrites)
        if usual is not None:
            return await self._write_usual(usual, payloads)
        admitted = self._admit(payloads, refuse_prewrites)
        results = admitted.results
        if admitted.payloads:
            errors = await self._submit(admitted.envelopes, admitted.payloads, admitted.size)
            for place, error in zip(admitted.places, errors, strict=True):
                results[place] = error
        for place in admitted.ahead:
            results[place] = await self._look_again(payloads[place], refuse_prewrites)
        self.counters.refused += sum(1 for error in results if error is not None)
        return results

    def submit(self, payloads: Sequence[bytes], done: Done, *, refuse_prewrites: str = "") -> None:
        """Store small binlogs like `write`, but report to `done` instead of waiting.

        `done` gets the results and the positions of binlogs that seem too far ahead of the timestamp source; these
        were not written. It is called before this returns, or later on the loop."""
        usual = self._usual(payloads, refuse_prewrites)
        if usual is not None:
            self._submit_usual(usual, payloads, done)
            return
        self._submit_any(payloads, done, refuse_prewrites)

    def _usual(self, payloads: Sequence[bytes], refuse_prewrites: str) -> Usual | None:
        """Scan usual binlogs. Return None if one of them is not usual, or if each binlog must be checked by itself."""
        if refuse_prewrites or self._sealed or self.space.full or self.log.broken is not None:
            return None
        usual = scan_usual(payloads)
        if usual is None or usual.largest_bytes > self._options.transaction_bytes_max:
            return None
        return None if self._horizon.beyond(usual.largest_ts) else usual

    def _submit_usual(self, usual: Usual, payloads: Sequence[bytes], done: Done) -> None:
        submission = self._usual_submission(usual, payloads, done)
        try:
            self._writer.submit(submission, now=True)
        except BinlogError:
            self._withdraw(submission.scanned())
            raise

    async def _write_usual(self, usual: Usual, payloads: Sequence[bytes]) -> list[BinlogError | None]:
        answer: asyncio.Future[list[BinlogError | None]] = asyncio.get_running_loop().create_future()

        def done(results: list[BinlogError | None], _left: Sequence[int]) -> None:
            if not answer.done():
                answer.set_result(results)

        submission = self._usual_submission(usual, payloads, done)
        try:
            await self._writer.room()
            self._writer.submit(submission)
        except BaseException:
            self._withdraw(submission.scanned())
            raise
        return await answer

    def _usual_submission(self, usual: Usual, payloads: Sequence[bytes], done: Done) -> Submission:
        """Make a submission of usual binlogs. Its prewrites are pending from now on, and it counts as under way."""
        self._pending.arrive_all(usual_prewrites(usual, payloads), time.monotonic())
        self.activity += len(payloads)

        def report(written: Written) -> None:
            results: list[BinlogError | None] = [None] * len(payloads)
            self._under_way -= 1
            try:
                if written.verdicts:
                    # Not `submission.scanned()`: the submission refers to this function. In a reference cycle, its
                    # payloads would stay in memory until the garbage collector runs.
                    self._account([scan(payload) for payload in payloads], written)
                    results = [verdict.error for verdict in written.verdicts]
                    self.counters.refused += len(results) - results.count(None)
                else:
                    self._account_usual(usual, written)
            except Exception as error:  # noqa: BLE001  see _unaccounted
                results = [_unaccounted(error)] * len(payloads)
            done(results, ())

        submission = Submission(payloads, usual.size, report, usual=usual)
        self._under_way += 1
        return submission

    def _submit_any(self, payloads: Sequence[bytes], done: Done, refuse_prewrites: str) -> None:
        admitted = self._admit(payloads, refuse_prewrites)

        def report(written: Written) -> None:
            self._under_way -= 1
            for place, error in zip(admitted.places, self._errors(admitted.envelopes, written), strict=True):
                admitted.results[place] = error
            end()

        def end() -> None:
            self.counters.refused += len(payloads) - admitted.results.count(None)
            done(admitted.results, admitted.ahead)

        if not admitted.payloads:
            end()
            return
        self._under_way += 1
        try:
            self._writer.submit(
                Submission(admitted.payloads, admitted.size, report, envelopes=admitted.envelopes), now=True
            )
        except BinlogError:
            self._withdraw(admitted.envelopes)
            raise

    def _admit(self, payloads: Sequence[bytes], refuse_prewrites: str) -> _Admitted:
        """Check which binlogs may be written, as far as that is known without the log. Their prewrites are pending
        from now on. Raises Stopping once the store is sealed."""
        if self._sealed:
            raise Stopping(self._sealed)
        if self.log.broken is not None:
            refuse_prewrites = f"{self.log.broken}; {REFUSED_UNTIL[lacks_room(self.log.broken)]}"
        found = _Admitted([None] * len(payloads))
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
                    found.ahead.append(place)
                    continue
            except BinlogError as error:
                found.results[place] = without_frames(error)  # this frame refers to the results and to the payloads
                continue
            if envelope.start_ts == 0:
                continue  # the probe (P-RPC-05)
            if envelope.tp == BinlogType.PREWRITE:
                self._arrive(envelope, payload, now_s)
            found.places.append(place)
            found.envelopes.append(envelope)
            found.payloads.append(payload)
            size += len(payload)
        found.size = size
        self.activity += len(found.payloads)
        return found

    def _is_far(self, envelope: Envelope) -> bool:
        """Return whether the binlog's ts is beyond the horizon. A rollback of a pending prewrite never is: it has no
        new ts, and it ends the prewrite."""
        return self._horizon.beyond(max(envelope.start_ts, envelope.commit_ts)) and not (
            envelope.tp == BinlogType.ROLLBACK and envelope.start_ts in self._pending
        )

    async def _look_again(self, payload: bytes, refuse_prewrites: str) -> BinlogError | None:
        """Handle a binlog that seems too far ahead: query the timestamp source, then write or refuse the binlog."""
        try:
            await self.resolver.refresh()
        except BinlogError as error:
            return without_frames(error)
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

    async def _submit(
        self, envelopes: list[Envelope], payloads: list[bytes], size: int
    ) -> Sequence[BinlogError | None]:
        """Submit binlogs and wait for their results. The pending set is updated when the writer reports, even if the
        caller has stopped waiting."""
        answer: asyncio.Future[Sequence[BinlogError | None]] = asyncio.get_running_loop().create_future()
        self._under_way += 1

        def report(written: Written) -> None:
            self._under_way -= 1
            errors = self._errors(envelopes, written)
            if not answer.done():
                answer.set_result(errors)

        try:
            await self._writer.room()
            self._writer.submit(Submission(payloads, size, report, envelopes=envelopes))
        except BaseException:
            self._withdraw(envelopes)
            raise
        return await answer

    def _withdraw(self, envelopes: Sequence[Envelope]) -> None:
        """Undo a submission that the writer did not accept: its prewrites are no longer pending."""
        self._under_way -= 1
        for envelope in envelopes:
            if envelope.tp == BinlogType.PREWRITE:
                self._pending.refused(envelope.start_ts)
        self._settle_down()

    def _errors(self, envelopes: Sequence[Envelope], written: Written) -> Sequence[BinlogError | None]:
        """Account for written binlogs, then return the result of each."""
        try:
            self._account(envelopes, written)
        except Exception as error:  # noqa: BLE001  see _unaccounted
            return [_unaccounted(error)] * len(envelopes)
        return [verdict.error for verdict in written.verdicts]

    def _account_usual(self, usual: Usual, written: Written) -> None:
        """Do what `_account` does for usual binlogs that were all written."""
        binlogs = usual.binlogs
        self._pending.stored_all(start_ts for start_ts, commit_ts, _, _ in binlogs if not commit_ts)
        self._pending.settled_all(start_ts for start_ts, commit_ts, _, _ in binlogs if commit_ts)
        self.counters.written += len(binlogs)
        self._visible(written.visible, left=True)

    def _account(self, envelopes: Sequence[Envelope], written: Written) -> None:
        """Update the pending set with the writer's verdicts. The commits are already visible: a prewrite leaves the set
        only after its commit is visible (correctness rule 3: pending prewrites survive a restart)."""
        pending = self._pending
        held_back = len(pending)
        for envelope, verdict in zip(envelopes, written.verdicts, strict=True):
            if envelope.tp == BinlogType.PREWRITE:
                if (verdict.write and verdict.fate is Fate.PENDING) or (verdict.error is not None and verdict.write):
                    pending.stored(envelope.start_ts)
                else:
                    pending.refused(envelope.start_ts)
            elif verdict.error is None and not is_fake(envelope):  # a fake settles no prewrite, stored or not
                pending.settled(envelope.start_ts)
            if verdict.write and verdict.error is None:
                self.counters.written += 1
        self._visible(written.visible, left=len(pending) < held_back)

    def _visible(self, visible: Sequence[int], *, left: bool) -> None:
        """Count commits that became visible, raise alarms for late ones, and request a refresh of the resolved ts.
        `left`: a prewrite left the pending set."""
        if visible:
            self.counters.commits += len(visible)
            if self._resolved.is_late(min(visible)):
                for commit_ts in visible:
                    if self._resolved.is_late(commit_ts):
                        self._alarm(commit_ts)
        if visible or left:
            self.resolver.request_refresh(max(visible, default=0))
        self._settle_down()

    def _settle_down(self) -> None:
        if not len(self._pending) or not self._under_way:
            self._drained.set()

    def _alarm(self, commit_ts: int) -> None:
        """Count a late commit and keep it for Inspect. Limit the log lines if there are many."""
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


def _unaccounted(error: Exception) -> LogBroken:
    """Return the error for callers when accounting fails after a write. A bug there must not leave callers without an
    answer, because other calls may wait for this one."""
    _log.exception("cannot account for binlogs that were written", exc_info=error)
    return LogBroken(f"the result of the write is unknown: {error!r}")
