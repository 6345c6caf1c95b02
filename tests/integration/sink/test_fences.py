"""Every part of every compare-and-swap, one at a time (rules 15 to 17).

A statement that is right in all parts changes its own row and none of its neighbours'; one that is wrong in a single
part changes nothing. The neighbours are another cluster, another changefeed, another range, phase and slot: equal to
ours in everything else, so that a part that is missing from a WHERE is felt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict

import pytest

from drainer.sink.base import Identity, Intent, Phase
from drainer.sink.errors import Fenced, PositionMoved
from drainer.sink.mysql import chunk_progress, position
from drainer.sink.mysql.chunk_progress import Mark
from drainer.sink.mysql.connection import Session, connect
from drainer.sink.mysql.position import Feed
from tests.integration.sink.case import server_config
from tests.support.servers import MariaDB

pytestmark = pytest.mark.integration

EPOCH = 3
INTENT = Intent(100, 200, 2, 3, 1, "all", ("a",))
FEEDS = ((7, "main"), (8, "main"), (7, "other"))
OURS = FEEDS[0]
Row = tuple[object, ...]
Call = Callable[[Session, Feed], object]


@pytest.fixture(scope="module")
def tables(mariadb_server: MariaDB) -> Iterator[tuple[MariaDB, Session]]:
    """The drainer's own tables, made once."""
    mariadb_server.reset()
    opened = connect(server_config(mariadb_server), idle_s=600, read_timeout_s=20)
    position.create_tables(opened, feed_of(mariadb_server, opened, *OURS))
    yield mariadb_server, opened
    opened.close()


@pytest.fixture
def db(tables: tuple[MariaDB, Session]) -> MariaDB:
    """The same position for each of FEEDS, no marks."""
    server = tables[0]
    for name in ("drainer_position", "drainer_mark", "checkpoint"):
        server.query(f"DELETE FROM tidb_binlog.{name}")
    for cluster_id, changefeed in FEEDS:
        server.query("INSERT INTO tidb_binlog.drainer_position VALUES (%s,%s,100,5,3,'n',NULL)", cluster_id, changefeed)
    return server


@pytest.fixture
def session(tables: tuple[MariaDB, Session]) -> Session:
    return tables[1]


@pytest.fixture
def feed(db: MariaDB, session: Session) -> Feed:
    return feed_of(db, session, *OURS)


def feed_of(db: MariaDB, session: Session, cluster_id: int, changefeed: str) -> Feed:
    return Feed.of(server_config(db), Identity(cluster_id, changefeed, "n"), session)


def positions(db: MariaDB) -> dict[Row, Row]:
    rows = db.query(
        "SELECT cluster_id, changefeed, commit_ts, schema_version, epoch, node_id, intent IS NOT NULL "
        "FROM tidb_binlog.drainer_position"
    )
    return {row[:2]: row[2:] for row in rows}


def hold(session: Session, feed: Feed) -> object:
    return position.hold(session, feed, epoch=EPOCH)


def take_epoch(session: Session, feed: Feed) -> object:
    return position.take_epoch(session, feed, epoch=EPOCH, node_id="m")


def move(session: Session, feed: Feed) -> object:
    return position.move(session, feed, epoch=EPOCH, after_ts=100, until_ts=200, schema_version=6)


def write_intent(session: Session, feed: Feed) -> object:
    return position.write_intent(session, feed, epoch=EPOCH, intent=INTENT, phase=Phase.DELETE)


def clear_intent(session: Session, feed: Feed) -> object:
    return position.clear_intent(session, feed, epoch=EPOCH, intent=INTENT, schema_version=6)


EPOCH_TAKEN, MOVED, BEFORE, CLOSED = "epoch=4", "commit_ts=101", "commit_ts=99", "intent=NULL"
OPEN = f"intent='{json.dumps({**asdict(INTENT), 'phase': 'direct'})}'"
AS_IT_WAS = (100, 5, 3, "n", 0)
# What each may begin from, and what it then leaves in our row.
SWAPS: dict[str, tuple[Call, str, Row]] = {
    "hold": (hold, CLOSED, AS_IT_WAS),
    "take_epoch": (take_epoch, CLOSED, (100, 5, 4, "m", 0)),
    "move": (move, CLOSED, (200, 6, 3, "n", 0)),
    "write_intent": (write_intent, CLOSED, (100, 5, 3, "n", 1)),
    "clear_intent": (clear_intent, OPEN, (200, 6, 3, "n", 0)),
}
REFUSED = [
    ("hold", EPOCH_TAKEN, Fenced),
    ("take_epoch", EPOCH_TAKEN, Fenced),
    ("take_epoch", "epoch=2", Fenced),
    ("move", EPOCH_TAKEN, Fenced),
    ("move", MOVED, PositionMoved),
    ("move", BEFORE, PositionMoved),
    ("move", OPEN, PositionMoved),
    ("write_intent", EPOCH_TAKEN, Fenced),
    ("write_intent", MOVED, PositionMoved),
    ("clear_intent", EPOCH_TAKEN, Fenced),
    ("clear_intent", MOVED, PositionMoved),
    ("clear_intent", CLOSED, PositionMoved),
]


