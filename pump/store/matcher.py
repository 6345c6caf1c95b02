"""Decides for each binlog, from what is stored, whether to write it, accept it as a repetition, or refuse it.

A `Matcher` holds the prewrites whose outcome is not stored, and converts a batch of binlogs to index writes. Only the
thread that works on the writer's current batch may use it: the event loop's or the disk thread. It looks up in the
index only ts that the index may hold: it remembers the ts stored lately, because writers' timestamps do not arrive in
order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from binlog.envelope import BinlogType, Envelope
from binlog.errors import BinlogError

from pump.errors import Conflict, DamagedRecord, InvalidBinlog, RolledBack
from pump.index.keys import FLAG_DAMAGED, FLAG_DDL, FLAG_FAKE, FLAG_GENERAL, Complete
from pump.index.leveldb import Batch, Index
from pump.log.record import HEADER_BYTES, Pointer, encode_header


class ResultKind(Enum):
    """What became of a binlog."""

    PENDING = "prewrite stored, its outcome is not"
    SETTLED = "commit or rollback stored"
    COMPLETE = "prewrite stored after its commit"
    FAKE = "fake stored"
    REPEATED = "was stored already"
    SKIPPED = "nothing to store"


class Prewrite(NamedTuple):
    """What the commit needs to know of its stored prewrite. `length` 0: the prewrite is damaged and cannot be read."""

    pointer: Pointer
    length: int
    tail_at: int
    schema_version: int
    ddl_job_id: int


class Result(NamedTuple):
    """The result for a binlog. `kind`: what becomes of it once it is written. `write`: whether it goes into the log.
    `error`: why it is refused."""

    kind: ResultKind
    write: bool
    error: BinlogError | None = None


class Written(NamedTuple):
    """The results of binlogs that were submitted together: `results` parallel to them, and `visible`, the commit_ts of
    the commits that became visible. No results: all of them took the fast path (pump.store.fast_path) and were
    written."""

    results: Sequence[Result]
    visible: list[int]


@dataclass(slots=True)
class WriteOffset:
    """The offset in a file at which the next record begins, and the largest ts of the file up to there. Writing records
    advances it."""

    fid: int
    at: int
    max_ts: int


COMPARED_BYTES_MIN = 4 << 20  # a larger payload is compared with the log piece by piece

RECENT_MAX = 1 << 15

WRITE_PENDING = Result(ResultKind.PENDING, True)
WRITE_SETTLED = Result(ResultKind.SETTLED, True)
WRITE_COMPLETE = Result(ResultKind.COMPLETE, True)
WRITE_FAKE = Result(ResultKind.FAKE, True)
REPEATED = Result(ResultKind.REPEATED, False)
SKIPPED = Result(ResultKind.SKIPPED, False)


def check(envelope: Envelope) -> None:
    """Raise InvalidBinlog for a binlog that no pump could serve. With start_ts 0 and commit_ts 0 (the probe) it is
    valid."""
    tp, start_ts, commit_ts = envelope.tp, envelope.start_ts, envelope.commit_ts
    if tp > 2 or tp < 0:
        raise InvalidBinlog(f"binlog of start_ts {start_ts} has the obsolete or unknown type {tp}")
    if start_ts <= 0 and not (start_ts == 0 and commit_ts == 0):
        raise InvalidBinlog(f"binlog of type {tp} has start_ts {start_ts} and commit_ts {commit_ts}")
    if tp == BinlogType.COMMIT and start_ts and commit_ts <= start_ts:
        raise InvalidBinlog(f"commit of start_ts {start_ts} has commit_ts {commit_ts}, which is not above it")


def is_fake(envelope: Envelope) -> bool:
    """Return whether this is a fake (heartbeat) binlog: type Rollback with start_ts = commit_ts (`P-FAKE-01`). A
    prewrite is never a fake, even if its commit_ts is set."""
    return envelope.start_ts == envelope.commit_ts > 0 and envelope.tp == BinlogType.ROLLBACK


def as_prewrite(envelope: Envelope, pointer: Pointer, length: int) -> Prewrite:
    tail_at = (envelope.key_end or envelope.body_offset) if envelope.body_offset else 0
    return Prewrite(pointer, length, tail_at, envelope.schema_version, envelope.ddl_job_id)


def as_complete(prewrite: Prewrite, envelope: Envelope, payload: bytes, pointer: Pointer) -> Complete:
    """Return the `cm:` entry of a commit (`payload`, stored at `pointer`) and its prewrite."""
    if not prewrite.length:
        return as_damaged(envelope.start_ts, prewrite.pointer)
    if not (prewrite.tail_at and envelope.body_offset):
        return as_general(envelope.start_ts, prewrite, pointer)
    (fid, offset), length, tail_at, schema_version, ddl_job_id = prewrite
    head = bytes(payload[: envelope.key_end or envelope.body_offset])
    flags = FLAG_DDL if ddl_job_id else 0
    return Complete(envelope.start_ts, fid, offset, length, tail_at, schema_version, ddl_job_id, flags, head)


def as_general(start_ts: int, prewrite: Prewrite, commit_at: Pointer) -> Complete:
    """Return the `cm:` entry of a pair that a pull must read and merge field by field: its shape is unusual, or the
    commit arrived before the prewrite."""
    (fid, offset), length, _, schema_version, ddl_job_id = prewrite
    flags = FLAG_GENERAL | (FLAG_DDL if ddl_job_id else 0)
    return Complete(start_ts, fid, offset, length, 0, schema_version, ddl_job_id, flags, commit_at.encode())


def as_damaged(start_ts: int, pointer: Pointer) -> Complete:
    """Return the `cm:` entry of a commit whose prewrite was lost in damaged bytes. A pull that reaches it fails."""
    return Complete(start_ts, pointer.fid, pointer.offset, 0, 0, 0, 0, FLAG_DAMAGED, b"")


def as_fake(envelope: Envelope, pointer: Pointer, length: int) -> Complete:
    return Complete(envelope.start_ts, pointer.fid, pointer.offset, length, 0, 0, 0, FLAG_FAKE, b"")


@dataclass(slots=True)
class Matcher:
    """Matches binlogs, batch by batch: `judge` every binlog, append the accepted ones to the log, `record` each of them
    with its position, then `end_batch`."""

    stored: Index
    read: Callable[[Pointer], bytes]  # reads a payload of the log; raises DamagedRecord
    largest_ts: int  # of everything stored or accepted
    unmatched: dict[int, Prewrite] = field(default_factory=dict)  # in log order
    holds: Callable[[Pointer, bytes], bool] = lambda _pointer, _payload: False  # whether a record has that payload
    lost: Callable[[], Pointer | None] = lambda: None  # position of lost records, whose ts are unknown
    recent_max: int = RECENT_MAX  # the size at which a set of remembered ts is replaced; two sets are kept
    # Entries of the current batch, not yet in the index:
    prewrites: dict[int, bytes] = field(default_factory=dict)
    outcomes: dict[int, int] = field(default_factory=dict)
    _overtaken: dict[int, int] = field(default_factory=dict)  # start_ts → commit_ts of a commit that arrived first
    used: dict[int, Pointer | None] = field(default_factory=dict)  # `ts:` keys
    # Every ts above the floor that is stored or judged is in one of the two sets.
    _floor_ts: int = field(init=False)
    _recent: set[int] = field(default_factory=set)
    _older: set[int] = field(default_factory=set)
    _older_largest_ts: int = 0

    def __post_init__(self) -> None:
        self._floor_ts = self.largest_ts

    def is_new(self, ts: int) -> bool:
        """Return whether it is known, without a lookup in the index, that nothing is stored under a ts: neither a
        record nor, for a start_ts, an outcome."""
        return ts > self._floor_ts and ts not in self._recent and ts not in self._older

    def note(self, ts: int) -> None:
        """Remember that something is stored under `ts`."""
        self._recent.add(ts)

    def judge(self, envelope: Envelope, payload: bytes) -> Result:
        """Decide about a binlog. Errors are returned, not raised, so that one bad binlog does not stop its batch."""
        start_ts, commit_ts = envelope.start_ts, envelope.commit_ts
        if start_ts == 0:
            return SKIPPED
        if envelope.tp == BinlogType.PREWRITE:
            result = self._prewrite(start_ts, payload)
        elif envelope.tp == BinlogType.COMMIT:
            result = self._commit(start_ts, commit_ts)
        elif start_ts == commit_ts:
            result = self._fake(commit_ts)
        else:
            result = self._rollback(start_ts)
        if result.write:
            self.note(start_ts)
            if commit_ts:
                self.note(commit_ts)
            self.grow(max(start_ts, commit_ts))
        return result

    def grow(self, ts: int) -> None:
        """Raise `largest_ts` to an accepted ts."""
        self.largest_ts = max(ts, self.largest_ts)

    def outcome(self, start_ts: int) -> int | None:
        """Return the commit_ts stored for a start_ts, in the index or in this batch; 0: rolled back; None: neither."""
        found = self.outcomes.get(start_ts)
        if found is None:
            found = self._overtaken.get(start_ts)  # a commit that was stored before the prewrite of this batch
        if found is None and not self.is_new(start_ts) and start_ts not in self.prewrites:
            found = self.stored.outcome(start_ts)
        return found

    def _occupied(self, ts: int) -> bool:
        return ts in self.used or (not self.is_new(ts) and self.stored.pointer(ts) is not None)

    def _prewrite(self, start_ts: int, payload: bytes) -> Result:
        if self.is_new(start_ts):
            return self._new_prewrite(start_ts, payload)
        outcome = self.outcome(start_ts)
        if outcome == 0:
            return _refuse(f"prewrite of start_ts {start_ts}: it was rolled back here", RolledBack)
        if self._occupied(start_ts):
            return self._repeated_prewrite(start_ts, payload)
        if outcome is None:
            return self._new_prewrite(start_ts, payload)
        self.prewrites[start_ts] = payload
        self._overtaken[start_ts] = outcome
        self.used[start_ts] = None
        return WRITE_COMPLETE

    def _new_prewrite(self, start_ts: int, payload: bytes) -> Result:
        self.prewrites[start_ts] = payload
        self.used[start_ts] = None
        return WRITE_PENDING

    def _repeated_prewrite(self, start_ts: int, payload: bytes) -> Result:
        """Decide about a prewrite whose ts is in use. A client repeats an unanswered prewrite with the same bytes;
        other bytes are another binlog, which is refused."""
        before = self.prewrites.get(start_ts)
        if before is None:
            pointer = self.stored.pointer(start_ts)
            if pointer is None:
                return _refuse(f"prewrite of start_ts {start_ts}: that ts is a commit_ts here")
            if len(payload) > COMPARED_BYTES_MIN and self.holds(pointer, payload):
                return REPEATED
            try:
                before = self.read(pointer)
            except DamagedRecord as error:
                return Result(ResultKind.SKIPPED, False, error)
        if before != payload:
            return _refuse(f"prewrite of start_ts {start_ts}: another binlog is stored under that ts")
        return REPEATED

    def _commit(self, start_ts: int, commit_ts: int) -> Result:
        if start_ts not in self.unmatched or start_ts in self.outcomes:
            outcome = self.outcome(start_ts)
            if outcome == commit_ts:
                return REPEATED
            if outcome == 0:
                return _refuse(
                    f"commit of start_ts {start_ts} at {commit_ts}: a rollback is stored already", RolledBack
                )
            if outcome is not None:
                return _refuse(f"commit of start_ts {start_ts} at {commit_ts}: commit_ts {outcome} is stored already")
        if self._occupied(commit_ts):
            return _refuse(f"commit of start_ts {start_ts}: its commit_ts {commit_ts} belongs to another binlog")
        self.outcomes[start_ts] = commit_ts
        self.used[commit_ts] = None
        return WRITE_SETTLED

    def _rollback(self, start_ts: int) -> Result:
        if start_ts not in self.unmatched or start_ts in self.outcomes:
            outcome = self.outcome(start_ts)
            if outcome == 0:
                return REPEATED
            if outcome is not None:
                return _refuse(f"rollback of start_ts {start_ts}: commit_ts {outcome} is stored already")
        self.outcomes[start_ts] = 0
        return WRITE_SETTLED

    def _fake(self, ts: int) -> Result:
        if self._occupied(ts):
            return SKIPPED
        self.used[ts] = None
        return WRITE_FAKE

    def record(self, batch: Batch, envelope: Envelope, payload: bytes, pointer: Pointer) -> int:
        """Put an accepted binlog's keys into the batch. Return the commit_ts that becomes visible with it, or 0."""
        start_ts, commit_ts = envelope.start_ts, envelope.commit_ts
        if envelope.tp == BinlogType.PREWRITE:
            return self._record_prewrite(batch, envelope, payload, pointer)
        if start_ts == commit_ts:
            batch.pointer(commit_ts, pointer)
            batch.complete(commit_ts, as_fake(envelope, pointer, len(payload)))
            return 0
        prewrite = self.unmatched.pop(start_ts, None)
        if envelope.tp == BinlogType.ROLLBACK:
            batch.outcome(start_ts, 0)
            return 0
        batch.pointer(commit_ts, pointer)
        batch.outcome(start_ts, commit_ts)
        self.used[commit_ts] = pointer
        if prewrite is None:
            lost = self._lost(start_ts)
            if lost is None:
                return 0
            prewrite = Prewrite(lost, 0, 0, 0, 0)
        batch.pair(commit_ts, as_complete(prewrite, envelope, payload, pointer), pointer.fid)
        return commit_ts

    def _lost(self, start_ts: int) -> Pointer | None:
        """Return the position of the damage that holds, or may hold, the prewrite of a commit; None if that prewrite
        was never stored here."""
        pointer = self.stored.pointer(start_ts)
        if pointer is None:
            return self.lost()
        try:
            self.read(pointer)
        except DamagedRecord:
            return pointer
        return None

    def _record_prewrite(self, batch: Batch, envelope: Envelope, payload: bytes, pointer: Pointer) -> int:
        start_ts = envelope.start_ts
        prewrite = as_prewrite(envelope, pointer, len(payload))
        batch.pointer(start_ts, pointer)
        commit_ts = self._overtaken.get(start_ts)
        if commit_ts is None:
            self.unmatched[start_ts] = prewrite
            return 0
        commit_at = self.used.get(commit_ts) or self.stored.pointer(commit_ts)
        assert commit_at is not None, "an outcome is written in one batch with its pointer"
        batch.pair(commit_ts, as_general(start_ts, prewrite, commit_at), commit_at.fid)
        return commit_ts

    def end_batch(self) -> None:
        """Forget the entries of the batch: the index holds them now."""
        self.prewrites.clear()
        self.outcomes.clear()
        self._overtaken.clear()
        self.used.clear()
        if len(self._recent) >= self.recent_max:
            self._floor_ts = max(self._floor_ts, self._older_largest_ts)
            self._older, self._older_largest_ts = self._recent, self.largest_ts
            self._recent = set()

    def oldest_pointer(self) -> Pointer | None:
        """Return the position of the oldest unmatched prewrite in the log, or None."""
        for prewrite in self.unmatched.values():
            return prewrite.pointer
        return None


def enter(
    envelopes: Sequence[Envelope],
    payloads: Sequence[bytes],
    matcher: Matcher,
    batch: Batch,
    parts: list[bytes],
    write_offset: WriteOffset,
) -> Written:
    """Judge binlogs in order. Append the records of accepted ones to `parts` and put their keys into the batch."""
    results: list[Result] = []
    visible: list[int] = []
    for envelope, payload in zip(envelopes, payloads, strict=True):
        result = matcher.judge(envelope, payload)
        results.append(result)
        if result.write:
            commit_ts = matcher.record(batch, envelope, payload, Pointer(write_offset.fid, write_offset.at))
            if commit_ts:
                visible.append(commit_ts)
            parts.append(encode_header(payload))
            parts.append(payload)
            write_offset.at += HEADER_BYTES + len(payload)
            write_offset.max_ts = max(write_offset.max_ts, envelope.start_ts, envelope.commit_ts)
    return Written(results, visible)


def _refuse(detail: str, kind: type[Conflict] = Conflict) -> Result:
    return Result(ResultKind.SKIPPED, False, kind(detail))
