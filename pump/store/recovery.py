"""Recovery at start-up: brings the index up to the end of the value log. See FORMAT.md, "Recovery"."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from binlog.cluster import tso
from binlog.envelope import BinlogType, Envelope, scan, writer_of
from binlog.errors import DecodeError
from binlog.runtime.log import get_logger

from pump.errors import DamagedRecord
from pump.index.checkpoint import Checkpoint
from pump.index.keys import FLAG_DAMAGED
from pump.index.leveldb import Batch, Index
from pump.log.record import Pointer, Scanned
from pump.log.value_log import READING, Head, ReadingProgress, ValueLog
from pump.store.matcher import Prewrite, as_complete, as_fake, as_general, as_prewrite, is_fake

FLUSH_RECORDS = 2000
SHOWN_MAX = 5
END_UNKNOWN = 1 << 62  # end offset of a missing part whose length is unknown
SLACK_MS = 600_000  # binlogs are removed when the purge point is this far above them

_log = get_logger("pump.store.recovery")


def removed_until_ts(purged_ts: int) -> int:
    """Return the ts up to which files and keys of binlogs may have been removed; 0 if nothing was purged."""
    return tso.compose(max(0, tso.physical_ms(purged_ts) - SLACK_MS))


class Unmatched(NamedTuple):
    """A prewrite of the log without an outcome."""

    start_ts: int
    prewrite: Prewrite
    prewrite_key: bytes = b""
    writer: bytes = b""


@dataclass(slots=True)
class Recovered:
    """The state a pump starts from. `unmatched` is in log order; `head` None: the log is empty.

    `ended`: start_ts of unmatched prewrites that are treated as settled, because the file with their commit or rollback
    may have been removed; they do not hold the resolved ts back, and a commit that arrives later still matches them."""

    unmatched: list[Unmatched]
    head: Head | None
    damage: list[DamagedRecord]
    records: int
    ended: frozenset[int] = frozenset()

    @property
    def handle(self) -> Pointer:
        """Position in the log before which no prewrite is pending."""
        head = Pointer(0, 0) if self.head is None else self.head.pointer
        return min([head, *(found.prewrite.pointer for found in self.unmatched[:1])])


def recover(
    log: ValueLog,
    index: Index,
    damage: list[DamagedRecord],
    trusted: Checkpoint | None = None,
    progress: ReadingProgress | None = None,
) -> Recovered:
    """Bring the index up to the end of the log and find the pending prewrites.

    Reads the log from `trusted.start`, or from the first file if there is no trusted checkpoint. Index entries that are
    missing after that position are written again. `damage`: the damaged records found when the log was opened; those
    found here are appended. Raises IndexFailed and OSError if the disk fails, Stopping.
    """
    # Both pumps store `head` in the index; this one stores `own` with it, in one batch. So without `own` the original
    # wrote all of it, and if the two differ, the original wrote after this pump.
    rebuild = _Rebuild(log, index, damage)
    head, own = index.head(), index.own_head()
    start = Pointer(0, 0) if trusted is None else trusted.start
    if own is None and head is not None:
        _log.info("data-dir was written by the original pump; reading the whole value log", head=head)
    elif own is not None and own.pointer != head:
        _log.warning("the index was written by the original pump; reading its part of the value log again", start=start)
    files = {file.fid for file in log.files()}
    rebuild.damaged += [(pointer, end) for pointer, end in index.damages() if pointer.fid in files]
    damage += [
        _known_damage(log, pointer, end) for pointer, end in rebuild.damaged if pointer < start or end == END_UNKNOWN
    ]
    for missing in missing_ends(log, index, start=None if trusted is None else start):
        rebuild.miss(missing)
    rebuild.read(start, progress or ReadingProgress())
    rebuild.flush()
    rebuild.add_damaged_pending()
    unmatched = sorted(rebuild.unmatched.values(), key=lambda found: found.prewrite.pointer)
    _log.info("recovered", records=rebuild.records, pending=len(unmatched), damaged=len(damage), start=start)
    own = index.own_head()
    if trusted is None and own is not None:
        index.save_ended(removed_until_ts(index.purged_ts()), own.pointer)
    return Recovered(unmatched, own, damage, rebuild.records, _ended(index, unmatched))


def _ended(index: Index, unmatched: list[Unmatched]) -> frozenset[int]:
    """Return the start_ts of unmatched prewrites to treat as settled: they were in the log when the complete log was
    last read again, and are at or below what may have been removed by then (correctness rule 25, after a purge)."""
    until_ts, place = index.ended()
    ended = [u.start_ts for u in unmatched if u.start_ts <= until_ts and u.prewrite.pointer <= place]
    if ended:
        _log.warning(
            "prewrites without an outcome are older than the removed files; treating them as settled",
            count=len(ended),
            start_ts=ended[:SHOWN_MAX],
            removed_until_ts=until_ts,
        )
    return frozenset(ended)


def _known_damage(log: ValueLog, pointer: Pointer, end: int) -> DamagedRecord:
    place = str(log.file(pointer.fid).path)
    what = "what follows is missing" if end == END_UNKNOWN else f"{end - pointer.offset} bytes"
    return DamagedRecord(place, pointer.offset, f"{what}, found at an earlier start")


class Missing(NamedTuple):
    """The records from `begin` to the offset `end` of the same file are missing. `path`: the file's path."""

    begin: Pointer
    end: int
    path: str
    reason: str


