"""Where the SQLite file stands: the same rows as in a server (drainer/sink/mysql/position.py), in the same file."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Final

from drainer.sink.base import Identity
from drainer.sink.errors import Fenced, PositionMoved
from drainer.sink.sqlite.layout import quote, table_name

POSITION: Final = quote(table_name("tidb_binlog", "drainer_position"))
JOBS: Final = quote(table_name("tidb_binlog", "drainer_ddl"))
_KEPT_JOBS: Final = 1000

_TABLES: Final = (
    f"CREATE TABLE IF NOT EXISTS {POSITION} (cluster_id INTEGER NOT NULL, changefeed TEXT NOT NULL, "
    "commit_ts INTEGER NOT NULL, schema_version INTEGER NOT NULL, epoch INTEGER NOT NULL, node_id TEXT NOT NULL, "
    "PRIMARY KEY (cluster_id, changefeed))",
    f"CREATE TABLE IF NOT EXISTS {JOBS} (cluster_id INTEGER NOT NULL, changefeed TEXT NOT NULL, "
    "job_id INTEGER NOT NULL, commit_ts INTEGER NOT NULL, PRIMARY KEY (cluster_id, changefeed, job_id))",
)


@dataclass(frozen=True, slots=True)
class Stored:
    """A row of drainer_position."""

    commit_ts: int
    schema_version: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Feed:
    """A changefeed's rows. A cluster id is unsigned and SQLite's integers are not: it is stored as its signed twin."""

    identity: Identity

    @property
    def key(self) -> tuple[int, str]:
        unsigned = self.identity.cluster_id
        return (unsigned - (1 << 64) if unsigned >= 1 << 63 else unsigned, self.identity.changefeed)

    @property
    def label(self) -> str:
        return f"changefeed {self.identity.changefeed!r} of cluster {self.identity.cluster_id}"


def create_tables(connection: sqlite3.Connection) -> None:
    for text in _TABLES:
        connection.execute(text)


def read(connection: sqlite3.Connection, feed: Feed) -> Stored | None:
    row = connection.execute(
        f"SELECT commit_ts, schema_version, epoch FROM {POSITION} WHERE cluster_id=? AND changefeed=?", feed.key
    ).fetchone()
    return Stored(*row) if row else None


def create(connection: sqlite3.Connection, feed: Feed, commit_ts: int) -> Stored:
    connection.execute(f"INSERT INTO {POSITION} VALUES (?,?,?,0,0,'')", (*feed.key, commit_ts))
    return Stored(commit_ts, 0, 0)


def take_epoch(connection: sqlite3.Connection, feed: Feed, epoch: int) -> int:
    connection.execute(
        f"UPDATE {POSITION} SET epoch=?, node_id=? WHERE cluster_id=? AND changefeed=?",
        (epoch + 1, feed.identity.node_id, *feed.key),
    )
    return epoch + 1


def move(
    connection: sqlite3.Connection, feed: Feed, *, epoch: int, after_ts: int, until_ts: int, schema_version: int
) -> None:
    """The fence of every transaction. Raises Fenced or PositionMoved."""
    changed = connection.execute(
        f"UPDATE {POSITION} SET commit_ts=?, schema_version=max(schema_version,?) "
        "WHERE cluster_id=? AND changefeed=? AND epoch=? AND commit_ts=?",
        (until_ts, schema_version, *feed.key, epoch, after_ts),
    ).rowcount
    if changed == 1:
        return
    stored = read(connection, feed)
    if stored is not None and stored.epoch != epoch:
        raise Fenced(f"{feed.label}: another drainer has taken over (epoch {stored.epoch}, ours is {epoch})")
    at = stored.commit_ts if stored else "gone"
    raise PositionMoved(f"{feed.label}: ({after_ts}, {until_ts}] cannot be applied: its position is {at}")


def mark_job(connection: sqlite3.Connection, feed: Feed, job_id: int, commit_ts: int) -> None:
    connection.execute(f"INSERT OR REPLACE INTO {JOBS} VALUES (?,?,?,?)", (*feed.key, job_id, commit_ts))
    connection.execute(
        f"DELETE FROM {JOBS} WHERE cluster_id=? AND changefeed=? AND job_id<?", (*feed.key, job_id - _KEPT_JOBS)
    )


def job_done(connection: sqlite3.Connection, feed: Feed, job_id: int) -> bool:
    found = connection.execute(
        f"SELECT 1 FROM {JOBS} WHERE cluster_id=? AND changefeed=? AND job_id=?", (*feed.key, job_id)
    ).fetchone()
    return found is not None
