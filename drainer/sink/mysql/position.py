"""The destination's own tables: those of drainer/sink/position.py, one for distributed batches, and the original's.

`drainer_mark`      one row per (changefeed, range, phase, slot): number of chunks, and how many are committed
`checkpoint`        the original's, one row a cluster: written for its tools, read only where the original wrote it
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from drainer.schema.filter import MARK_SCHEMA, MARK_TABLE
from drainer.sink.base import Identity, Intent
from drainer.sink.errors import DestinationRefused, Fenced, PositionMoved
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ServerSession
from drainer.sink.mysql.rows.format import qualified, quote
from drainer.sink.position import OURS, TABLES, ConsumerPosition, SqlPositionStore, Value, definition

_RANGE: Final = f"{OURS} AND until_ts=? AND phase=?"
_TABLES: Final = TABLES | {
    "drainer_mark": definition(
        "until_ts BIGINT UNSIGNED NOT NULL, phase VARCHAR(8) NOT NULL, slot INT NOT NULL, "
        "after_ts BIGINT UNSIGNED NOT NULL, epoch BIGINT UNSIGNED NOT NULL, chunks_done INT NOT NULL, "
        "chunks_total INT NOT NULL",
        *("until_ts", "phase", "slot"),
    )
}
_CHECKPOINT: Final = b"`checkpoint`"


@dataclass(frozen=True, slots=True)
class Changefeed:
    """A changefeed's rows in these tables, as SQL."""

    schema: bytes
    cluster_id: int
    name_literal: bytes
    name: str
    label: str

    @staticmethod
    def of(config: ServerConfig, identity: Identity, session: ServerSession) -> Changefeed:
        return Changefeed(
            quote(config.schema),
            identity.cluster_id,
            session.literal(identity.changefeed),
            identity.changefeed,
            f"changefeed {identity.changefeed!r} of cluster {identity.cluster_id} in {config.address}",
        )

    def job_mark(self, job_id: int) -> str:
        """The row of a DDL job's mark, for errors that tell an operator to change it."""
        return f"{self.table('drainer_ddl').decode()} WHERE {self.where.decode()} AND job_id={job_id}"

    @property
    def where(self) -> bytes:
        return b"cluster_id=%d AND changefeed=%s" % (self.cluster_id, self.name_literal)

    def table(self, name: str) -> bytes:
        return self.schema + b"." + quote(name)


@dataclass(frozen=True, slots=True)
class _Tables:
    """See position.Tables."""

    session: ServerSession
    changefeed: Changefeed

    def execute(self, text: str, values: Sequence[Value]) -> int:
        return self.session.execute(self._text(text, values))

    def query(self, text: str, values: Sequence[Value]) -> Sequence[Sequence[Any]]:
        return self.session.query(self._text(text, values))

    def _text(self, text: str, values: Sequence[Value]) -> bytes:
        tables = {name: self.changefeed.table(name).decode() for name in _TABLES}
        return self.session.bound(text, values, tables)


@dataclass(frozen=True, slots=True)
class ChunkMark:
    """The mark of a slot: `done` of its `total` chunks are committed. `total` is 0 until the first one is."""

    epoch: int
    done: int
    total: int