def missing_ends(log: ValueLog, index: Index, *, start: Pointer | None) -> list[Missing]:
    """Return the missing ends of all files but the newest (FORMAT.md, "Missing ends"). Records that the index locates
    after the end are lost. `start`: the position from which recovery reads; None: the index is not trusted, and the
    complete log is read."""
    candidates = [
        Missing(Pointer(file.fid, file.size), END_UNKNOWN, str(file.path), "the file has no footer")
        for file in log.files()
        if not file.finished and file.fid != log.tail.fid
    ]
    if start is not None and start.fid < log.tail.fid and not log.has(start.fid):
        candidates.append(Missing(start, END_UNKNOWN, str(log.path(start.fid)), "the file is missing"))
    if not candidates or start is None:
        return candidates
    last: dict[int, int] = {}
    for _, pointer in index.pointers():
        last[pointer.fid] = max(last.get(pointer.fid, 0), pointer.offset)
    return [
        each._replace(reason=f"{each.reason}, and the index knows records up to byte {last[each.begin.fid]}")
        for each in candidates
        if last.get(each.begin.fid, -1) >= each.begin.offset
    ]


@dataclass(slots=True)
class _Rebuild:
    log: ValueLog
    index: Index
    damage: list[DamagedRecord]
    unmatched: dict[int, Unmatched] = field(default_factory=dict)
    head: Pointer | None = None
    records: int = 0
    # Damaged ranges (begin, end offset), including those of earlier starts
    damaged: list[tuple[Pointer, int]] = field(default_factory=list)
    # Entries of the current batch, not yet written to the index
    _outcomes: dict[int, int] = field(default_factory=dict)
    _pointers: dict[int, Pointer] = field(default_factory=dict)
    _batch: Batch | None = None
    _end: int = 0

    def read(self, start: Pointer, progress: ReadingProgress) -> None:
        """Process every record from `start` on."""
        files = {file.fid: file for file in self.log.files() if file.fid >= start.fid}
        before, done = {}, -start.offset if start.fid in files else 0
        for fid, file in files.items():
            before[fid] = done
            done += file.size
        progress.begin(READING, done, start.fid)
        for pointer, found in self.log.scan(start):
            self.step(pointer, found)
            progress.reached(self.records, before[pointer.fid] + found.end, pointer.fid)

    def step(self, pointer: Pointer, found: Scanned) -> None:
        if found.payload is None:
            self._report(pointer, f"{found.reason}, {found.end - pointer.offset} bytes skipped")
            self._batch = self._batch or self.index.batch()
            self._batch.damage(pointer, found.end)
            self.damaged.append((pointer, found.end))
            return
        try:
            envelope = scan(found.payload)
        except DecodeError as error:
            self._report(pointer, f"its payload is not a binlog: {error}")
            return
        self.records += 1
        self.head, self._end = pointer, found.end
        if envelope.start_ts > 0:
            self._batch = self._batch or self.index.batch()
            self._enter(self._batch, envelope, found.payload, pointer)
        if self.records % FLUSH_RECORDS == 0:
            self.flush()

    def _enter(self, batch: Batch, envelope: Envelope, payload: bytes, pointer: Pointer) -> None:
        if envelope.tp == BinlogType.PREWRITE:
            self._prewrite(batch, envelope, payload, pointer)
        elif is_fake(envelope):
            if self._claim_key(batch, envelope.commit_ts, pointer):
                batch.complete(envelope.commit_ts, as_fake(envelope, pointer, len(payload)))
        elif envelope.tp == BinlogType.COMMIT and envelope.commit_ts > 0:
            self._commit(batch, envelope, payload, pointer)
        else:
            self._rollback(batch, envelope.start_ts)

    def miss(self, missing: Missing) -> None:
        """Record missing records as damaged bytes."""
        if missing.begin in (begin for begin, _ in self.damaged):
            return
        error = DamagedRecord(missing.path, missing.begin.offset, missing.reason)
        self.damage.append(error)
        _log.error("records of the value log are missing", error=error)
        self._batch = self._batch or self.index.batch()
        self._batch.damage(missing.begin, missing.end)
        self.damaged.append((missing.begin, missing.end))

    def _report(self, pointer: Pointer, detail: str) -> None:
        error = DamagedRecord(str(self.log.file(pointer.fid).path), pointer.offset, detail)
        if not any((each.place, each.offset) == (error.place, error.offset) for each in self.damage):
            self.damage.append(error)
        _log.error("damaged record in the value log", error=error)

    def flush(self) -> None:
        if self._batch is not None:
            known = self.index.own_head()
            if self.head is not None and (known is None or known.pointer <= self.head):
                self._batch.head(Head(self.head, self._end, self.log.file(self.head.fid).max_ts))
            self.index.write(self._batch)
        self._batch = None
        self._outcomes.clear()
        self._pointers.clear()

    def _outcome(self, start_ts: int) -> int | None:
        found = self._outcomes.get(start_ts)
        return self.index.outcome(start_ts) if found is None else found

    def _pointer(self, ts: int) -> Pointer | None:
        return self._pointers.get(ts) or self.index.pointer(ts)

    def _claim_key(self, batch: Batch, ts: int, pointer: Pointer) -> bool:
        """Index the record under `ts`. Return False if another record holds that key already."""
        before = self._pointer(ts)
        if before is None:
            self._pointers[ts] = pointer
            batch.pointer(ts, pointer)
        return before is None or before == pointer

    def _prewrite(self, batch: Batch, envelope: Envelope, payload: bytes, pointer: Pointer) -> None:
        start_ts = envelope.start_ts
        outcome = self._outcome(start_ts)
        if outcome == 0 or not self._claim_key(batch, start_ts, pointer):
            return
        prewrite = as_prewrite(envelope, pointer, len(payload))
        if outcome is None:
            key = payload[envelope.key_at : envelope.key_end]
            self.unmatched[start_ts] = Unmatched(start_ts, prewrite, key, writer_of(payload, envelope))
            return
        commit_at = self._pointer(outcome)
        complete = self.index.complete(outcome)
        if commit_at is not None and (complete is None or complete.flags & FLAG_DAMAGED):
            batch.pair(outcome, as_general(start_ts, prewrite, commit_at), commit_at.fid)

    def _commit(self, batch: Batch, envelope: Envelope, payload: bytes, pointer: Pointer) -> None:
        start_ts, commit_ts = envelope.start_ts, envelope.commit_ts
        outcome = self._outcome(start_ts)
        if outcome not in (None, commit_ts):
            _log.error(
                "ignoring a second outcome of a transaction in the value log",
                start_ts=start_ts,
                first=outcome,
                second=commit_ts,
            )
            return
        if not self._claim_key(batch, commit_ts, pointer):
            return
        if outcome == commit_ts and self.index.complete(commit_ts) is not None:
            return  # already indexed, and read again after the checkpoint
        self._outcomes[start_ts] = commit_ts
        batch.outcome(start_ts, commit_ts)
        prewrite = self._settle(start_ts) or self._stored_prewrite(start_ts)
        if prewrite is not None:
            batch.pair(commit_ts, as_complete(prewrite, envelope, payload, pointer), pointer.fid)

    def _rollback(self, batch: Batch, start_ts: int) -> None:
        if self._outcome(start_ts) is None:
            self._settle(start_ts)
            self._outcomes[start_ts] = 0
            batch.outcome(start_ts, 0)

    def _settle(self, start_ts: int) -> Prewrite | None:
        found = self.unmatched.pop(start_ts, None)
        return None if found is None else found.prewrite

    def _stored_prewrite(self, start_ts: int) -> Prewrite | None:
        """Return the prewrite of a commit from the part of the log before the position where reading began; None if it
        was never stored here."""
        pointer = self._pointer(start_ts)
        if pointer is None:
            return self._lost_prewrite(start_ts)
        try:
            payload = self.log.read(pointer)
            envelope = scan(payload)
        except (DamagedRecord, DecodeError) as error:
            _log.error("cannot read the prewrite of a commit", start_ts=start_ts, error=error)
            return Prewrite(pointer, 0, 0, 0, 0)
        if envelope.tp != BinlogType.PREWRITE or envelope.start_ts != start_ts:
            return None
        return as_prewrite(envelope, pointer, len(payload))

    def _lost_prewrite(self, start_ts: int) -> Prewrite | None:
        """Return an unreadable prewrite at the newest damage, or None if nothing is damaged. A commit without a
        prewrite may belong to a damaged record that was never indexed."""
        if not self.damaged:
            return None
        pointer = self.damaged[-1][0]
        _log.error(
            "the prewrite of a commit is missing, and the value log is damaged", start_ts=start_ts, pointer=pointer
        )
        return Prewrite(pointer, 0, 0, 0, 0)

    def add_damaged_pending(self) -> None:
        """Add the prewrites that the index locates in damaged bytes and that have no outcome: they are pending. All ts
        are searched, because a prewrite may arrive after its start_ts was resolved and commit above that."""
        if not self.damaged:
            return
        for ts, pointer in self.index.pointers():
            lost = any(begin <= pointer and pointer < Pointer(begin.fid, end) for begin, end in self.damaged)
            if lost and self.index.outcome(ts) is None and self.index.complete(ts) is None:
                _log.error("cannot read a pending prewrite", start_ts=ts, pointer=pointer)
                self.unmatched[ts] = Unmatched(ts, Prewrite(pointer, 0, 0, 0, 0))
