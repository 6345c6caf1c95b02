"""An SQLite file as a destination: its settings, and how it is opened alone, with a lock file beside it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from binlog.errors import ConfigError
from binlog.runtime.crashpoint import crash_point
from pydantic import Field

from drainer.sink.document_position import lock
from drainer.sink.errors import DestinationDown, DestinationRefused
from drainer.sink.settings import ToSection

# `[syncer.to]` of a SQLite file.


class SQLiteSection(ToSection):
    """The file's path."""

    path: str = Field("", description="the database file; created if missing")

    def address(self) -> str:
        return f"sqlite:{Path(self.path).absolute()}"

    def check(self) -> None:
        if not self.path:
            raise ConfigError("syncer.to.path: a sqlite destination needs the path of its file")


BUSY_MS: Final = 30_000
# Other processes may read the file at any time. Another writer is not waited for.
_SETTINGS: Final = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    f"PRAGMA busy_timeout={BUSY_MS}",
    "PRAGMA foreign_keys=OFF",
)


class SQLiteFile:
    """The file and its lock. Open until `close`. Raises LockHeld and DestinationRefused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = lock(path)
        try:
            self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            for setting in _SETTINGS:
                self.connection.execute(setting)
        except sqlite3.DatabaseError as error:
            os.close(self._lock)
            raise DestinationRefused(f"{path} cannot be used as an SQLite file: {error}") from error

    def transaction(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        return transaction(self.connection, self.path)

    def close(self) -> None:
        self.connection.close()
        os.close(self._lock)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, path: Path) -> Iterator[sqlite3.Connection]:
    """BEGIN IMMEDIATE … COMMIT; rolls back when the body raises. Raises DestinationDown when the file is busy for long
    or the disk refuses."""
    try:
        connection.execute("BEGIN IMMEDIATE")  # no other writer until it ends
        yield connection
        crash_point("sink.before_commit")
        connection.execute("COMMIT")
    except BaseException as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.DatabaseError):
            raise DestinationDown(f"{path}: {error}") from error
        raise
    crash_point("sink.after_commit")