class ServerPositionStore(SqlPositionStore):
    """Also counts the chunks of each slot of an open range."""

    def open_chunks(self, *, epoch: int, intent: Intent, stage: str) -> None:
        """Set the epoch of every slot's mark of this stage, and create the marks that do not exist. Waits for open
        transactions of older attempts: they commit before this and are seen, or find no row afterwards."""
        range_ = (*self.key, intent.until_ts, stage)
        self.tables.execute(f"UPDATE {{drainer_mark}} SET epoch=? WHERE {_RANGE}", (epoch, *range_))
        rows = [(*range_, slot, intent.after_ts, epoch) for slot in range(intent.slots)]
        self.tables.execute(
            "INSERT IGNORE INTO {drainer_mark}"
            " (cluster_id, changefeed, until_ts, phase, slot, after_ts, epoch, chunks_done, chunks_total) VALUES "
            + ",".join(["(?,?,?,?,?,?,?,0,0)"] * len(rows)),
            [value for row in rows for value in row],
        )

    def chunk(self, *, intent: Intent, stage: str, slot: int) -> ChunkMark | None:
        rows = self.tables.query(
            f"SELECT epoch, chunks_done, chunks_total FROM {{drainer_mark}} WHERE {_RANGE} AND slot=?",
            (*self.key, intent.until_ts, stage, slot),
        )
        return ChunkMark(*(int(cell or 0) for cell in rows[0])) if rows else None

    def step_chunk(self, *, epoch: int, intent: Intent, stage: str, slot: int, chunk: int, total: int) -> bool:
        """Record chunk number `chunk` (from 0) of `total` as done. Return False and change nothing if it is not the
        next chunk in this epoch: an attempt of an older epoch, a second attempt of the same chunk, or a finished
        range."""
        found = self.tables.execute(
            f"UPDATE {{drainer_mark}} SET chunks_done=?, chunks_total=? WHERE {_RANGE}"
            " AND slot=? AND epoch=? AND chunks_done=? AND chunks_total IN (0,?)",
            (chunk + 1, total, *self.key, intent.until_ts, stage, slot, epoch, chunk, total),
        )
        return found == 1

    def unfinished(self, *, intent: Intent, stage: str) -> list[int]:
        """Return the slots of which some chunks, but not all, are done."""
        rows = self.tables.query(
            f"SELECT slot FROM {{drainer_mark}} WHERE {_RANGE} AND chunks_done<chunks_total ORDER BY slot",
            (*self.key, intent.until_ts, stage),
        )
        return [int(row[0] or 0) for row in rows]

    def purge_chunks(self, intent: Intent) -> None:
        """Remove the marks of a finished range, of all stages, and all older marks."""
        text = f"DELETE FROM {{drainer_mark}} WHERE {OURS} AND until_ts<=?"
        self.tables.execute(text, (*self.key, intent.until_ts))


def store(session: ServerSession, changefeed: Changefeed) -> ServerPositionStore:
    """In the session's transaction."""
    key = changefeed.cluster_id, changefeed.name
    return ServerPositionStore(_Tables(session, changefeed), changefeed.label, key)


def consumer_store(session: ServerSession, consumer: Changefeed) -> ConsumerPosition:
    """The same of a `kafka-consumer`, whose name is the changefeed's."""
    key = consumer.cluster_id, consumer.name
    return ConsumerPosition(_Tables(session, consumer), f"kafka-consumer {consumer.name!r}", key)


def expect(mark: ChunkMark | None, total: int, label: str, *, epoch: int, slot: int, intent: Intent) -> ChunkMark:
    """Return the mark. Raises Fenced if it has another epoch, and PositionMoved if this attempt divides the slot into
    another number of chunks, `total`, than the attempt before."""
    if mark is None or mark.epoch != epoch:
        held = "its marks are gone" if mark is None else f"its epoch is {mark.epoch}"
        raise Fenced(f"{label}: slot {slot} of ({intent.after_ts}, {intent.until_ts}] is not epoch {epoch}'s: {held}")
    if mark.total not in (0, total):
        raise PositionMoved(
            f"{label}: slot {slot} was cut into {mark.total} chunks before and into {total} now; the range must be "
            f"decoded, filtered and cut as its intent says"
        )
    return mark


def create_tables(session: ServerSession, changefeed: Changefeed) -> None:
    session.execute(
        b"CREATE DATABASE IF NOT EXISTS " + changefeed.schema + b" DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
    )
    for name, columns in _TABLES.items():
        session.execute(
            b"CREATE TABLE IF NOT EXISTS %s %s DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
            % (changefeed.table(name), columns.encode())
        )
    session.execute(
        b"CREATE TABLE IF NOT EXISTS %s.%s (clusterID BIGINT UNSIGNED PRIMARY KEY, checkPoint MEDIUMTEXT)"
        % (changefeed.schema, _CHECKPOINT)
    )


