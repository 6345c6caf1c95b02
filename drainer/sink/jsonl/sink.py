"""A directory with a line for each change, exactly once. The methods are in the order of drainer/sink/base.py.

Lines are appended and flushed to the disk first; then the position and the files' lengths are written together. The
next start truncates the files to the recorded lengths.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from binlog.runtime.crashpoint import crash_point

from drainer.batch.work import Pieces
from drainer.changes.change_segment import ChangeSegment
from drainer.schema.steps import Ddl
from drainer.schema.view import SchemaView
from drainer.sink.base import (
    ADVANCE_EVERY_S,
    NO_QUESTION,
    Applied,
    Examination,
    FirstStart,
    Identity,
    Intent,
    Position,
    Receipt,
    TableName,
    Wants,
)
from drainer.sink.document_position import POSITION, DocumentPositionStore, PositionFile
from drainer.sink.errors import DestinationRefused, PositionMoved
from drainer.sink.jsonl.files import (
    Appender,
    Current,
    Notes,
    check_part,
    cut_back,
    file_name,
    remove_parts,
    rename_parts,
    repair,
    slot_files,
)
from drainer.sink.jsonl.lines import ByTable, ddl_line, lines_by_slot, place_of, slot_of_table
from drainer.sink.jsonl.section import JsonlSection
from drainer.sink.jsonl.slot_writer import JsonlSlotWriter
from drainer.sink.position import DONE, JobMark, Stored, purge_old_jobs, refusal
from drainer.sink.settings import SyncerSettings

_STAGE: Final = "write"


def make(to: JsonlSection, syncer: SyncerSettings) -> JsonlSink:
    """Return the sink, not opened yet."""
    return JsonlSink(Path(to.path), files=to.files, rotate_bytes=to.rotate_bytes, spread=syncer.spread)


class JsonlSink:
    """See base.ChangeSink and base.ParallelSink. Closed until `open`."""

    wants: Final = Wants.CHANGES
    stored_generated: Final = False
    advance_s: Final = ADVANCE_EVERY_S

    def __init__(self, directory: Path, *, files: int = 4, rotate_bytes: int = 256 << 20, spread: bool = True) -> None:
        self._directory = directory.absolute()
        self._rotate_bytes = rotate_bytes
        self._spread = spread
        self._slotting = ByTable(files)
        self._position: PositionFile | None = None
        self._epoch = 0
        self._commit_ts = 0
        self._notes = Notes()

    @property
    def name(self) -> str:
        return f"jsonl:{self._directory}"

    @property
    def slotting(self) -> ByTable:
        return self._slotting

    @property
    def parallel(self) -> JsonlSink | None:
        return self if self._spread else None

    @property
    def commit_ts(self) -> int:
        return self._commit_ts

    def open(self, identity: Identity, initial_ts: int, first: FirstStart = NO_QUESTION) -> Position:
        self._position = PositionFile(self._directory / POSITION, identity)
        try:
            return self._taken(self._position, identity, initial_ts, first)
        except BaseException:
            self.close(clean=False)
            raise

    def _taken(self, file: PositionFile, identity: Identity, initial_ts: int, first: FirstStart) -> Position:
        missing: tuple[TableName, ...] = ()
        with file.transaction() as store:
            stored = store.read()
            fresh = stored is None
            if stored is None:
                self._check_empty()
                missing = first.missing(())
                stored = Stored(first.begin_ts(initial_ts, missing), 0, 0)
                store.create(stored.commit_ts)
            self._epoch = store.take_epoch(stored.epoch, identity.node_id)
            self._notes = Notes.of(store.document.notes)
        repair(self._directory, self._notes)
        self._settle()
        self._commit_ts = stored.commit_ts
        return Position(stored.commit_ts, stored.schema_version, stored.intent, fresh, missing=missing)

    def _check_empty(self) -> None:
        """Raise DestinationRefused if there are files without a position: they may belong to something else."""
        found = next(iter(slot_files(self._directory)), None)
        if found is not None:
            raise DestinationRefused(
                f"{found} exists, and {POSITION} does not: restore {POSITION}, or empty the directory and start anew"
            )

    def apply(self, segment: ChangeSegment, schema_version: int) -> Applied:
        return self.apply_pieces(Pieces(segment.after_ts, segment.until_ts, lambda: (segment,)), schema_version)

    def apply_pieces(self, pieces: Pieces[ChangeSegment], schema_version: int) -> Applied:
        self._check(pieces.after_ts, pieces.until_ts)
        rows = 0
        with self._appender() as appender:
            for segment in pieces.works():
                for slot, lines in lines_by_slot(segment, self._slotting).items():
                    appender.add(slot, lines)
                rows += segment.change_count
            self._record(appender.finish(), pieces.after_ts, pieces.until_ts, schema_version)
        return Applied(rows, rows)

    def ddl(self, step: Ddl, *, may_exist: bool = False) -> None:
        self._check(self._commit_ts, step.commit_ts)
        slot = slot_of_table(*place_of(step), self._slotting.count)
        commit_ts, count = self._notes.ddls
        before = count if commit_ts == step.commit_ts else 0

        def mark(store: DocumentPositionStore) -> None:
            store.mark_job(JobMark(step.job.id, DONE, step.commit_ts))
            purge_old_jobs(store, step.job.id, step.commit_ts)

        with self._appender() as appender:
            appender.add(slot, (ddl_line(step, before),))
            ddls = step.commit_ts, before + 1
            self._record(appender.finish(), self._commit_ts, step.commit_ts, step.job.schema_version, mark, ddls)

    def advance(self, commit_ts: int, schema_version: int) -> None:
        if commit_ts != self._commit_ts:
            self._record(self._notes.current, self._commit_ts, commit_ts, schema_version)

    def job_done(self, job_id: int) -> bool:
        with self._opened().transaction() as store:
            return store.job(job_id) is not None

    def examination(self, view: SchemaView) -> Examination | None:
        """None: this destination refuses no row."""
        return None

    def begin(self, intent: Intent, ahead: ChangeSegment | None = None) -> JsonlSlotWriter:
        assert ahead is None, "nothing goes ahead of a batch that nothing refuses"
        self._settle()
        with self._opened().transaction() as store:
            stored = store.read()
            if stored is not None and stored.intent not in (None, intent):
                raise PositionMoved(
                    f"{store.label}: range {stored.intent} is open and must be finished as it was cut, not {intent}"
                )
            store.write_intent(epoch=self._epoch, intent=intent, stage=_STAGE)
        return self._writer(intent)

    def _writer(self, intent: Intent) -> JsonlSlotWriter:
        return JsonlSlotWriter(self._directory, self._epoch, intent, self._rotate_bytes)

    def commit(self, intent: Intent, receipts: Sequence[Receipt], schema_version: int) -> None:
        """Commit the parts that the receipts name, after the current files."""
        current = dict(self._notes.current)
        renames: list[tuple[str, str]] = []
        for receipt in sorted(receipts, key=lambda one: one.slot):
            for part, length in json.loads(receipt.detail or "[]"):
                check_part(self._directory, part, length)
                before = current.get(receipt.slot, Current())
                number = before.number + 1 if before.length else before.number
                renames.append((part, file_name(receipt.slot, number)))
                current[receipt.slot] = Current(number, length)
        notes = replace(self._notes, current=current, renames=renames)
        with self._opened().transaction() as store:
            store.clear_intent(epoch=self._epoch, intent=intent, schema_version=schema_version)
            for slot, before in self._notes.current.items():
                if current[slot].number > before.number:  # it is complete now, and may still be open
                    cut_back(self._directory, slot, before)
            store.document.notes = notes.value()
        self._notes, self._commit_ts = notes, intent.until_ts
        crash_point("jsonl.committed")
        self._settle()
        remove_parts(self._directory, self._writer(intent).stem)

    def _settle(self) -> None:
        """Rename committed parts, then remove the record of the renames: complete files may be moved away afterwards,
        and a start must not look for them. Raises Fenced."""
        if not self._notes.renames:
            return
        with self._opened().transaction() as store:
            store.hold(self._epoch)
            rename_parts(self._directory, self._notes.renames)
            settled = replace(self._notes, renames=[])
            store.document.notes = settled.value()
        self._notes = settled

    def interrupt(self) -> None:
        """Does nothing: this destination never waits."""

    def close(self, *, clean: bool) -> None:
        if self._position is not None:
            self._position.close()
            self._position = None

    def _check(self, after_ts: int, until_ts: int) -> None:
        """Check the epoch before anything is appended, so that another drainer's files are not changed."""
        with self._opened().transaction() as store:
            stored = store.read()
            wanted = (self._epoch, after_ts, None)
            if stored is None or (stored.epoch, stored.commit_ts, stored.intent) != wanted:
                raise refusal(store, epoch=self._epoch, after_ts=after_ts, until_ts=until_ts)
        self._settle()

    def _appender(self) -> Appender:
        return Appender(self._directory, self._notes.current, self._rotate_bytes)

    def _record(
        self,
        current: dict[int, Current],
        after_ts: int,
        until_ts: int,
        schema_version: int,
        also: Callable[[DocumentPositionStore], None] = lambda store: None,
        ddls: tuple[int, int] | None = None,
    ) -> None:
        """Record position and lengths together."""
        notes = replace(self._notes, current=current, ddls=ddls or self._notes.ddls)
        with self._opened().transaction() as store:
            store.move(epoch=self._epoch, after_ts=after_ts, until_ts=until_ts, schema_version=schema_version)
            also(store)
            store.document.notes = notes.value()
        self._notes, self._commit_ts = notes, until_ts

    def _opened(self) -> PositionFile:
        assert self._position is not None, "open() comes first"
        return self._position
