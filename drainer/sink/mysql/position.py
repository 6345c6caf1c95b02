"""The destination's own tables and the statements on them. Every function runs inside its caller's transaction.

`drainer_position`  one row a changefeed: where it stands, who holds it (epoch), what is being spread (intent)
`drainer_mark`      one row a (changefeed, range, phase, slot): chunks committed of chunks cut
`drainer_ddl`       one row a DDL job: running or done
`checkpoint`        the original's, one row a cluster: written for its tools, read only where the original wrote it
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from drainer.sink.base import Identity, Intent, Phase
from drainer.sink.errors import DestinationRefused, Fenced, PositionMoved
from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import Session
from drainer.sink.mysql.rows.statements import quote

_TABLES: Final = (
    b"CREATE TABLE IF NOT EXISTS %(schema)s.drainer_position ("
    b" cluster_id BIGINT UNSIGNED NOT NULL, changefeed VARCHAR(100) NOT NULL,"
    b" commit_ts BIGINT UNSIGNED NOT NULL, schema_version BIGINT NOT NULL,"
    b" epoch BIGINT UNSIGNED NOT NULL, node_id VARCHAR(255) NOT NULL, intent MEDIUMTEXT NULL,"
    b" PRIMARY KEY (cluster_id, changefeed)) DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin",
    b"CREATE TABLE IF NOT EXISTS %(schema)s.drainer_mark ("
    b" cluster_id BIGINT UNSIGNED NOT NULL, changefeed VARCHAR(100) NOT NULL,"
    b" until_ts BIGINT UNSIGNED NOT NULL, phase VARCHAR(8) NOT NULL, slot INT NOT NULL,"
    b" after_ts BIGINT UNSIGNED NOT NULL, epoch BIGINT UNSIGNED NOT NULL,"
    b" chunks_done INT NOT NULL, chunks_total INT NOT NULL,"
    b" PRIMARY KEY (cluster_id, changefeed, until_ts, phase, slot)) DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin",
    b"CREATE TABLE IF NOT EXISTS %(schema)s.drainer_ddl ("
    b" cluster_id BIGINT UNSIGNED NOT NULL, changefeed VARCHAR(100) NOT NULL, job_id BIGINT NOT NULL,"
    b" state VARCHAR(8) NOT NULL, commit_ts BIGINT UNSIGNED NOT NULL, schema_version BIGINT NOT NULL,"
    b" statement INT NOT NULL, plan LONGTEXT NOT NULL,"
    b" PRIMARY KEY (cluster_id, changefeed, job_id)) DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin",
    b"CREATE TABLE IF NOT EXISTS %(schema)s.%(checkpoint)s"
    b" (clusterID BIGINT UNSIGNED PRIMARY KEY, checkPoint MEDIUMTEXT)",
)


@dataclass(frozen=True, slots=True)
class Feed:
    """A changefeed's rows in these tables, as SQL."""

    schema: bytes
    checkpoint: bytes
    cluster_id: int
    name: bytes
    changefeed: str
    label: str

    @staticmethod
    def of(config: ServerConfig, identity: Identity, session: Session) -> Feed:
        return Feed(
            quote(config.schema),
            quote(config.checkpoint_table),
            identity.cluster_id,
            session.literal(identity.changefeed),
            identity.changefeed,
            f"changefeed {identity.changefeed!r} of cluster {identity.cluster_id} in {config.address}",
        )

    @property
    def where(self) -> bytes:
        return b"cluster_id=%d AND changefeed=%s" % (self.cluster_id, self.name)

    def table(self, name: str) -> bytes:
        return self.schema + b"." + quote(name)


@dataclass(frozen=True, slots=True)
class Stored:
    """A row of drainer_position."""

    commit_ts: int
    schema_version: int
    epoch: int
    node_id: str
    intent: Intent | None
    phase: Phase