@pytest.mark.parametrize("name", SWAPS)
def test_a_swap_changes_its_own_row_alone(db: MariaDB, session: Session, feed: Feed, name: str) -> None:
    call, begin, wanted = SWAPS[name]
    db.query(f"UPDATE tidb_binlog.drainer_position SET {begin}")
    before = positions(db)
    call(session, feed)
    assert positions(db) == before | {OURS: wanted}


@pytest.mark.parametrize(("name", "wrong", "error"), REFUSED)
def test_a_swap_that_is_wrong_in_one_part_changes_nothing(
    db: MariaDB, session: Session, feed: Feed, name: str, wrong: str, error: type[Exception]
) -> None:
    """The neighbours stay as the swap would need its own row."""
    call, begin, _ = SWAPS[name]
    db.query(f"UPDATE tidb_binlog.drainer_position SET {begin}")
    db.query(f"UPDATE tidb_binlog.drainer_position SET {wrong} WHERE cluster_id=7 AND changefeed='main'")
    before = positions(db)
    with pytest.raises(error, match="'main' of cluster 7"):
        call(session, feed)
    assert positions(db) == before


@pytest.mark.parametrize("name", SWAPS)
def test_a_swap_of_a_row_that_is_gone(db: MariaDB, session: Session, feed: Feed, name: str) -> None:
    db.query("DELETE FROM tidb_binlog.drainer_position WHERE cluster_id=7 AND changefeed='main'")
    before = positions(db)
    with pytest.raises((PositionMoved, Fenced), match="'main' of cluster 7"):
        SWAPS[name][0](session, feed)
    assert positions(db) == before


def test_the_schema_version_never_goes_back(db: MariaDB, session: Session, feed: Feed) -> None:
    """D-CP-05: a batch of rows older than the newest DDL carries a lower one."""
    position.move(session, feed, epoch=EPOCH, after_ts=100, until_ts=150, schema_version=4)
    assert positions(db)[OURS] == (150, 5, 3, "n", 0)
    later = Intent(150, 200, 2, 3, 1, "all")
    position.write_intent(session, feed, epoch=EPOCH, intent=later, phase=Phase.DIRECT)
    position.clear_intent(session, feed, epoch=EPOCH, intent=later, schema_version=4)
    assert positions(db)[OURS] == (200, 5, 3, "n", 0)


def test_each_changefeed_reads_its_own(db: MariaDB, session: Session, feed: Feed) -> None:
    """The position, and upstream's checkpoint, which is one a cluster."""
    for number, (cluster_id, changefeed) in enumerate(FEEDS):
        mine = feed_of(db, session, cluster_id, changefeed)
        position.move(session, mine, epoch=EPOCH, after_ts=100, until_ts=200 + number, schema_version=1)
        position.write_checkpoint(
            session, mine, commit_ts=300 + cluster_id, schema_version=1, consistent=cluster_id == 8
        )
    for number, (cluster_id, changefeed) in enumerate(FEEDS):
        mine = feed_of(db, session, cluster_id, changefeed)
        stored = position.read(session, mine)
        assert stored is not None
        assert stored.commit_ts == 200 + number
        assert position.read_checkpoint(session, mine) is None, "a row of ours"
    assert position.read(session, feed_of(db, session, 8, "other")) is None
    db.query("DELETE FROM tidb_binlog.drainer_position")
    db.query("UPDATE tidb_binlog.checkpoint SET checkPoint = JSON_REMOVE(checkPoint, '$.changefeed')")
    for cluster_id, changefeed in FEEDS:
        found = position.read_checkpoint(session, feed_of(db, session, cluster_id, changefeed))
        assert found == (300 + cluster_id, 1, cluster_id == 8), "as the original leaves it"
    assert position.read_checkpoint(session, feed_of(db, session, 9, "main")) is None


# Marks


MARK = "cluster_id, changefeed, until_ts, phase, slot"
# Equal to our slot 0 of (100, 200] in DIRECT but for one part of the key each.
OUR_MARK = (7, "main", 200, "direct", 0)
NEIGHBOURS = (
    (8, "main", 200, "direct", 0),
    (7, "other", 200, "direct", 0),
    (7, "main", 199, "direct", 0),
    (7, "main", 201, "direct", 0),
    (7, "main", 200, "delete", 0),
    (7, "main", 200, "direct", 1),
)


def put_marks(db: MariaDB, *, epoch: int = EPOCH, done: int = 1, total: int = 3) -> None:
    for row in (OUR_MARK, *NEIGHBOURS):
        db.query(
            f"INSERT INTO tidb_binlog.drainer_mark ({MARK}, after_ts, epoch, chunks_done, chunks_total) "
            "VALUES (%s,%s,%s,%s,%s,100,%s,%s,%s)", *row, epoch, done, total,
        )  # fmt: skip


