"""The position of a SQLite file, in the same tables as in a server (drainer/sink/sql_position.py), in the file
itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from drainer.sink.base import Identity
from drainer.sink.position import DONE, JobMark, PositionStore, purge_old_jobs
from drainer.sink.sql_position import SqlPositionStore, Value
from drainer.sink.sqlite.layout import quote, table_name

POSITION: Final = quote(table_name("tidb_binlog", "drainer_position"))
MARKS: Final = quote(table_name("tidb_binlog", "drainer_mark"))
JOBS: Final = quote(table_name("tidb_binlog", "drainer_ddl"))
_NAMES: Final = {"drainer_position": POSITION, "drainer_mark": MARKS, "drainer_ddl": JOBS}

_TABLES: Final = (
    f"CREATE TABLE IF NOT EXISTS {POSITION} (cluster_id INTEGER NOT NULL, changefeed TEXT NOT NULL, "
    "commit_ts INTEGER NOT NULL, schema_version INTEGER NOT NULL, epoch INTEGER NOT NULL, node_id TEXT NOT NULL, "
    "intent TEXT, PRIMARY KEY (cluster_id, changefeed))",
    f"CREATE TABLE IF NOT EXISTS {MARKS} (cluster_id INTEGER NOT NULL, changefeed TEXT NOT NULL, "
    "until_ts INTEGER NOT NULL, phase TEXT NOT NULL, slot INTEGER NOT NULL, after_ts INTEGER NOT NULL, "
    "epoch INTEGER NOT NULL, chunks_done INTEGER NOT NULL, chunks_total INTEGER NOT NULL, "
    "PRIMARY KEY (cluster_id, changefeed, until_ts, phase, slot))",
    f"CREATE TABLE IF NOT EXISTS {JOBS} (cluster_id INTEGER NOT NULL, changefeed TEXT NOT NULL, "
    "job_id INTEGER NOT NULL, state TEXT NOT NULL, commit_ts INTEGER NOT NULL, schema_version INTEGER NOT NULL, "
    "statement INTEGER NOT NULL, plan TEXT NOT NULL, PRIMARY KEY (cluster_id, changefeed, job_id))",
)


@dataclass(frozen=True, slots=True)
class _Tables:
    """See sql_position.Tables. A cluster id is unsigned and SQLite's integers are not: it is stored as its signed
    twin."""

    connection: sqlite3.Connection
    identity: Identity
    insert_new: str = "INSERT OR IGNORE"

    @property
    def label(self) -> str:
        return f"changefeed {self.identity.changefeed!r} of cluster {self.identity.cluster_id}"

    @property
    def key(self) -> tuple[int, str]:
        unsigned = self.identity.cluster_id
        return (unsigned - (1 << 64) if unsigned >= 1 << 63 else unsigned, self.identity.changefeed)

    def execute(self, text: str, values: Sequence[Value]) -> int:
        return self.connection.execute(text.format_map(_NAMES), tuple(values)).rowcount

    def query(self, text: str, values: Sequence[Value]) -> Sequence[Sequence[Any]]:
        return self.connection.execute(text.format_map(_NAMES), tuple(values)).fetchall()


def store(connection: sqlite3.Connection, identity: Identity) -> SqlPositionStore:
    """In the connection's transaction."""
    return SqlPositionStore(_Tables(connection, identity))


def create_tables(connection: sqlite3.Connection) -> None:
    for text in _TABLES:
        connection.execute(text)


def mark_done(store: PositionStore, job_id: int, commit_ts: int) -> None:
    """A job's statements are in the same transaction, so it is never half-way."""
    store.mark_job(JobMark(job_id, DONE, commit_ts))
    purge_old_jobs(store, job_id, commit_ts)
