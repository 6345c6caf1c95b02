"""A server's position: the suite that every position must pass (tests/support/position_suite.py), each statement in a
transaction of a real server, and upstream's checkpoint beside it (rules 15 to 17)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from drainer.sink.base import Identity
from drainer.sink.mysql import position
from drainer.sink.mysql.connection import ServerSession, connect
from drainer.sink.mysql.position import Changefeed
from drainer.sink.position import PositionStore
from tests.integration.sink.case import server_config
from tests.support.position_suite import PositionSuite, Transactions
from tests.support.servers import MariaDB

pytestmark = pytest.mark.integration

EPOCH = 3
FEEDS = ((7, "main"), (8, "main"), (7, "other"))


@pytest.fixture(scope="module")
def tables(mariadb_server: MariaDB) -> Iterator[tuple[MariaDB, ServerSession]]:
    """The drainer's own tables, made once."""
    mariadb_server.reset()
    opened = connect(server_config(mariadb_server), idle_s=600, read_timeout_s=20)
    position.create_tables(opened, feed_of(mariadb_server, opened, *FEEDS[0]))
    yield mariadb_server, opened
    opened.close()


@pytest.fixture
def empty(tables: tuple[MariaDB, ServerSession]) -> MariaDB:
    server = tables[0]
    for name in ("drainer_position", "drainer_mark", "drainer_ddl", "checkpoint"):
        server.query(f"DELETE FROM tidb_binlog.{name}")
    return server


@pytest.fixture
def db(empty: MariaDB) -> MariaDB:
    """The same position for each of FEEDS."""
    for cluster_id, changefeed in FEEDS:
        empty.query("INSERT INTO tidb_binlog.drainer_position VALUES (%s,%s,100,5,3,'n',NULL)", cluster_id, changefeed)
    return empty


@pytest.fixture
def session(tables: tuple[MariaDB, ServerSession]) -> ServerSession:
    return tables[1]


def feed_of(db: MariaDB, session: ServerSession, cluster_id: int, changefeed: str) -> Changefeed:
    return Changefeed.of(server_config(db), Identity(cluster_id, changefeed, "n"), session)


class TestServer(PositionSuite):
    @pytest.fixture
    def transaction_of(self, empty: MariaDB, session: ServerSession) -> Transactions:
        @contextlib.contextmanager
        def transaction(identity: Identity) -> Iterator[PositionStore]:
            session.begin()
            try:
                yield position.store(session, Changefeed.of(server_config(empty), identity, session))
            except BaseException:
                session.rollback()
                raise
            session.commit()

        return transaction


def test_position_and_checkpoint_are_separate_for_each_changefeed(db: MariaDB, session: ServerSession) -> None:
    """The position, and upstream's checkpoint, which is one a cluster."""
    for number, (cluster_id, changefeed) in enumerate(FEEDS):
        mine = feed_of(db, session, cluster_id, changefeed)
        position.store(session, mine).move(epoch=EPOCH, after_ts=100, until_ts=200 + number, schema_version=1)
        position.write_checkpoint(
            session, mine, commit_ts=300 + cluster_id, schema_version=1, consistent=cluster_id == 8
        )
    for number, (cluster_id, changefeed) in enumerate(FEEDS):
        mine = feed_of(db, session, cluster_id, changefeed)
        stored = position.store(session, mine).read()
        assert stored is not None
        assert stored.commit_ts == 200 + number
        assert position.read_checkpoint(session, mine) is None, "a row of ours"
    assert position.store(session, feed_of(db, session, 8, "other")).read() is None
    db.query("DELETE FROM tidb_binlog.drainer_position")
    db.query("UPDATE tidb_binlog.checkpoint SET checkPoint = JSON_REMOVE(checkPoint, '$.changefeed')")
    for cluster_id, changefeed in FEEDS:
        found = position.read_checkpoint(session, feed_of(db, session, cluster_id, changefeed))
        assert found == (300 + cluster_id, 1, cluster_id == 8), "as the original leaves it"
    assert position.read_checkpoint(session, feed_of(db, session, 9, "main")) is None
