"""A SQLite file as a destination: rows, DDL and position of a step share one transaction, so a crash leaves no step
incomplete. Only the driver writes; batches are not distributed. A check and a repair read the file meanwhile."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from drainer.batch.work import Pieces, SegmentWork
from drainer.row.codec import Codec
from drainer.schema.steps import Ddl
from drainer.schema.view import TableVersions
from drainer.sink.base import (
    NO_QUESTION,
    FirstStart,
    Identity,
    Position,
    TableLoad,
    TableName,
    Verification,
    Wants,
)
from drainer.sink.errors import DestinationRefused, MissingRows, SchemaMoved
from drainer.sink.mysql.rows.format import string_literal
from drainer.sink.position import DONE, TABLES, JobMark, SqlPositionStore, Value, purge_old_jobs, take_over
from drainer.sink.recycle_names import KEEP_MS_DEFAULT
from drainer.sink.settings import SyncerSettings
from drainer.sink.snapshot import PackedRows, SchemaDifference, Transaction, settled
from drainer.sink.sqlite import ddl, rows
from drainer.sink.sqlite.ddl import RecycleBin, sqlite_differences
from drainer.sink.sqlite.file import BUSY_MS, SQLiteFile, SQLiteSection, transaction
from drainer.sink.sqlite.format import SQLITE_VALUES
from drainer.sink.sqlite.rows import quote, table_name

_BLOCK_ROWS: Final = 500  # of which each may have megabytes


class FileSnapshot:
    """See sink.snapshot.DestinationSnapshot. Reads through one connection's transaction."""

    format: Final = SQLITE_VALUES

    def __init__(self, path: Path, store: Callable[[sqlite3.Connection], SqlPositionStore]) -> None:
        """`store`: the position, in a connection's transaction. Raises DestinationRefused."""
        self._path, self._store = path, store
        try:
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("BEGIN")
            stored = settled(store(self._connection))
        except sqlite3.DatabaseError as error:
            raise DestinationRefused(f"{path} is not the SQLite file of a drainer: {error}") from error
        self.commit_ts, self.schema_version = stored.commit_ts, stored.schema_version

    def job_done(self, job_id: int) -> bool:
        return self._store(self._connection).job(job_id) is not None

    def schema_differences(self, tables: Iterable[TableVersions]) -> list[SchemaDifference]:
        return list(sqlite_differences(self._connection, tables))

    def rows(self, codec: Codec) -> Iterator[PackedRows]:
        return _packed(self._connection, codec)

    def schema_moved(self) -> bool:
        return False  # the connection's transaction does not see it

    def key_literals(self, keys: Sequence[bytes]) -> list[bytes]:
        return [b"(" + b",".join(map(_literal, SQLITE_VALUES.unpack(key))) + b")" for key in keys]

    def transact(self, body: Callable[[Transaction], None]) -> None:
        with self._transaction() as connection:
            stored = settled(self._store(connection))
            if stored.schema_version != self.schema_version:
                raise SchemaMoved(f"{self._path}: a DDL ran since the check began")
            body(_FileTransaction(connection, stored.commit_ts))

    def record(self, found: Sequence[Verification], known: Container[int]) -> None:
        with self._transaction() as connection:
            self._store(connection).put_verifications(found, known)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
            with transaction(connection, self._path):
                yield connection

    def close(self) -> None:
        self._connection.close()


@dataclass
class _FileTransaction:
    connection: sqlite3.Connection
    commit_ts: int

    def rows(self, codec: Codec) -> Iterator[PackedRows]:
        return _packed(self.connection, codec)

    def with_keys(self, codec: Codec, keys: Sequence[bytes]) -> Iterator[PackedRows]:
        match = " AND ".join(f"{quote(codec.shape.columns[at])}=? COLLATE BINARY" for at in codec.shape.key)
        for key in keys:
            yield from _packed(self.connection, codec, f" WHERE {match}", SQLITE_VALUES.unpack(key))

    def write(self, work: SegmentWork) -> None:
        rows.write(self.connection, work)


def _packed(
    connection: sqlite3.Connection, codec: Codec, where: str = "", values: Sequence[Any] = ()
) -> Iterator[PackedRows]:
    shape = codec.shape
    columns = ", ".join(map(quote, shape.columns))
    query = f"SELECT {columns} FROM {quote(table_name(shape.schema, shape.table))}{where}"
    try:
        cursor = connection.execute(query, values)
        while found := cursor.fetchmany(_BLOCK_ROWS):
            packed = pa.array([SQLITE_VALUES.pack(row) for row in found], pa.binary())
            keys = [SQLITE_VALUES.pack(tuple(row[at] for at in shape.key)) for row in found] if shape.key else None
            yield PackedRows(packed if keys is None else pa.array(keys, pa.binary()), packed)
    except sqlite3.DatabaseError as error:
        raise DestinationRefused(f"{shape.schema}.{shape.table} of the destination cannot be read: {error}") from error


def _literal(value: object) -> bytes:
    """As TiDB reads it."""
    if isinstance(value, str | bytes):
        return string_literal(value.encode() if isinstance(value, str) else value)
    return str(value).encode()


# The position of a SQLite file, in the same tables as in a server (drainer/sink/position.py), in the file itself.

