"""Writes one slot's rows from an executor, in chunks with marks. Plain functions and a picklable value.

A chunk is one transaction. The slot's work is divided by a total order (rule 16: same chunks): the same rows give the
same chunks. The order: ordered changes by (commit_ts, sequence), then tables by (class, table id), their rows by
identity. Tables with secondary unique keys or keys of text are last: only their rows can conflict with others, and then
nothing else of the slot remains to be written. A change of this order needs a new HASH_VERSION.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Final

import numpy as np

from drainer.batch.work import Folded, KeyChange, SegmentWork, shown_row
from drainer.changes.net import columns_of
from drainer.sink.base import Intent, Receipt
from drainer.sink.errors import DataError, DestinationRefused, MissingRows
from drainer.sink.mysql import connection
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ConnectionLost, Retry, ServerSession
from drainer.sink.mysql.position import DRIVER, Changefeed, expect, mark, store
from drainer.sink.mysql.rows.unique_keys import UniqueKeys
from drainer.sink.mysql.rows.writer import Name, UniqueSurprise, Writer
from drainer.sink.position import Stored
from drainer.sink.retry import RetryDeadline

# The order in which the net rows of a distributed batch are written (rule 12: REPLACE evicts only stale rows).


class Phase(StrEnum):
    """A batch starts in DIRECT. If a row that it does not change conflicts in a unique key, all slots go through DELETE
    and then INSERT."""

    DIRECT = "direct"
    DELETE = "delete"
    INSERT = "insert"


def phase_of(stored: Stored, label: str) -> Phase:
    """Return the phase of the open range. Raises DestinationRefused."""
    try:
        return Phase(stored.stage)
    except ValueError:
        raise DestinationRefused(
            f"{label}: the open range in drainer_position has the phase {stored.stage!r}, which this version of "
            f"the drainer has not: start the one that wrote it once, to finish it"
        ) from None


# A constant, because another value would divide an open range differently.
CHUNK_BYTES_MAX: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """The rows of one transaction: ordered changes, or net rows of one or more tables."""

    ordered: tuple[KeyChange, ...] = ()
    folded: tuple[Folded, ...] = ()

    @property
    def rows(self) -> int:
        return len(self.ordered) + sum(len(folded.rows) for folded in self.folded)


def cut(work: SegmentWork, phase: Phase, chunk_rows: int) -> list[Chunk]:
    """The chunks of a slot in a phase. The phases DELETE and INSERT contain only tables whose rows may conflict. With
    0 `chunk_rows` the slot is one chunk, and only DIRECT is used."""
    unique = _sorted(folded for folded in work.folded if folded.shape.may_collide)
    if phase is not Phase.DIRECT:
        return list(_folded_chunks(unique, chunk_rows))
    plain = _sorted(folded for folded in work.folded if not folded.shape.may_collide)
    ordered = sorted(work.ordered.changes, key=lambda change: (change.commit_ts, change.sequence))
    if not chunk_rows:
        one = Chunk(tuple(ordered), (*plain, *unique))
        return [one] if one.rows else []
    return [
        *_ordered_chunks(ordered, chunk_rows),
        *_folded_chunks(plain, chunk_rows),
        *_folded_chunks(unique, chunk_rows),
    ]


def _sorted(tables: Iterator[Folded]) -> list[Folded]:
    return sorted(tables, key=lambda folded: folded.shape.table_id)


def _ordered_chunks(changes: Sequence[KeyChange], chunk_rows: int) -> Iterator[Chunk]:
    start = size = 0
    for at, change in enumerate(changes):
        size += sum(len(value) for value in (change.new or ()) if isinstance(value, bytes))
        if at + 1 - start >= chunk_rows or size >= CHUNK_BYTES_MAX:
            yield Chunk(ordered=tuple(changes[start : at + 1]))
            start, size = at + 1, 0
    if start < len(changes):
        yield Chunk(ordered=tuple(changes[start:]))


def _folded_chunks(tables: Sequence[Folded], chunk_rows: int) -> Iterator[Chunk]:
    """A chunk ends with the row with which it reaches `chunk_rows` or CHUNK_BYTES_MAX."""
    parts: list[Folded] = []
    count = size = 0
    for folded in tables:
        rows = columns_of(folded)
        # `reached`: the table's bytes up to each row, of which `behind` are in complete chunks. `size`: the bytes that
        # earlier tables have in this chunk.
        reached = np.cumsum(rows.sizes)
        at = behind = 0
        while at < len(rows):
            by_size = int(np.searchsorted(reached, behind + CHUNK_BYTES_MAX - size)) + 1
            end = min(at + chunk_rows - count, by_size)
            if end > len(rows):
                break
            yield Chunk(folded=(*parts, replace(folded, rows=rows[at:end])))
            parts, count, size, at, behind = [], 0, 0, end, int(reached[end - 1])
        if at < len(rows):
            parts.append(replace(folded, rows=rows[at:]))
            count += len(rows) - at
            size += int(reached[-1]) - behind
    if parts:
        yield Chunk(folded=tuple(parts))


# Finds the row of a chunk that the server refuses: the last row of the shortest prefix that fails. Pure.
def beginning(chunk: Chunk, rows: int) -> Chunk:
    """The first so many rows, in the order in which they are written."""
    tables: list[Folded] = []
    left = rows - len(chunk.ordered)
    for folded in chunk.folded:
        if left > 0:
            tables.append(replace(folded, rows=folded.rows[:left]))
        left -= len(folded.rows)
    return Chunk(chunk.ordered[:rows], tuple(tables))


def blame(error: DataError, chunk: Chunk, fails: Callable[[Chunk], bool]) -> None:
    """Add the refused row to the error. `fails`: whether writing only these rows fails with the same error."""
    if not fails(chunk):
        return
    low, high = 0, chunk.rows
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(beginning(chunk, middle)) else (middle, high)
    found = beginning(chunk, high)
    if found.folded:
        row = found.folded[-1].rows[-1]
        error.table_id, error.identity = found.folded[-1].shape.table_id, row.identity
        error.shown = shown_row(row.row if row.row is not None else row.stale[0])
    else:
        change = found.ordered[-1]
        error.commit_ts = change.commit_ts
        error.shown = shown_row(change.new or change.old)


# A task does not pause between statements; a suspended one must not keep its locks much longer than that.
_IDLE_S: Final = 120


class _NotNext(Exception):
    """The mark was not advanced; it must be read again."""


@dataclass(frozen=True, slots=True)
class MySQLSlotWriter:
    """See base.SlotWriter. Contains no connection: `write` takes one from its process's pool, or opens one."""

    config: ServerConfig
    changefeed: Changefeed
    epoch: int
    intent: Intent
    phase: Phase
    triggers: frozenset[Name] = frozenset()

    def write(self, slot: int, segment: SegmentWork, retry_for_s: float = math.inf) -> Receipt:
        chunks = cut(segment, self.phase, self.intent.chunk_rows)
        retry_for_s = min(retry_for_s, self.config.retry_for_s)
        return _SlotRun(self, slot, chunks, retry_for_s).run() if chunks else Receipt(slot, 0, 0, 0)


