"""What start-up does with the log and the index before anything is served. See FORMAT.md, "Recovery"."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from binlog.envelope import BinlogType, Envelope, scan, writer_of
from binlog.errors import DecodeError
from binlog.runtime.log import get_logger

from pump.checkpoint import Checkpoint
from pump.errors import DamagedRecord
from pump.index import Batch, Index
from pump.keys import FLAG_DAMAGED
from pump.log import Found, Head, ValueLog
from pump.match import Prewrite, as_complete, as_fake, as_general, as_prewrite, is_fake
from pump.purge import removed_until_ts
from pump.record import Pointer

FLUSH_RECORDS = 2000
PROGRESS_INTERVAL_S = 5.0
SHOWN_MAX = 5

_log = get_logger("pump.recovery")


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A prewrite of the log without an outcome."""

    start_ts: int
    prewrite: Prewrite
    prewrite_key: bytes
    writer: bytes = b""


@dataclass(slots=True)
class Recovered:
    """The state a pump starts from. `unmatched` is in log order; `head` None: the log is empty.

    `ended`: start_ts of unmatched prewrites that count as ended, for what ended them may be removed; they hold nothing
    back, and a commit that comes finds them all the same."""

    unmatched: list[Unmatched]
    head: Head | None
    damage: list[DamagedRecord]
    records: int
    ended: frozenset[int] = frozenset()

    @property
    def handle(self) -> Pointer:
        """No prewrite before it is pending."""
        head = Pointer(0, 0) if self.head is None else self.head.pointer
        return min([head, *(found.prewrite.pointer for found in self.unmatched[:1])])


def recover(log: ValueLog, index: Index, damage: list[DamagedRecord], trusted: Checkpoint | None = None) -> Recovered:
    """Bring the index up to the end of the log and find what is pending.

    Reads from where `trusted` says, else from the first file. What the index has behind it is put again where it is
    missing. `damage` is what opening the log found, and is added to.
    """
    rebuild = _Rebuild(log, index, damage)
    head, own = index.head(), index.own_head()
    start = Pointer(0, 0) if trusted is None else trusted.start
    if own is None and head is not None:
        _log.info("data-dir of the original pump: the whole log is read once", head=head)
    elif own is not None and own.pointer != head:
        _log.warning("the index was written by the original pump; its part of the log is read again", start=start)
    files = {file.fid for file in log.files()}
    rebuild.damaged += [(pointer, end) for pointer, end in index.damages() if pointer.fid in files]
    damage += [_known_damage(log, pointer, end) for pointer, end in rebuild.damaged if pointer < start]
    for found in log.scan(start):
        rebuild.step(found)
    rebuild.flush()
    rebuild.lost_pending()
    unmatched = [Unmatched(ts, prewrite, *rebuild.named[ts]) for ts, prewrite in rebuild.unmatched.items()]
    _log.info("recovered", records=rebuild.records, pending=len(unmatched), damaged=len(damage), start=start)
    own = index.own_head()
    if trusted is None and own is not None:
        index.save_ended(removed_until_ts(index.purged_ts()), own.pointer)
    return Recovered(unmatched, own, damage, rebuild.records, _ended(index, unmatched))


def _ended(index: Index, unmatched: list[Unmatched]) -> frozenset[int]:
    """Of a log that was once read as a whole after a part of it had been removed: what was in it then, and began before
    what is removed. All of that had ended when the purge point passed it, but for a transaction that is open for longer
    than binlogs are kept."""
    until_ts, place = index.ended()
    ended = [u.start_ts for u in unmatched if u.start_ts <= until_ts and u.prewrite.pointer <= place]
    if ended:
        _log.warning(
            "prewrites without an outcome are older than what is removed: they are taken as ended",
            count=len(ended),
            start_ts=ended[:SHOWN_MAX],
            removed_until_ts=until_ts,
        )
    return frozenset(ended)


def _known_damage(log: ValueLog, pointer: Pointer, end: int) -> DamagedRecord:
    place = str(log.file(pointer.fid).path)
    return DamagedRecord(place, pointer.offset, f"{end - pointer.offset} bytes, found at an earlier start")


