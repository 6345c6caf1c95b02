"""An SQLite file as a check and a repair need it, to which the drainer may write meanwhile. See
sink.snapshot.DestinationSnapshot."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from drainer.batch.work import SegmentWork
from drainer.row.codec import Codec
from drainer.schema.view import TableVersions
from drainer.sink.base import Verification
from drainer.sink.errors import DestinationRefused, SchemaMoved
from drainer.sink.mysql.rows.format import string_literal
from drainer.sink.position import SqlPositionStore
from drainer.sink.snapshot import PackedRows, SchemaDifference, Transaction, settled
from drainer.sink.sqlite import rows
from drainer.sink.sqlite.ddl import sqlite_differences
from drainer.sink.sqlite.file import BUSY_MS, transaction
from drainer.sink.sqlite.format import SQLITE_VALUES
from drainer.sink.sqlite.layout import quote, table_name

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