def create_tables(session: Session, feed: Feed) -> None:
    session.execute(b"CREATE DATABASE IF NOT EXISTS " + feed.schema + b" DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin")
    for text in _TABLES:
        session.execute(text % {b"schema": feed.schema, b"checkpoint": feed.checkpoint})


def read(session: Session, feed: Feed) -> Stored | None:
    rows = session.query(
        b"SELECT commit_ts, schema_version, epoch, node_id, intent FROM %s WHERE %s"
        % (feed.table("drainer_position"), feed.where)
    )
    if not rows:
        return None
    commit_ts, schema_version, epoch, node_id, intent = rows[0]
    opened, phase = _parse_intent(feed, str(intent)) if intent is not None else (None, Phase.DIRECT)
    return Stored(int(commit_ts or 0), int(schema_version or 0), int(epoch or 0), str(node_id), opened, phase)


def _parse_intent(feed: Feed, text: str) -> tuple[Intent, Phase]:
    try:
        plan = json.loads(text)
        opened = Intent(
            after_ts=int(plan["after_ts"]),
            until_ts=int(plan["until_ts"]),
            slots=int(plan["slots"]),
            chunk_rows=int(plan["chunk_rows"]),
            hash_version=int(plan["hash_version"]),
            digest=str(plan["digest"]),
            pumps=tuple(str(node_id) for node_id in plan.get("pumps", ())),
            counts=tuple(int(count) for count in plan.get("counts", ())),
        )
        return opened, Phase(plan["phase"])
    except (ValueError, KeyError, TypeError) as error:
        raise DestinationRefused(
            f"{feed.label}: the open range in drainer_position was not written by this version of the drainer "
            f"({error!r}): {text!r}; start the one that wrote it once, to finish it"
        ) from error


def create(session: Session, feed: Feed, *, commit_ts: int, schema_version: int) -> None:
    """A first position with epoch 0; the epoch is taken as on every later start."""
    session.execute(
        b"INSERT INTO %s VALUES (%d,%s,%d,%d,0,'',NULL)"
        % (feed.table("drainer_position"), feed.cluster_id, feed.name, commit_ts, schema_version)
    )


def take_epoch(session: Session, feed: Feed, *, epoch: int, node_id: str) -> int:
    """Compare and swap (rule 15). Raises Fenced when somebody else was faster."""
    changed = session.execute(
        b"UPDATE %s SET epoch=%d, node_id=%s WHERE %s AND epoch=%d"
        % (feed.table("drainer_position"), epoch + 1, session.literal(node_id), feed.where, epoch)
    )
    if changed != 1:
        raise Fenced(f"{feed.label}: another drainer took it while this one was starting")
    return epoch + 1


def move(session: Session, feed: Feed, *, epoch: int, after_ts: int, until_ts: int, schema_version: int) -> None:
    """The fence of every transaction: from exactly after_ts, in our epoch, with no range open.

    The schema version never goes back (D-CP-05)."""
    changed = session.execute(
        b"UPDATE %s SET commit_ts=%d, schema_version=GREATEST(schema_version,%d)"
        b" WHERE %s AND epoch=%d AND commit_ts=%d AND intent IS NULL"
        % (feed.table("drainer_position"), until_ts, schema_version, feed.where, epoch, after_ts)
    )
    if changed != 1:
        raise refusal(session, feed, epoch=epoch, after_ts=after_ts, until_ts=until_ts)


def refusal(session: Session, feed: Feed, *, epoch: int, after_ts: int, until_ts: int) -> Fenced | PositionMoved:
    """Why a fenced statement changed nothing."""
    stored = read(session, feed)
    wanted = f"{feed.label}: ({after_ts}, {until_ts}] cannot be applied"
    if stored is None:
        return PositionMoved(f"{wanted}: its row is gone from drainer_position; restore it or start anew")
    if stored.epoch != epoch:
        return Fenced(f"{wanted}: drainer {stored.node_id!r} has taken over (epoch {stored.epoch}, ours is {epoch})")
    open_range = f", range {stored.intent} is open" if stored.intent else ""
    return PositionMoved(f"{wanted}: its position is {stored.commit_ts}{open_range}")


