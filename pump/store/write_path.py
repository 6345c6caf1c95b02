"""The write path of a store: refuses binlogs on arrival, tracks pending prewrites, evaluates the writer's reports."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from binlog.envelope import BinlogType, Envelope, encode_binlog, encode_fake, scan, writer_of
from binlog.errors import BinlogError, LogBroken, NotOnline, without_frames
from binlog.runtime.log import Outage, get_logger
from binlog.runtime.waiting import is_set_within

from pump.errors import NoSuchBinlog, Stopping, TooLarge
from pump.index.leveldb import Index
from pump.log.value_log import ValueLog
from pump.store.fast_path import FastBinlogs, fast_prewrites, scan_fast
from pump.store.group_commit import Submission, Writer
from pump.store.limits import Space, lacks_room
from pump.store.matcher import ResultKind, Written, check, is_fake
from pump.store.resolver import Pending, PendingSet, Resolver

ALARM_INTERVAL_S = 1.0
LATE_KEPT = 100  # the newest late commits that are kept; the first ones, as many, each have a log line
REFUSED_UNTIL = {False: "restart the pump", True: "the pump goes on by itself when the disk has room"}

Results = list[BinlogError | None]
Done = Callable[[Results, Sequence[int]], object]

_log = get_logger("pump.store.write_path")


@dataclass(slots=True, eq=False)
class _Checked:
    """The binlogs of one call that are to be written, and the results of the others.

    `results`: one for each binlog of the call. `places`: positions in the call, parallel to `envelopes` and `payloads`.
    `ahead`: positions of binlogs that seem too far ahead of the timestamp source. `size`: bytes of `payloads`."""

    results: Results
    places: list[int] = field(default_factory=list)
    envelopes: list[Envelope] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    ahead: list[int] = field(default_factory=list)
    size: int = 0

    def add(self, place: int, envelope: Envelope, payload: bytes) -> None:
        """Add a binlog that is to be written."""
        self.places.append(place)
        self.envelopes.append(envelope)
        self.payloads.append(payload)
        self.size += len(payload)


@dataclass(eq=False)
class WritePath:
    """Accepts binlogs until it is sealed, and accounts for each of them once the writer has reported it.

    All binlogs go the same way: `_admit` makes a `Submission` of those that may be written. From then on its prewrites
    are pending, and it is under way. The writer queues it and later reports it; the report updates the pending set and
    calls the caller's `Done`. `submit` goes this way; `write` awaits its end. Use it only on the event loop.
    """

    # Parts of the store. Where several threads use one: what is used of it here.
    _log: ValueLog  # any thread: only `broken`, which the threads of the writer may set at any time
    _index: Index  # any thread: only reads
    _writer: Writer  # event loop
    _space: Space  # event loop; a thread may refresh it
    _pending: PendingSet  # event loop
    _resolver: Resolver  # event loop
    _bytes_max: int  # constant
    # Owned by this object
    late_commits: int = 0  # event loop
    late_ts: deque[int] = field(default_factory=lambda: deque(maxlen=LATE_KEPT))  # event loop; the newest of them
    activity: int = 0  # event loop; binlogs that were accepted; fakes do not count
    _sealed: str = ""  # event loop; why nothing more is accepted
    _under_way: int = 0  # event loop; submissions that the writer has not reported
    # event loop; set when no prewrite is pending, or no submission is under way
    _drained: asyncio.Event = field(default_factory=asyncio.Event)
    _alarmed_s: float = 0.0  # event loop; when a late commit was last logged
    _refused_s: float = 0.0  # event loop; when a binlog too far ahead was last logged

    async def write(self, payloads: Sequence[bytes], *, refuse_prewrites: str = "") -> Results:
        """Store binlogs in order. Return one result for each: None once it is durable and visible, else the error.

        `refuse_prewrites`: the reason why this pump accepts no prewrites (P-RPC-03), "" if it accepts them; a broken
        log is such a reason, too. A prewrite is pending from this call on, before the first await. Raises Stopping
        once the store is sealed.
        """
        answer, done = _answer()
        submission = self._admit(payloads, done, refuse_prewrites)
        if submission is not None:
            await self._queue_when_room(submission)
        results, ahead = await answer
        for place in ahead:
            results[place] = await self._check_again(payloads[place], refuse_prewrites)
        return results

    def submit(self, payloads: Sequence[bytes], done: Done, *, refuse_prewrites: str = "") -> None:
        """Store small binlogs like `write`, but report to `done` instead of waiting.

        `done` gets the results and the positions of binlogs that seem too far ahead of the timestamp source; these
        were not written. It is called before this returns, or later on the loop."""
        submission = self._admit(payloads, done, refuse_prewrites)
        if submission is not None:
            self._queue(submission, now=True)

    async def write_fake(self) -> int:
        """Write one fake binlog and return its ts. A ts below it is reserved before it is fetched (rule 4). Raises
        LogBroken if the write fails."""
        placeholder = self._resolver.ts + 1
        self._pending.reserve(placeholder)
        try:
            ts = await self._resolver.fetch()
            payload = encode_fake(ts)
            fake = _Checked([None])
            fake.add(0, scan(payload), payload)
            answer, done = _answer()
            await self._queue_when_room(self._submission(fake, done))
            (error,), _ = await answer
        finally:
            self._pending.release(placeholder)
            self._settle_down()
        if error is not None:
            raise error
        self._resolver.advance(ts)
        return ts

    async def write_fakes(self, interval_s: float) -> None:
        """Write one fake binlog per interval in which no write was accepted, so that a Go drainer's merge advances
        (`P-FAKE-01`, `P-FAKE-02`). Refused writes do not count. Return when the log is broken and accepts nothing
        more."""
        seen = self.activity
        outage = Outage(_log, "no fake binlog", "fake binlogs are written again")
        while True:
            await asyncio.sleep(interval_s)
            if self.activity == seen:
                try:
                    await self.write_fake()
                    outage.over()
                except LogBroken:
                    return
                except BinlogError as error:
                    outage.failed(error=error)
            seen = self.activity

    async def settle(self, start_ts: int, commit_ts: int) -> None:
        """Settle a pending prewrite: commit it at `commit_ts`, or roll it back (0). Raises NoSuchBinlog if it is not
        pending."""
        entry = self._pending.get(start_ts)
        if entry is None:
            raise NoSuchBinlog(f"no prewrite of start_ts {start_ts} is pending here")
        tp = BinlogType.COMMIT if commit_ts else BinlogType.ROLLBACK
        payload = encode_binlog(tp=tp, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=entry.prewrite_key or None)
        (error,) = await self.write([payload])
        if error is not None:
            raise error

    # The end of writing

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
        if not still or self._log.broken is not None:
            return None
        return await asyncio.to_thread(self._index.largest_commit)

    async def _until(self, reached: Callable[[], bool], deadline_s: float) -> bool:
        end_s = time.monotonic() + deadline_s
        while not reached():
            self._drained.clear()
            if not await is_set_within(max(0.0, end_s - time.monotonic()), self._drained):
                return reached()
        return True

    def _settle_down(self) -> None:
        if not len(self._pending) or not self._under_way:
            self._drained.set()

    # Into the writer's queue

    async def _queue_when_room(self, submission: Submission) -> None:
        """Queue a submission as soon as the writer has room. A caller that stops waiting for that takes it back; later
        its binlogs are written all the same."""
        try:
            await self._writer.room()
        except BaseException:
            self._withdraw(submission)
            raise
        self._queue(submission, now=False)

    def _queue(self, submission: Submission, *, now: bool) -> None:
        try:
            self._writer.submit(submission, now=now)
        except BinlogError:
            self._withdraw(submission)
            raise

    def _withdraw(self, submission: Submission) -> None:
        """Undo a submission that is not queued: its prewrites are no longer pending."""
        self._under_way -= 1
        for envelope in submission.scanned():
            if envelope.tp == BinlogType.PREWRITE:
                self._pending.refused(envelope.start_ts)
        self._settle_down()

    # On arrival

    def _admit(self, payloads: Sequence[bytes], done: Done, refuse_prewrites: str) -> Submission | None:
        """Make a submission of the binlogs of a call that may be written. If there are none, call `done` and return
        None. Raises Stopping once the store is sealed."""
        fast = self._scan_fast(payloads, refuse_prewrites)
        if fast is not None:
            return self._fast_submission(fast, payloads, done)
        checked = self._check(payloads, refuse_prewrites)
        if checked.payloads:
            return self._submission(checked, done)
        done(checked.results, checked.ahead)
        return None

    def _scan_fast(self, payloads: Sequence[bytes], refuse_prewrites: str) -> FastBinlogs | None:
        """Scan binlogs for the fast path. Return None if one of them has another shape, or if each binlog must be
        checked by itself."""
        if refuse_prewrites or self._sealed or self._space.full or self._log.broken is not None:
            return None
        fast = scan_fast(payloads)
        if fast is None or fast.largest_bytes > self._bytes_max:
            return None
        return None if self._resolver.horizon.beyond(fast.largest_ts) else fast

    def _fast_submission(self, fast: FastBinlogs, payloads: Sequence[bytes], done: Done) -> Submission:
        self._pending.arrive_all(fast_prewrites(fast, payloads), time.monotonic())
        self.activity += len(payloads)

        def account(written: Written) -> None:
            if written.results:
                # Not `submission.scanned()`: the submission refers to this function. In a reference cycle, its payloads
                # would stay in memory until the garbage collector runs.
                self._account([scan(payload) for payload in payloads], written)
            else:
                self._account_fast(fast, written)

        def report(written: Written) -> None:
            done(self._reported(written, account, len(payloads)), ())

        self._under_way += 1
        return Submission(payloads, fast.size, report, fast=fast)

    def _submission(self, checked: _Checked, done: Done) -> Submission:
        def report(written: Written) -> None:
            errors = self._reported(written, partial(self._account, checked.envelopes), len(checked.envelopes))
            for place, error in zip(checked.places, errors, strict=True):
                checked.results[place] = error
            done(checked.results, checked.ahead)

        self._under_way += 1
        return Submission(checked.payloads, checked.size, report, envelopes=checked.envelopes)

    def _check(self, payloads: Sequence[bytes], refuse_prewrites: str) -> _Checked:
        """Check which binlogs may be written, as far as that is known without the log. Their prewrites are pending
        from now on. Raises Stopping once the store is sealed."""
        if self._sealed:
            raise Stopping(self._sealed)
        broken = self._log.broken
        if broken is not None:
            refuse_prewrites = f"{broken}; {REFUSED_UNTIL[lacks_room(broken)]}"
        checked = _Checked([None] * len(payloads))
        now_s = time.monotonic()
        for place, payload in enumerate(payloads):
            try:
                envelope = scan(payload)
                check(envelope)
                if len(payload) > self._bytes_max:
                    raise TooLarge(envelope.start_ts, len(payload), self._bytes_max)
                if envelope.tp == BinlogType.PREWRITE and refuse_prewrites:
                    raise NotOnline(refuse_prewrites)
                if broken is not None:
                    raise LogBroken(broken)
                if self._space.full and not is_fake(envelope):
                    self._space.check()
                if self._is_far(envelope):
                    checked.ahead.append(place)
                    continue
            except BinlogError as error:
                checked.results[place] = without_frames(error)  # this frame refers to the results and to the payloads
                continue
            if envelope.start_ts == 0:
                continue  # the probe (P-RPC-05)
            if envelope.tp == BinlogType.PREWRITE:
                key, writer = bytes(payload[envelope.key_at : envelope.key_end]), writer_of(payload, envelope)
                self._pending.arrive(Pending(envelope.start_ts, now_s, len(payload), envelope.ddl_job_id, key, writer))
            checked.add(place, envelope, payload)
        self.activity += len(checked.payloads)
        return checked

    def _is_far(self, envelope: Envelope) -> bool:
        """Return whether the binlog's ts is beyond the horizon. A rollback of a pending prewrite never is: it has no
        new ts, and it ends the prewrite."""
        return self._resolver.horizon.beyond(max(envelope.start_ts, envelope.commit_ts)) and not (
            envelope.tp == BinlogType.ROLLBACK and envelope.start_ts in self._pending
        )

    async def _check_again(self, payload: bytes, refuse_prewrites: str) -> BinlogError | None:
        """Handle a binlog that seems too far ahead: query the timestamp source, then write or refuse the binlog."""
        try:
            await self._resolver.refresh()
        except BinlogError as error:
            return without_frames(error)
        envelope = scan(payload)
        if not self._is_far(envelope):
            return (await self.write([payload], refuse_prewrites=refuse_prewrites))[0]
        refusal = self._resolver.horizon.refusal(max(envelope.start_ts, envelope.commit_ts))
        now_s = time.monotonic()
        if now_s - self._refused_s >= ALARM_INTERVAL_S:
            self._refused_s = now_s
            _log.error("binlog refused", error=refusal, start_ts=envelope.start_ts, commit_ts=envelope.commit_ts)
        return refusal

    # After the writer

    def _reported(self, written: Written, account: Callable[[Written], None], count: int) -> Results:
        """Account for a submission of `count` binlogs, and return their results. A bug there must not leave callers
        without an answer, because other calls may wait for this one."""
        self._under_way -= 1
        try:
            account(written)
        except Exception as error:  # noqa: BLE001  see above
            _log.exception("cannot account for binlogs that were written", exc_info=error)
            return [LogBroken(f"the result of the write is unknown: {error!r}")] * count
        return [result.error for result in written.results] or [None] * count

    def _account_fast(self, fast: FastBinlogs, written: Written) -> None:
        """Do what `_account` does for fast-path binlogs that were all written."""
        binlogs = fast.binlogs
        self._pending.stored(start_ts for start_ts, commit_ts, _, _ in binlogs if not commit_ts)
        self._pending.settled(start_ts for start_ts, commit_ts, _, _ in binlogs if commit_ts)
        self._visible(written.visible, left=True)

    def _account(self, envelopes: Sequence[Envelope], written: Written) -> None:
        """Update the pending set with the writer's results. The commits are already visible: a prewrite leaves the set
        only after its commit is visible (correctness rule 3: pending prewrites survive a restart)."""
        pending = self._pending
        held_back = len(pending)
        for envelope, result in zip(envelopes, written.results, strict=True):
            if envelope.tp == BinlogType.PREWRITE:
                if (result.write and result.kind is ResultKind.PENDING) or (result.error is not None and result.write):
                    pending.stored((envelope.start_ts,))
                else:
                    pending.refused(envelope.start_ts)
            elif result.error is None and not is_fake(envelope):  # a fake settles no prewrite, stored or not
                pending.settled((envelope.start_ts,))
        self._visible(written.visible, left=len(pending) < held_back)

    def _visible(self, visible: Sequence[int], *, left: bool) -> None:
        """Raise alarms for commits that became visible late, and request a refresh of the resolved ts. `left`: a
        prewrite left the pending set."""
        if visible and self._resolver.is_late(min(visible)):
            for commit_ts in visible:
                if self._resolver.is_late(commit_ts):
                    self._alarm(commit_ts)
        if visible or left:
            self._resolver.request_refresh(max(visible, default=0))
        self._settle_down()

    def _alarm(self, commit_ts: int) -> None:
        """Count a late commit and keep it for Inspect. Limit the log lines if there are many."""
        self.late_commits += 1
        self.late_ts.append(commit_ts)
        now_s = time.monotonic()
        if self.late_commits > LATE_KEPT and now_s - self._alarmed_s < ALARM_INTERVAL_S:
            return
        self._alarmed_s = now_s
        _log.error(
            "a commit arrived at or below a resolved ts that drainers may have read already",
            commit_ts=commit_ts,
            resolved_ts=self._resolver.ts,
            so_far=self.late_commits,
        )


def _answer() -> tuple[asyncio.Future[tuple[Results, Sequence[int]]], Done]:
    """Return a future, and the function that sets it unless its caller has stopped waiting."""
    answer: asyncio.Future[tuple[Results, Sequence[int]]] = asyncio.get_running_loop().create_future()

    def done(results: Results, ahead: Sequence[int]) -> None:
        if not answer.done():
            answer.set_result((results, ahead))

    return answer, done