def read_checkpoint(session: ServerSession, changefeed: Changefeed) -> tuple[int, int, bool] | None:
    """Return the position that the original's drainer stored: (commit_ts, schema_version, consistent); None if there is
    no row, or if this drainer wrote it.

    Rows of this drainer contain the changefeed's name, a key that the original neither reads nor writes. So a
    changefeed whose position was deleted starts anew, and a second changefeed does not begin at the first one's
    position. Raises DestinationRefused if the row is not the original's JSON."""
    rows = session.query(
        b"SELECT checkPoint FROM %s.%s WHERE clusterID=%d" % (changefeed.schema, _CHECKPOINT, changefeed.cluster_id)
    )
    if not rows:
        return None
    try:
        value = json.loads(str(rows[0][0]))
        if "changefeed" in value:
            return None
        return int(value["commitTS"]), int(value.get("schema-version", 0)), bool(value.get("consistent"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DestinationRefused(
            f"{changefeed.label}: the row of the table checkpoint is not upstream's JSON ({error!r}): {rows[0][0]!r}"
        ) from error


def write_checkpoint(
    session: ServerSession, changefeed: Changefeed, *, commit_ts: int, schema_version: int, consistent: bool
) -> None:
    """The original's row with its keys in its order, and `changefeed`, by which `read_checkpoint` knows it as ours."""
    row = {
        "consistent": consistent,
        "commitTS": commit_ts,
        "ts-map": {},
        "schema-version": schema_version,
        "changefeed": changefeed.name,
    }
    text = json.dumps(row, separators=(",", ":"))
    session.execute(
        b"REPLACE INTO %s.%s (clusterID, checkPoint) VALUES (%d,%s)"
        % (changefeed.schema, _CHECKPOINT, changefeed.cluster_id, session.literal(text))
    )


# Marks the transactions that write rows, for the drainer of the other direction (loopback-control).
#
# The table is the original's: a row for each writer of a channel, whose `val` counts its transactions. The original
# inserts the rows when it starts, deletes them when it ends, and updates them in between. Here a row that is missing
# is inserted, and none is deleted: drainers of several clusters may have the same channel in one destination, and an
# update that finds no row would leave no mark.
DRIVER: Final = 0  # the driver's row; those of slots follow
_MARK_TABLE: Final = qualified(MARK_SCHEMA, MARK_TABLE)


def create_mark_table(session: ServerSession) -> None:
    """Create the table if it is missing. The user needs no right to create it where it is there."""
    found = session.query(
        b"SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s"
        % (session.literal(MARK_SCHEMA), session.literal(MARK_TABLE))
    )
    if found:
        return
    session.execute(b"CREATE DATABASE IF NOT EXISTS " + quote(MARK_SCHEMA))
    session.execute(
        b"CREATE TABLE IF NOT EXISTS %s (id BIGINT NOT NULL, channel_id BIGINT NOT NULL DEFAULT 0,"
        b" val BIGINT DEFAULT 0, channel_info VARCHAR(64), PRIMARY KEY (id, channel_id))" % _MARK_TABLE
    )


def mark(session: ServerSession, channel_id: int | None, writer: int) -> None:
    """Mark the session's transaction. `writer`: writers at work at the same time should differ, because each holds its
    row until its transaction ends. `channel_id`: None: no mark."""
    if channel_id is not None:
        session.execute(
            b"INSERT INTO %s (id, channel_id, val, channel_info) VALUES (%d,%d,1,'')"
            b" ON DUPLICATE KEY UPDATE val=val+1" % (_MARK_TABLE, writer, channel_id)
        )