@dataclass(slots=True)
class _Rebuild:
    log: ValueLog
    index: Index
    damage: list[DamagedRecord]
    unmatched: dict[int, Prewrite] = field(default_factory=dict)
    named: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)  # prewrite_key and writer of the unmatched
    head: Pointer | None = None
    records: int = 0
    damaged: list[tuple[Pointer, int]] = field(default_factory=list)  # stretches, also those of earlier starts
    # Of the batch that is being filled, not in the index yet
    _outcomes: dict[int, int] = field(default_factory=dict)
    _pointers: dict[int, Pointer] = field(default_factory=dict)
    _batch: tuple[Batch, object] | None = None
    _end: int = 0
    _said_s: float = field(default_factory=time.monotonic)

    def step(self, found: Found) -> None:
        if found.payload is None:
            self._report(found.pointer, f"{found.reason}, {found.end - found.pointer.offset} bytes stepped over")
            self._batch = self._batch or self.index.batch()
            self._batch[0].damage(found.pointer, found.end)
            self.damaged.append((found.pointer, found.end))
            return
        try:
            envelope = scan(found.payload)
        except DecodeError as error:
            self._report(found.pointer, f"its payload is no binlog: {error}")
            return
        self.records += 1
        self.head, self._end = found.pointer, found.end
        if envelope.start_ts > 0:
            self._batch = self._batch or self.index.batch()
            _STEPS[_kind(envelope)](self, self._batch[0], envelope, found.payload, found.pointer)
        if self.records % FLUSH_RECORDS == 0:
            self.flush()
            self._say()

    def _report(self, pointer: Pointer, detail: str) -> None:
        error = DamagedRecord(str(self.log.file(pointer.fid).path), pointer.offset, detail)
        if not any((each.place, each.offset) == (error.place, error.offset) for each in self.damage):
            self.damage.append(error)
        _log.error("damage in the value log", error=error)

    def _say(self) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s >= PROGRESS_INTERVAL_S and self.head is not None:
            self._said_s = now_s
            _log.info("reading the log", records=self.records, fid=self.head.fid, offset=self.head.offset)

    def flush(self) -> None:
        if self._batch is not None:
            batch, raw = self._batch
            known = self.index.own_head()
            if self.head is not None and (known is None or known.pointer <= self.head):
                batch.head(Head(self.head, self._end, self.log.file(self.head.fid).max_ts))
            self.index.write(raw)
        self._batch = None
        self._outcomes.clear()
        self._pointers.clear()

    def _outcome(self, start_ts: int) -> int | None:
        found = self._outcomes.get(start_ts)
        return self.index.outcome(start_ts) if found is None else found

    def _pointer(self, ts: int) -> Pointer | None:
        return self._pointers.get(ts) or self.index.pointer(ts)

    def _place(self, batch: Batch, ts: int, pointer: Pointer) -> bool:
        """Whether `ts` is this record's: a key is never given to another one."""
        before = self._pointer(ts)
        if before is None:
            self._pointers[ts] = pointer
            batch.pointer(ts, pointer)
        return before is None or before == pointer

    def prewrite(self, batch: Batch, envelope: Envelope, payload: bytes, pointer: Pointer) -> None:
        start_ts = envelope.start_ts
        outcome = self._outcome(start_ts)
        if outcome == 0 or not self._place(batch, start_ts, pointer):
            return
        prewrite = as_prewrite(envelope, pointer, len(payload))
        if outcome is None:
            self.unmatched[start_ts] = prewrite
            self.named[start_ts] = payload[envelope.key_at : envelope.key_end], writer_of(payload, envelope)
            return
        commit_at = self._pointer(outcome)
        complete = self.index.complete(outcome)
        if commit_at is not None and (complete is None or complete.flags & FLAG_DAMAGED):
            batch.complete(outcome, as_general(start_ts, prewrite, commit_at))
            if commit_at.fid != pointer.fid:
                batch.need(pointer.fid, outcome)

    def commit(self, batch: Batch, envelope: Envelope, payload: bytes, pointer: Pointer) -> None:
        start_ts, commit_ts = envelope.start_ts, envelope.commit_ts
        outcome = self._outcome(start_ts)
        if outcome not in (None, commit_ts):
            _log.error("a second outcome in the log is left out", start_ts=start_ts, first=outcome, second=commit_ts)
            return
        if not self._place(batch, commit_ts, pointer):
            return
        if outcome == commit_ts and self.index.complete(commit_ts) is not None:
            return  # read again behind a checkpoint, and nothing of it was lost
        self._outcomes[start_ts] = commit_ts
        batch.outcome(start_ts, commit_ts)
        prewrite = self._settle(start_ts) or self._stored_prewrite(start_ts)
        if prewrite is not None:
            batch.complete(commit_ts, as_complete(prewrite, envelope, payload, pointer))
            if prewrite.pointer.fid != pointer.fid:
                batch.need(prewrite.pointer.fid, commit_ts)

    def rollback(self, batch: Batch, envelope: Envelope, _payload: bytes, _pointer: Pointer) -> None:
        start_ts = envelope.start_ts
        if self._outcome(start_ts) is None:
            self._settle(start_ts)
            self._outcomes[start_ts] = 0
            batch.outcome(start_ts, 0)

    def fake(self, batch: Batch, envelope: Envelope, payload: bytes, pointer: Pointer) -> None:
        if self._place(batch, envelope.commit_ts, pointer):
            batch.complete(envelope.commit_ts, as_fake(envelope, pointer, len(payload)))

    def _settle(self, start_ts: int) -> Prewrite | None:
        self.named.pop(start_ts, None)
        return self.unmatched.pop(start_ts, None)

    def _stored_prewrite(self, start_ts: int) -> Prewrite | None:
        """A prewrite before the place where reading began."""
        pointer = self._pointer(start_ts)
        if pointer is None:
            return self._lost_prewrite(start_ts)
        try:
            payload = self.log.read(pointer)
            envelope = scan(payload)
        except (DamagedRecord, DecodeError) as error:
            _log.error("the prewrite of a commit cannot be read", start_ts=start_ts, error=error)
            return Prewrite(pointer, 0, 0, 0, 0)
        if envelope.tp != BinlogType.PREWRITE or envelope.start_ts != start_ts:
            return None
        return as_prewrite(envelope, pointer, len(payload))

    def _lost_prewrite(self, start_ts: int) -> Prewrite | None:
        """Where records were lost before they were indexed, a commit without a prewrite may be of one of them."""
        if not self.damaged:
            return None
        pointer = self.damaged[-1][0]
        _log.error("a commit's prewrite is not here, and the log is damaged", start_ts=start_ts, pointer=pointer)
        return Prewrite(pointer, 0, 0, 0, 0)

    def lost_pending(self) -> None:
        """Prewrites that the index knows in damaged bytes, without an outcome: they are pending. Every ts is looked at:
        a prewrite may come after its start_ts was resolved, and commits above that."""
        if not self.damaged:
            return
        for ts, pointer in self.index.pointers(0):
            lost = any(begin <= pointer and pointer < Pointer(begin.fid, end) for begin, end in self.damaged)
            if lost and self.index.outcome(ts) is None and self.index.complete(ts) is None:
                _log.error("a pending prewrite cannot be read", start_ts=ts, pointer=pointer)
                self.unmatched[ts] = Prewrite(pointer, 0, 0, 0, 0)
                self.named[ts] = b"", b""
        self.unmatched = dict(sorted(self.unmatched.items(), key=lambda item: item[1].pointer))


_Step = Callable[[_Rebuild, Batch, Envelope, bytes, Pointer], None]
_STEPS: dict[str, _Step] = {
    "prewrite": _Rebuild.prewrite,
    "commit": _Rebuild.commit,
    "rollback": _Rebuild.rollback,
    "fake": _Rebuild.fake,
}


def _kind(envelope: Envelope) -> str:
    if envelope.tp == BinlogType.PREWRITE:
        return "prewrite"
    if is_fake(envelope):
        return "fake"
    return "commit" if envelope.tp == BinlogType.COMMIT and envelope.commit_ts > 0 else "rollback"