_NAMES: Final = {name: quote(table_name("tidb_binlog", name)) for name in TABLES}


@dataclass(frozen=True, slots=True)
class _Tables:
    """See position.Tables."""

    connection: sqlite3.Connection

    def execute(self, text: str, values: Sequence[Value]) -> int:
        return self.connection.execute(text.format_map(_NAMES), tuple(values)).rowcount

    def query(self, text: str, values: Sequence[Value]) -> Sequence[Sequence[Any]]:
        return self.connection.execute(text.format_map(_NAMES), tuple(values)).fetchall()


def position_store(connection: sqlite3.Connection, identity: Identity) -> SqlPositionStore:
    """In the connection's transaction. A cluster id is unsigned and SQLite's integers are not: it is stored as its
    signed twin."""
    unsigned, changefeed = identity.cluster_id, identity.changefeed
    key = (unsigned - (1 << 64) if unsigned >= 1 << 63 else unsigned, changefeed)
    return SqlPositionStore(_Tables(connection), f"changefeed {changefeed!r} of cluster {unsigned}", key)


def create_tables(connection: sqlite3.Connection) -> None:
    for name, columns in TABLES.items():
        connection.execute(f"CREATE TABLE IF NOT EXISTS {_NAMES[name]} {columns}")


def make(to: SQLiteSection, syncer: SyncerSettings) -> SQLiteSink:
    return SQLiteSink(Path(to.path), recycle_keep_ms=syncer.recycle_keep_ms)


class SQLiteSink:
    """See base.NetSink and snapshot.ReadsTables. Closed until `open`."""

    wants: Final = Wants.NET
    derives_ddl: Final = True
    parallel: Final = None
    format: Final = SQLITE_VALUES

    def __init__(self, path: Path, *, recycle_keep_ms: int = KEEP_MS_DEFAULT) -> None:
        self._path = path
        self.name = f"sqlite:{path}"
        self._keep_ms = recycle_keep_ms
        self._bin: RecycleBin
        self._file: SQLiteFile | None = None
        self._identity: Identity
        self._epoch = 0
        self.commit_ts = 0
        self._missing = MissingRows()

    def open(self, identity: Identity, initial_ts: int, first: FirstStart = NO_QUESTION) -> Position:
        file = self._file = SQLiteFile(self._path)
        self._identity = identity
        self._bin = RecycleBin(identity, self._keep_ms)
        with file.transaction() as connection:
            create_tables(connection)
            store = position_store(connection, identity)
            there = _tables_there(connection, first.tables)
            self._epoch, position = take_over(store, identity.node_id, initial_ts, first, there)
            position = replace(position, verifications=tuple(store.verifications()))
        self.commit_ts = position.commit_ts
        return position

    def apply(self, work: SegmentWork, schema_version: int) -> None:
        self.apply_pieces(Pieces(work.after_ts, work.until_ts, lambda: (work,)), schema_version)

    def apply_pieces(self, pieces: Pieces[SegmentWork], schema_version: int) -> None:
        with self._opened().transaction() as connection:
            self._move(connection, pieces.after_ts, pieces.until_ts, schema_version)
            store = position_store(connection, self._identity)
            if pieces.loaded is not None and not store.step_load(*pieces.loaded):
                return
            for work in pieces.works():
                rows.write(connection, work, self._missing)
        self.commit_ts = pieces.until_ts

    def ddl(self, step: Ddl, *, may_exist: bool = False) -> None:
        with self._opened().transaction() as connection:
            self._move(connection, self.commit_ts, step.commit_ts, step.job.schema_version)
            store = position_store(connection, self._identity)
            if store.job(step.job.id) is None:
                ddl.run(connection, step, self._bin, may_exist=may_exist)
                store.mark_job(JobMark(step.job.id, DONE, step.commit_ts))
                purge_old_jobs(store, step.job.id, step.commit_ts)
        self.commit_ts = step.commit_ts

    def advance(self, commit_ts: int, schema_version: int) -> None:
        if commit_ts == self.commit_ts:
            return
        with self._opened().transaction() as connection:
            self._move(connection, self.commit_ts, commit_ts, schema_version)
        self.commit_ts = commit_ts

    def loads(self) -> list[TableLoad]:
        return position_store(self._opened().connection, self._identity).loads()

    def put_loads(self, loads: Sequence[TableLoad], done: TableLoad | None = None) -> None:
        with self._opened().transaction() as connection:
            position_store(connection, self._identity).put_loads(self._epoch, loads, done)

    def snapshot(self, identity: Identity) -> FileSnapshot:
        return FileSnapshot(self._path, lambda connection: position_store(connection, identity))

    def job_done(self, job_id: int) -> bool:
        return position_store(self._opened().connection, self._identity).job(job_id) is not None

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
        position_store(connection, self._identity).move(
            epoch=self._epoch,
            after_ts=after_ts,
            until_ts=until_ts,
            schema_version=schema_version,
        )
        self._bin.purge(connection, until_ts)


def _tables_there(connection: sqlite3.Connection, wanted: Sequence[TableName]) -> list[TableName]:
    names = {str(name).lower() for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    return [(schema, table) for schema, table in wanted if table_name(schema, table).lower() in names]