def all_marks(db: MariaDB) -> dict[Row, Row]:
    rows = db.query(f"SELECT {MARK}, epoch, chunks_done, chunks_total FROM tidb_binlog.drainer_mark")
    return {row[:5]: row[5:] for row in rows}


def step(session: Session, feed: Feed) -> bool:
    """Chunk 1 of 3 of our slot."""
    return chunk_progress.step(
        session, feed, epoch=EPOCH, intent=INTENT, phase=Phase.DIRECT, slot=0, chunk=1, total=3
    )  # fmt: skip


@pytest.mark.parametrize("total", [0, 3])
def test_a_step_moves_its_own_mark_alone(db: MariaDB, session: Session, feed: Feed, total: int) -> None:
    put_marks(db, total=total)
    before = all_marks(db)
    assert step(session, feed)
    assert all_marks(db) == before | {OUR_MARK: (EPOCH, 2, 3)}


@pytest.mark.parametrize(
    "wrong", ["epoch=4", "epoch=2", "chunks_done=0", "chunks_done=2", "chunks_total=2", "chunks_total=4"]
)
def test_a_step_that_is_wrong_in_one_part_changes_nothing(
    db: MariaDB, session: Session, feed: Feed, wrong: str
) -> None:
    put_marks(db)
    where = "cluster_id=7 AND changefeed='main' AND until_ts=200 AND phase='direct' AND slot=0"
    db.query(f"UPDATE tidb_binlog.drainer_mark SET {wrong} WHERE {where}")
    before = all_marks(db)
    assert not step(session, feed)
    assert all_marks(db) == before


def test_a_step_without_its_mark_changes_nothing(db: MariaDB, session: Session, feed: Feed) -> None:
    """The range is finished and its marks are purged."""
    put_marks(db)
    db.query("DELETE FROM tidb_binlog.drainer_mark WHERE slot=0 AND phase='direct' AND until_ts=200 "
             "AND cluster_id=7 AND changefeed='main'")  # fmt: skip
    before = all_marks(db)
    assert not step(session, feed)
    assert all_marks(db) == before


def test_opening_a_phase_takes_its_own_marks_and_makes_what_is_missing(
    db: MariaDB, session: Session, feed: Feed
) -> None:
    """What was done stays done; other ranges, phases and changefeeds keep their epoch."""
    put_marks(db)
    before = all_marks(db)
    three = Intent(100, 200, 3, 3, 1, "all")
    chunk_progress.open_phase(session, feed, epoch=9, intent=three, phase=Phase.DIRECT)
    ours = {OUR_MARK: (9, 1, 3), (7, "main", 200, "direct", 1): (9, 1, 3), (7, "main", 200, "direct", 2): (9, 0, 0)}
    assert all_marks(db) == before | ours


def test_each_mark_is_read_by_its_whole_key(db: MariaDB, session: Session, feed: Feed) -> None:
    put_marks(db)
    for number, row in enumerate((OUR_MARK, *NEIGHBOURS)):
        place = "cluster_id=%s AND changefeed=%s AND until_ts=%s AND phase=%s AND slot=%s"
        db.query(f"UPDATE tidb_binlog.drainer_mark SET chunks_done={number}, chunks_total=100 WHERE {place}", *row)
    for number, (cluster_id, changefeed, until_ts, phase, slot) in enumerate((OUR_MARK, *NEIGHBOURS)):
        mine = feed_of(db, session, cluster_id, changefeed)
        range_ = Intent(100, until_ts, 2, 3, 1, "all")
        found = chunk_progress.read(session, mine, intent=range_, phase=Phase(phase), slot=slot)
        assert found == Mark(EPOCH, number, 100)
    assert chunk_progress.read(session, feed, intent=INTENT, phase=Phase.INSERT, slot=0) is None


def test_what_is_unfinished_is_asked_of_one_range_and_phase(db: MariaDB, session: Session, feed: Feed) -> None:
    put_marks(db)
    assert chunk_progress.unfinished(session, feed, intent=INTENT, phase=Phase.DIRECT) == [0, 1]
    db.query("UPDATE tidb_binlog.drainer_mark SET chunks_done=3 "
             "WHERE cluster_id=7 AND changefeed='main' AND until_ts=200 AND phase='direct'")  # fmt: skip
    assert chunk_progress.unfinished(session, feed, intent=INTENT, phase=Phase.DIRECT) == []
    assert chunk_progress.unfinished(session, feed, intent=INTENT, phase=Phase.DELETE) == [0]


def test_a_purge_takes_the_range_and_older_ones_of_its_own_changefeed(
    db: MariaDB, session: Session, feed: Feed
) -> None:
    put_marks(db)
    chunk_progress.purge(session, feed, intent=INTENT)
    assert set(all_marks(db)) == {(8, "main", 200, "direct", 0), (7, "other", 200, "direct", 0),
                                  (7, "main", 201, "direct", 0)}  # fmt: skip
