"""A directory of files, exactly once. The methods are in the order of drainer/sink/base.py.

Bytes are appended and synced first; then the position and the current files' lengths are recorded together. Bytes that
a crash leaves after that length are truncated at the next start. What executors write of a batch is in files of their
own (lines.py), which become files of the directory when the batch is committed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from binlog.runtime.crashpoint import crash_point
from binlog.runtime.directories import make_directory

from drainer.batch.work import Pieces
from drainer.changes import ChangeSegment
from drainer.schema.steps import Ddl
from drainer.schema.view import SchemaView
from drainer.sink.base import (
    ADVANCE_EVERY_S,
    NO_QUESTION,
    FirstStart,
    Identity,
    Intent,
    Position,
    Receipt,
    TableLoad,
    Wants,
)
from drainer.sink.document_position import POSITION, PositionFile
from drainer.sink.errors import DestinationRefused, PositionMoved
from drainer.sink.file.files import (
    Appender,
    Current,
    FileFormat,
    Files,
    Housekeeping,
    Notes,
    RecordFiles,
    Rotation,
    of_disk,
)
from drainer.sink.file.lines import JsonlFormat, LineSlotWriter, check_part, remove_parts, rename_parts
from drainer.sink.file.parquet import ParquetFormat
from drainer.sink.file.pb import PbFormat
from drainer.sink.file.section import FileSection, JsonlSection
from drainer.sink.position import DONE, JobMark, purge_old_jobs, refusal, take_over
from drainer.sink.settings import SyncerSettings

_STAGE: Final = "write"


class FileSink:
    """See base.ChangeSink and base.ParallelSink. Closed until `open`, which takes the directory's lock and the
    position's epoch; this epoch is compared before every write. `distributed`: executors write lines, too."""

    wants: Final = Wants.CHANGES
    advance_s: Final = ADVANCE_EVERY_S
    retry_for_s: Final = 0.0

    def __init__(
        self,
        directory: Path,
        format_: FileFormat,
        *,
        rotation: Rotation,
        retention: timedelta = timedelta(0),
        distributed: bool = False,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory.absolute()
        self.name = f"{format_.kind}:{self._directory}"
        self._format = format_
        self.slotting = format_.slotting
        self.stored_generated = format_.stored_generated
        self._files = Files(format_.files_directory(self._directory), format_)
        self._rotation = rotation
        self._retention = retention
        self._is_distributed = distributed
        self._clock_s = clock_s
        self._position: PositionFile | None = None
        self._housekeeping: Housekeeping | None = None
        self._notes = Notes()
        self._epoch = 0
        self.commit_ts = 0
        self._schema_version = 0

    @property
    def parallel(self) -> FileSink | None:
        return self if self._is_distributed else None

    def open(self, identity: Identity, initial_ts: int, first: FirstStart = NO_QUESTION) -> Position:
        try:
            with of_disk(self._directory):
                self._position = PositionFile(self._directory / POSITION, identity)
                position = self._take(identity, initial_ts, first)
                make_directory(self._files.directory)
                rename_parts(self._directory, self._notes.renames)
                self._files.repair(self._notes.current)
                self._rename()
        except BaseException:
            self.close(clean=False)
            raise
        remove_parts(self._directory)
        if isinstance(self._format, RecordFiles):
            self._housekeeping = Housekeeping(self._directory, self._format, self._retention, self._clock_s)
        self._tidy()
        return position

    def _take(self, identity: Identity, initial_ts: int, first: FirstStart) -> Position:
        """Take the directory over, as base.Sink.open does."""
        with self._opened().transaction() as store:
            if store.read() is None:
                self._check_empty()
            self._epoch, position = take_over(store, identity.node_id, initial_ts, first)
            self._notes = self._format.notes_of(store.document.notes)
        self.commit_ts, self._schema_version = position.commit_ts, position.schema_version
        return position

    def _check_empty(self) -> None:
        """Raise DestinationRefused if files have no position: they must be neither truncated nor continued."""
        there = self._files.found() if self._files.directory.is_dir() else iter(())
        found = next((path for path, _, _ in there), None)
        if found is not None:
            raise DestinationRefused(
                f"{found} exists, and {POSITION} does not: restore {POSITION}, or empty the directory and start anew"
            )

    def apply(self, segment: ChangeSegment, schema_version: int) -> None:
        self.apply_pieces(Pieces(segment.after_ts, segment.until_ts, lambda: (segment,)), schema_version)

    def apply_pieces(self, pieces: Pieces[ChangeSegment], schema_version: int) -> None:
        self._check(pieces.after_ts, pieces.until_ts)
        with self._appender() as appender:
            with of_disk(self._directory), self._format.writer(self._files.directory, appender.put) as add:
                for segment in pieces.works():
                    add(segment)
            notes = replace(self._notes, current=appender.finish())
        self._record(notes, pieces.after_ts, pieces.until_ts, schema_version, loaded=pieces.loaded)

    def ddl(self, step: Ddl, *, may_exist: bool = False) -> None:
        self._check(self.commit_ts, step.commit_ts)
        commit_ts, count = self._notes.ddls
        place = count if commit_ts == step.commit_ts else 0

        with self._appender() as appender:
            self._format.ddl(step, place, appender.put)
            notes = replace(self._notes, current=appender.finish(), ddls=(step.commit_ts, place + 1))
        self._record(notes, self.commit_ts, step.commit_ts, step.job.schema_version, done=step.job.id)

    def advance(self, commit_ts: int, schema_version: int) -> None:
        if commit_ts != self.commit_ts:
            self._record(self._notes, self.commit_ts, commit_ts, schema_version)
        else:
            self._tidy()

    def job_done(self, job_id: int) -> bool:
        with self._opened().transaction() as store:
            return store.job(job_id) is not None

    def loads(self) -> list[TableLoad]:
        with self._opened().transaction() as store:
            return store.loads()

    def put_loads(self, loads: Sequence[TableLoad], done: TableLoad | None = None) -> None:
        with self._opened().transaction() as store:
            store.put_loads(self._epoch, loads, done)

    def prepare(self, view: SchemaView) -> None:
        """Nothing depends on the tables."""

    def begin(self, intent: Intent) -> LineSlotWriter:
        self._rename()
        with self._opened().transaction() as store:
            stored = store.read()
            if stored is not None and stored.intent not in (None, intent):
                raise PositionMoved(
                    f"{store.label}: range {stored.intent} is open and must be finished as it was cut, not {intent}"
                )
            store.write_intent(epoch=self._epoch, intent=intent, stage=_STAGE)
        return self._slot_writer(intent)

    def _slot_writer(self, intent: Intent) -> LineSlotWriter:
        return LineSlotWriter(self._directory, self._epoch, intent, self._rotation.file_bytes)

    def commit(self, intent: Intent, receipts: Sequence[Receipt], schema_version: int) -> None:
        """Commit the parts that the receipts name, after the current files."""
        current = dict(self._notes.current)
        renames: list[tuple[str, str]] = []
        for receipt in sorted(receipts, key=lambda one: one.slot):
            for part, length in json.loads(receipt.detail or "[]"):
                check_part(self._directory, part, length)
                before = current.get(receipt.slot, Current())
                number = before.number + 1 if before.name else before.number
                name = self._format.name(receipt.slot, number, datetime.fromtimestamp(self._clock_s()).astimezone())
                renames.append((part, name))
                current[receipt.slot] = Current(number, name, length)
        notes = replace(self._notes, current=current, renames=tuple(renames))
        with of_disk(self._directory), self._opened().transaction() as store:
            store.clear_intent(epoch=self._epoch, intent=intent, schema_version=schema_version)
            # Files that are complete now may have bytes of an earlier attempt.
            for slot, before in self._notes.current.items():
                if current[slot].number > before.number:
                    self._files.cut_back(before)
            store.document.notes = self._format.notes_value(notes)
        self._notes, self.commit_ts = notes, intent.until_ts
        crash_point("file.committed")
        self._rename()
        remove_parts(self._directory, self._slot_writer(intent).stem)

    def interrupt(self) -> None:
        """Do nothing: this destination never waits."""

    def close(self, *, clean: bool) -> None:
        if self._housekeeping is not None:
            self._housekeeping.close()
            self._housekeeping = None
        if self._position is not None:
            self._position.close()
            self._position = None

    def _check(self, after_ts: int, until_ts: int) -> None:
        """Check epoch and position before another drainer's files could be changed. Raises Fenced and PositionMoved."""
        with self._opened().transaction() as store:
            stored = store.read()
            wanted = (self._epoch, after_ts, None)
            if stored is None or (stored.epoch, stored.commit_ts, stored.intent) != wanted:
                raise refusal(store, epoch=self._epoch, after_ts=after_ts, until_ts=until_ts)
        self._rename()

    def _rename(self) -> None:
        """Rename committed parts, then remove the record of the renames: complete files may be moved away afterwards,
        and a start must not look for them. Raises Fenced."""
        if self._notes.renames:
            renamed = replace(self._notes, renames=())
            with self._opened().transaction() as store:
                store.hold(self._epoch)
                rename_parts(self._directory, self._notes.renames)
                store.document.notes = self._format.notes_value(renamed)
            self._notes = renamed

    def _appender(self) -> Appender:
        return Appender(self._files, dict(self._notes.current), self._rotation, self._clock_s)

    def _record(
        self,
        notes: Notes,
        after_ts: int,
        until_ts: int,
        schema_version: int,
        *,
        done: int = 0,
        loaded: tuple[int, int, int] | None = None,
    ) -> None:
        """Write the position and the committed lengths of the files to position.json at once. `done`: a job's id;
        `loaded`: see Pieces."""
        with self._opened().transaction() as store:
            store.move(epoch=self._epoch, after_ts=after_ts, until_ts=until_ts, schema_version=schema_version)
            if done:
                store.mark_job(JobMark(done, DONE, until_ts))
                purge_old_jobs(store, done, until_ts)
            if loaded is not None and not store.step_load(*loaded):
                raise PositionMoved(f"{store.label}: range {loaded[2]} of table {loaded[0]} is loaded already")
            store.document.notes = self._format.notes_value(notes)
        self._notes, self.commit_ts = notes, until_ts
        self._tidy()

    def _tidy(self) -> None:
        """Complete the current file if the next one is due, although nothing has arrived for the next one yet."""
        if self._housekeeping is None:
            return
        current = self._notes.current.get(0, Current())
        if self._rotation.is_due(current, int(self._clock_s() * 1000)):
            self._files.repair({0: current})
            current = Current(current.number + 1)
            notes = replace(self._notes, current={0: current})
            # The schema version of the start is not above the recorded one, which never goes back.
            self._record(notes, self.commit_ts, self.commit_ts, self._schema_version)
            return
        self._housekeeping.wake(current.number)

    def _opened(self) -> PositionFile:
        assert self._position is not None, "open() comes first"
        return self._position


def make(to: FileSection, syncer: SyncerSettings) -> FileSink:
    zone = UTC if to.time_zone == "UTC" else ZoneInfo(to.time_zone)
    format_: FileFormat = PbFormat(zone, compresses=to.compression == "gzip") if to.format == "pb" else ParquetFormat()
    rotation = Rotation(to.rotate_bytes, int(to.rotate_interval / timedelta(milliseconds=1)))
    return FileSink(Path(to.dir), format_, rotation=rotation, retention=to.retention_time)


def make_jsonl(to: JsonlSection, syncer: SyncerSettings) -> FileSink:
    return FileSink(Path(to.path), JsonlFormat(to.files), rotation=Rotation(to.rotate_bytes), distributed=True)
