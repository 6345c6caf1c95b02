"""A directory of files, exactly once. The methods are in the order of drainer/sink/base.py.

Records are appended and synced first; then the position and the current file's length are recorded together. Bytes that
a crash leaves after that length are truncated at the next start. Records are in the order of the stream, so one writer,
the driver, writes all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, timedelta
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np
from binlog.runtime.directories import make_directory

from drainer.batch.work import Pieces
from drainer.changes.change_segment import ChangeSegment
from drainer.changes.decode import Changes
from drainer.changes.vector import Ints
from drainer.protocol.pb_file.records import parse_name
from drainer.schema.steps import Ddl
from drainer.sink.base import ADVANCE_EVERY_S, NO_QUESTION, Applied, ChangeSink, FirstStart, Identity, Position, Wants
from drainer.sink.document_position import DocumentPositionStore
from drainer.sink.errors import DestinationDown
from drainer.sink.file.appender import Appender, Current, Rotation, repair
from drainer.sink.file.fenced_directory import FencedDirectory
from drainer.sink.file.format import FileFormat
from drainer.sink.file.housekeeping import Housekeeping
from drainer.sink.file.parquet import ParquetFormat
from drainer.sink.file.pb import PbFormat
from drainer.sink.file.section import FileSection
from drainer.sink.position import DONE, JobMark, purge_old_jobs
from drainer.sink.settings import SyncerSettings


def make(to: FileSection, syncer: SyncerSettings) -> ChangeSink:
    """Return the sink, not opened yet."""
    zone = UTC if to.time_zone == "UTC" else ZoneInfo(to.time_zone)
    format_: FileFormat = PbFormat(zone, compresses=to.compression == "gzip") if to.format == "pb" else ParquetFormat()
    rotation = Rotation(to.rotate_bytes, int(to.rotate_interval / timedelta(milliseconds=1)))
    return FileSink(Path(to.dir), format_, rotation=rotation, retention=to.retention_time)


class OneSlot:
    """See base.Slotting. All changes are one stream."""

    version = 1
    count = 1
    is_fixed = True

    def slots_of(self, changes: Changes, slots: int) -> Sequence[Ints]:
        return (np.zeros(len(changes), np.int64),)


class FileSink:
    """See base.ChangeSink. Closed until `open`."""

    wants: Final = Wants.CHANGES
    advance_s: Final = ADVANCE_EVERY_S

    def __init__(
        self,
        directory: Path,
        format_: FileFormat,
        *,
        rotation: Rotation,
        retention: timedelta = timedelta(0),
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory.absolute()
        self._records = format_.records_directory(self._directory)
        self._format = format_
        self._rotation = rotation
        self._retention = retention
        self._clock_s = clock_s
        self._fence: FencedDirectory | None = None
        self._housekeeping: Housekeeping | None = None
        self._commit_ts = 0

    @property
    def name(self) -> str:
        return f"file:{self._directory}"

    @property
    def slotting(self) -> OneSlot:
        return OneSlot()

    @property
    def stored_generated(self) -> bool:
        return self._format.stored_generated

    @property
    def parallel(self) -> None:
        """Return None: files are one ordered stream, which only the driver writes."""
        return None

    @property
    def commit_ts(self) -> int:
        return self._fence.commit_ts if self._fence is not None else self._commit_ts

    def open(self, identity: Identity, initial_ts: int, first: FirstStart = NO_QUESTION) -> Position:
        try:
            self._fence = FencedDirectory(self._directory, identity, initial_ts, first, self._occupied)
            make_directory(self._records)
            repair(self._records, Current.of(self._fence.notes))
        except OSError as error:
            self.close(clean=False)
            raise DestinationDown(f"{self._directory}: {error}") from error
        except BaseException:
            self.close(clean=False)
            raise
        self._housekeeping = Housekeeping(self._directory, self._format, self._retention, self._clock_s)
        self._tidy()
        return self._fence.position

    def _occupied(self) -> Path | None:
        if not self._records.is_dir():
            return None
        return next((path for path in sorted(self._records.iterdir()) if parse_name(path.name) is not None), None)

    def apply(self, segment: ChangeSegment, schema_version: int) -> Applied:
        return self.apply_pieces(Pieces(segment.after_ts, segment.until_ts, lambda: (segment,)), schema_version)

    def apply_pieces(self, pieces: Pieces[ChangeSegment], schema_version: int) -> Applied:
        fence = self._opened()
        fence.check(pieces.after_ts, pieces.until_ts)
        rows = 0
        with self._appender() as appender:
            writer = self._format.writer(self._records, appender.put)
            try:
                for segment in pieces.works():
                    writer.add(segment)
                    rows += segment.change_count
                writer.finish()
            except OSError as error:
                raise DestinationDown(f"{self._directory}: {error}") from error
            finally:
                writer.abandon()
            notes = self._noted(appender.finish())
        fence.record(notes, pieces.after_ts, pieces.until_ts, schema_version)
        self._tidy()
        return Applied(rows, rows)

    def ddl(self, step: Ddl, *, may_exist: bool = False) -> None:
        fence = self._opened()
        fence.check(fence.commit_ts, step.commit_ts)

        def mark(store: DocumentPositionStore) -> None:
            store.mark_job(JobMark(step.job.id, DONE, step.commit_ts))
            purge_old_jobs(store, step.job.id, step.commit_ts)

        with self._appender() as appender:
            for payload in self._format.ddl(step):
                appender.put((payload,), len(payload))
            notes = self._noted(appender.finish())
        fence.record(notes, fence.commit_ts, step.commit_ts, step.job.schema_version, mark)
        self._tidy()

    def advance(self, commit_ts: int, schema_version: int) -> None:
        fence = self._opened()
        if commit_ts != fence.commit_ts:
            fence.record(fence.notes, fence.commit_ts, commit_ts, schema_version)
        self._tidy()

    def job_done(self, job_id: int) -> bool:
        return self._opened().job_done(job_id)

    def interrupt(self) -> None:
        """Do nothing: this destination never waits."""

    def close(self, *, clean: bool) -> None:
        if self._housekeeping is not None:
            self._housekeeping.close()
            self._housekeeping = None
        if self._fence is not None:
            self._commit_ts = self._fence.commit_ts
            self._fence.close()
            self._fence = None

    def settle(self) -> None:
        """Wait until files that are complete now are compressed or converted."""
        if self._housekeeping is not None:
            self._housekeeping.settle()

    def _appender(self) -> Appender:
        return Appender(self._records, Current.of(self._opened().notes), self._rotation, self._clock_s)

    def _noted(self, current: Current) -> dict[str, object]:
        return {"current": current.value()}

    def _tidy(self) -> None:
        """Complete the current file if the next one is due, although no record has arrived for the next one yet."""
        fence = self._opened()
        current = Current.of(fence.notes)
        if self._rotation.is_due(current, int(self._clock_s() * 1000)):
            repair(self._records, current)
            current = Current(current.number + 1)
            version = fence.position.schema_version  # not above the recorded one, which never goes back
            fence.record(self._noted(current), fence.commit_ts, fence.commit_ts, version)
        assert self._housekeeping is not None, "open() comes first"
        self._housekeeping.wake(current.number)

    def _opened(self) -> FencedDirectory:
        assert self._fence is not None, "open() comes first"
        return self._fence