class _SlotRun:
    """One attempt to write one slot: a session, which is replaced if lost, and the number of the next chunk."""

    def __init__(self, target: MySQLSlotWriter, slot: int, chunks: list[Chunk], retry_for_s: float) -> None:
        self._target = target
        self._slot = slot
        self._chunks = chunks
        self._session: ServerSession | None = None
        self._rows = 0
        self._range = f"({target.intent.after_ts}, {target.intent.until_ts}] in {target.config.address}"
        self._missing = MissingRows()
        self._keys = UniqueKeys()  # a distributed range contains no DDL
        self._whole = not target.intent.chunk_rows
        self._thorough = False
        self._deadline = RetryDeadline(f"slot {slot} of {self._range}", retry_for_s)

    def run(self) -> Receipt:
        target, skipped = self._target, None
        try:
            while True:
                try:
                    done = self._done()
                    skipped = done if skipped is None else skipped
                    self._from(done)
                    if self._session is not None:  # for the worker's next task
                        connection.give_back(target.config, self._session)
                        self._session = None
                    self._deadline.over()
                    return Receipt(self._slot, self._rows, len(self._chunks), skipped)
                except UniqueSurprise as surprise:
                    if self._whole:  # what may conflict is in this slot: no other slot has to delete it first
                        self._thorough = True
                        continue
                    unique_key = f"{surprise.schema}.{surprise.table} {surprise.key}"
                    return Receipt(self._slot, self._rows, len(self._chunks), skipped or 0, unique_key)
                except _NotNext:
                    continue
                except Retry as error:
                    self._deadline.failed(error)
                except ConnectionLost as error:
                    self._close()
                    self._deadline.failed(error)
        finally:
            self._close()

    def _done(self) -> int:
        """Number of committed chunks; after a lost answer this shows whether the last one was committed."""
        target = self._target
        marks, label = store(self._open(), target.changefeed), target.changefeed.label
        found = marks.chunk(intent=target.intent, stage=target.phase, slot=self._slot)
        total = len(self._chunks)
        return expect(found, total, label, epoch=target.epoch, slot=self._slot, intent=target.intent).done

    def _from(self, first: int) -> None:
        for number in range(first, len(self._chunks)):
            chunk = self._chunks[number]
            try:
                session, what = self._open(), f"chunk {number} of slot {self._slot} of {self._range}"
                with session.transaction(what, before="sink.before_chunk_commit", after="sink.after_chunk_commit"):
                    self._write(session, chunk, number)
            except UniqueSurprise:
                raise
            except DataError as error:
                with contextlib.suppress(ConnectionLost, Retry):
                    blame(error, chunk, partial(self._fails, kind=type(error)))
                raise
            self._rows += chunk.rows
            self._deadline.over()

    def _fails(self, chunk: Chunk, kind: type[DataError]) -> bool:
        """Whether writing these rows alone fails with that error. The attempt is rolled back."""
        session = self._open()
        session.begin()
        try:
            self._write_rows(session, chunk)
        except DataError as error:
            return type(error) is kind
        finally:
            session.rollback()
        return False

    def _write(self, session: ServerSession, chunk: Chunk, number: int) -> None:
        target = self._target
        if not store(session, target.changefeed).step_chunk(
            epoch=target.epoch,
            intent=target.intent,
            stage=target.phase,
            slot=self._slot,
            chunk=number,
            total=len(self._chunks),
        ):
            raise _NotNext
        mark(session, target.config.channel_id, DRIVER + 1 + self._slot)
        self._write_rows(session, chunk)

    def _write_rows(self, session: ServerSession, chunk: Chunk) -> None:
        target = self._target
        writer = Writer(
            session,
            target.config.limits,
            until_ts=target.intent.until_ts,
            keys=self._keys,
            triggers=target.triggers,
            missing=self._missing,
        )
        writer.ordered(chunk.ordered)
        for folded in chunk.folded:
            if target.phase is Phase.DELETE:
                writer.delete_touched(folded, known_absent=False)
            elif target.phase is Phase.INSERT:
                writer.insert_live(folded, thorough=True)
            else:
                writer.folded(folded, thorough=self._thorough)

    def _open(self) -> ServerSession:
        if self._session is None:
            config = self._target.config
            self._session = connection.take(config, idle_s=_IDLE_S, read_timeout_s=config.read_timeout_s)
        return self._session

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