def hold(session: Session, feed: Feed, *, epoch: int) -> None:
    """Lock the position row and check that the epoch is ours, without moving it."""
    changed = session.execute(
        b"UPDATE %s SET epoch=epoch WHERE %s AND epoch=%d" % (feed.table("drainer_position"), feed.where, epoch)
    )
    if changed != 1:
        raise refusal(session, feed, epoch=epoch, after_ts=0, until_ts=0)


def write_intent(session: Session, feed: Feed, *, epoch: int, intent: Intent, phase: Phase) -> None:
    """Record what is about to be spread and in which phase it is; only from its after_ts, in our epoch."""
    text = json.dumps({**asdict(intent), "phase": phase.value})
    changed = session.execute(
        b"UPDATE %s SET intent=%s WHERE %s AND epoch=%d AND commit_ts=%d"
        % (feed.table("drainer_position"), session.literal(text), feed.where, epoch, intent.after_ts)
    )
    if changed != 1:
        raise refusal(session, feed, epoch=epoch, after_ts=intent.after_ts, until_ts=intent.until_ts)


def clear_intent(session: Session, feed: Feed, *, epoch: int, intent: Intent, schema_version: int) -> None:
    """The range is applied: move the position over it and close it."""
    changed = session.execute(
        b"UPDATE %s SET commit_ts=%d, schema_version=GREATEST(schema_version,%d), intent=NULL"
        b" WHERE %s AND epoch=%d AND commit_ts=%d AND intent IS NOT NULL"
        % (
            feed.table("drainer_position"),
            intent.until_ts,
            schema_version,
            feed.where,
            epoch,
            intent.after_ts,
        )
    )
    if changed != 1:
        raise refusal(session, feed, epoch=epoch, after_ts=intent.after_ts, until_ts=intent.until_ts)


def read_checkpoint(session: Session, feed: Feed) -> tuple[int, int, bool] | None:
    """What the original's drainer left: (commit_ts, schema_version, consistent); None where there is no row, or ours.

    A row of ours names its changefeed, which the original neither reads nor writes. Rows of ours from before that key
    are told by a position of another changefeed: whoever deletes a position starts anew, and a second changefeed does
    not begin where the first one stands. Raises DestinationRefused when the row is not upstream's JSON."""
    rows = session.query(
        b"SELECT checkPoint FROM %s.%s WHERE clusterID=%d" % (feed.schema, feed.checkpoint, feed.cluster_id)
    )
    if not rows:
        return None
    try:
        value = json.loads(str(rows[0][0]))
        if "changefeed" in value or _has_positions(session, feed):
            return None
        return int(value["commitTS"]), int(value.get("schema-version", 0)), bool(value.get("consistent"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DestinationRefused(
            f"{feed.label}: the row of the table checkpoint is not upstream's JSON ({error!r}): {rows[0][0]!r}"
        ) from error


def _has_positions(session: Session, feed: Feed) -> bool:
    return bool(
        session.query(
            b"SELECT 1 FROM %s WHERE cluster_id=%d LIMIT 1" % (feed.table("drainer_position"), feed.cluster_id)
        )
    )


def write_checkpoint(session: Session, feed: Feed, *, commit_ts: int, schema_version: int, consistent: bool) -> None:
    """The original's row with its keys in its order, and `changefeed`, by which `read_checkpoint` knows it as ours."""
    row = {
        "consistent": consistent,
        "commitTS": commit_ts,
        "ts-map": {},
        "schema-version": schema_version,
        "changefeed": feed.changefeed,
    }
    text = json.dumps(row, separators=(",", ":"))
    session.execute(
        b"REPLACE INTO %s.%s (clusterID, checkPoint) VALUES (%d,%s)"
        % (feed.schema, feed.checkpoint, feed.cluster_id, session.literal(text))
    )
