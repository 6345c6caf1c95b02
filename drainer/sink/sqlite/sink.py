"""A SQLite file as a destination: rows, DDL and position of a step share one transaction, so a crash leaves no step
incomplete. Only the driver writes; batches are not distributed."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from drainer.batch.work import Pieces, SegmentWork
from drainer.schema.steps import Ddl
from drainer.sink.base import (
    NO_QUESTION,
    Applied,
    FirstStart,
    Identity,
    ParallelSink,
    Position,
    TableName,
    Wants,
)
from drainer.sink.missing_rows import MissingRows
from drainer.sink.position import Stored
from drainer.sink.recycle_names import KEEP_MS_DEFAULT
from drainer.sink.settings import SyncerSettings
from drainer.sink.sqlite import ddl, position, rows
from drainer.sink.sqlite.file import SQLiteFile
from drainer.sink.sqlite.format import SQLITE_VALUES
from drainer.sink.sqlite.layout import table_name
from drainer.sink.sqlite.recycle_bin import RecycleBin
from drainer.sink.sqlite.section import SQLiteSection


def make(to: SQLiteSection, syncer: SyncerSettings) -> SQLiteSink:
    """Return the sink, not opened yet."""
    return SQLiteSink(Path(to.path), recycle_keep_ms=syncer.recycle_keep_ms)


class SQLiteSink:
    """See base.NetSink. Closed until `open`."""

    wants: Final = Wants.NET
    format: Final = SQLITE_VALUES

    def __init__(self, path: Path, *, recycle_keep_ms: int = KEEP_MS_DEFAULT) -> None:
        self._path = path
        self._keep_ms = recycle_keep_ms
        self._bin: RecycleBin
        self._file: SQLiteFile | None = None
        self._identity: Identity
        self._epoch = 0
        self._commit_ts = 0
        self._missing = MissingRows()

    @property
    def name(self) -> str:
        return f"sqlite:{self._path}"

    @property
    def parallel(self) -> ParallelSink[SegmentWork] | None:
        return None

    @property
    def commit_ts(self) -> int:
        return self._commit_ts

    def open(self, identity: Identity, initial_ts: int, first: FirstStart = NO_QUESTION) -> Position:
        file = self._file = SQLiteFile(self._path)
        self._identity = identity
        self._bin = RecycleBin(identity, self._keep_ms)
        with file.transaction() as connection:
            position.create_tables(connection)
            store = position.store(connection, identity)
            stored = store.read()
            fresh = stored is None
            missing: tuple[TableName, ...] = ()
            if stored is None:
                missing = first.missing(_tables_there(connection, first.tables))
                stored = Stored(first.begin_ts(initial_ts, missing), 0, 0)
                store.create(stored.commit_ts)
            self._epoch = store.take_epoch(stored.epoch, identity.node_id)
        self._commit_ts = stored.commit_ts
        return Position(stored.commit_ts, stored.schema_version, None, fresh, missing=missing)

    def apply(self, work: SegmentWork, schema_version: int) -> Applied:
        return self.apply_pieces(Pieces(work.after_ts, work.until_ts, lambda: (work,)), schema_version)

    def apply_pieces(self, pieces: Pieces[SegmentWork], schema_version: int) -> Applied:
        with self._opened().transaction() as connection:
            self._move(connection, pieces.after_ts, pieces.until_ts, schema_version)
            written = sum(rows.write(connection, work, self._missing) for work in pieces.works())
        self._commit_ts = pieces.until_ts
        return Applied(written, written)

    def ddl(self, step: Ddl, *, may_exist: bool = False) -> None:
        with self._opened().transaction() as connection:
            self._move(connection, self._commit_ts, step.commit_ts, step.job.schema_version)
            store = position.store(connection, self._identity)
            if store.job(step.job.id) is None:
                ddl.run(connection, step, self._bin, may_exist=may_exist)
                position.mark_done(store, step.job.id, step.commit_ts)
        self._commit_ts = step.commit_ts

    def advance(self, commit_ts: int, schema_version: int) -> None:
        if commit_ts == self._commit_ts:
            return
        with self._opened().transaction() as connection:
            self._move(connection, self._commit_ts, commit_ts, schema_version)
        self._commit_ts = commit_ts

    def job_done(self, job_id: int) -> bool:
        return position.store(self._opened().connection, self._identity).job(job_id) is not None

    def interrupt(self) -> None:
        """Nothing here waits."""

    def close(self, *, clean: bool) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> SQLiteFile:
        assert self._file is not None, "open() comes first"
        return self._file

    def _move(self, connection: sqlite3.Connection, after_ts: int, until_ts: int, schema_version: int) -> None:
        position.store(connection, self._identity).move(
            epoch=self._epoch,
            after_ts=after_ts,
            until_ts=until_ts,
            schema_version=schema_version,
        )
        self._bin.purge(connection, until_ts)


def _tables_there(connection: sqlite3.Connection, wanted: Sequence[TableName]) -> list[TableName]:
    names = {str(name).lower() for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    return [(schema, table) for schema, table in wanted if table_name(schema, table).lower() in names]
