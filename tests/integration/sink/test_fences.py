"""A server's position: the suite that every position must pass (tests/support/position_suite.py), each statement in a
transaction of a real server, and upstream's checkpoint beside it (rules 15 to 17)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest

from drainer.sink.base import Identity, Intent
from drainer.sink.errors import Fenced, PositionMoved
from drainer.sink.mysql import position
from drainer.sink.mysql.connection import ServerSession, connect
from drainer.sink.mysql.position import Changefeed, ChunkMark, ServerPositionStore, expect
from tests.integration.sink.case import server_config
from tests.support.position_suite import EPOCH, INTENT, OURS, LoadSuite, PositionSuite
from tests.support.position_suite import FEEDS as IDENTITIES
from tests.support.servers import MariaDB

pytestmark = pytest.mark.integration

FEEDS = ((7, "main"), (8, "main"), (7, "other"))

ServerTransactions = Callable[[Identity], AbstractContextManager[ServerPositionStore]]


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
    for name in ("drainer_position", "drainer_mark", "drainer_ddl", "drainer_load", "drainer_check", "checkpoint"):
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


@pytest.fixture
def transaction_of(empty: MariaDB, session: ServerSession) -> ServerTransactions:
    @contextlib.contextmanager
    def transaction(identity: Identity) -> Iterator[ServerPositionStore]:
        session.begin()
        try:
            yield position.store(session, Changefeed.of(server_config(empty), identity, session))
        except BaseException:
            session.rollback()
            raise
        session.commit()

    return transaction


class TestServer(PositionSuite, LoadSuite):
    """A server's position is one as every other."""


class TestChunks:
    def test_a_chunk_is_counted_once_and_in_turn(self, transaction_of: ServerTransactions) -> None:
        for identity in IDENTITIES:
            with transaction_of(identity) as store:
                store.open_chunks(epoch=EPOCH, intent=INTENT, stage="direct")
        with transaction_of(OURS) as store:
            assert _step(store, chunk=0)
            assert not _step(store, chunk=0)
            assert not _step(store, chunk=2)
            assert not _step(store, chunk=1, epoch=EPOCH + 1)
            assert not _step(store, chunk=1, epoch=EPOCH - 1)
            assert not _step(store, chunk=1, total=4)
            assert not _step(store, chunk=1, slot=2)
            assert not _step(store, chunk=1, stage="delete")
            assert not _step(store, chunk=1, intent=replace(INTENT, until_ts=201))
            assert store.unfinished(intent=INTENT, stage="direct") == [0]
            assert _step(store, chunk=1)
        for identity in IDENTITIES:
            with transaction_of(identity) as store:
                mine = ChunkMark(EPOCH, 2, 3) if identity == OURS else ChunkMark(EPOCH, 0, 0)
                assert store.chunk(intent=INTENT, stage="direct", slot=0) == mine
                assert store.chunk(intent=INTENT, stage="direct", slot=1) == ChunkMark(EPOCH, 0, 0)

    def test_opening_again_takes_its_own_marks_and_makes_what_is_missing(
        self, transaction_of: ServerTransactions
    ) -> None:
        """What was done stays done; other ranges, stages and changefeeds keep their epoch."""
        later = replace(INTENT, until_ts=201)
        for identity in IDENTITIES:
            with transaction_of(identity) as store:
                for intent, stage in ((INTENT, "direct"), (INTENT, "delete"), (later, "direct")):
                    store.open_chunks(epoch=EPOCH, intent=intent, stage=stage)
                    assert _step(store, chunk=0, intent=intent, stage=stage)
        with transaction_of(OURS) as store:
            store.open_chunks(epoch=9, intent=replace(INTENT, slots=3), stage="direct")
            marks = [store.chunk(intent=INTENT, stage="direct", slot=slot) for slot in range(4)]
            assert marks == [ChunkMark(9, 1, 3), ChunkMark(9, 0, 0), ChunkMark(9, 0, 0), None]
            assert not _step(store, chunk=1)
            assert _step(store, chunk=1, epoch=9)
            assert store.unfinished(intent=INTENT, stage="delete") == [0]
        for identity in IDENTITIES:
            with transaction_of(identity) as store:
                for intent, stage in ((INTENT, "delete"), (later, "direct")):
                    assert store.chunk(intent=intent, stage=stage, slot=0) == ChunkMark(EPOCH, 1, 3)
                if identity != OURS:
                    assert store.chunk(intent=INTENT, stage="direct", slot=0) == ChunkMark(EPOCH, 1, 3)

    def test_a_purge_takes_the_range_and_older_ones_of_its_own_changefeed(
        self, transaction_of: ServerTransactions
    ) -> None:
        untils, stages = (199, 200, 201), ("direct", "delete")
        ranges = [(replace(INTENT, until_ts=until), stage) for until in untils for stage in stages]
        for identity in IDENTITIES:
            with transaction_of(identity) as store:
                for intent, stage in ranges:
                    store.open_chunks(epoch=EPOCH, intent=intent, stage=stage)
        with transaction_of(OURS) as store:
            store.purge_chunks(INTENT)
        for identity in IDENTITIES:
            with transaction_of(identity) as store:
                there = [intent.until_ts for intent, stage in ranges if store.chunk(intent=intent, stage=stage, slot=1)]
                assert there == ([201, 201] if identity == OURS else [199, 199, 200, 200, 201, 201])

    def test_a_slot_s_mark_is_judged(self, transaction_of: ServerTransactions) -> None:
        with transaction_of(OURS) as store:
            with pytest.raises(Fenced, match="its marks are gone"):
                expect(None, 3, store.label, epoch=EPOCH, slot=0, intent=INTENT)
            with pytest.raises(Fenced, match="its epoch is 4"):
                expect(ChunkMark(4, 0, 0), 3, store.label, epoch=EPOCH, slot=0, intent=INTENT)
            assert expect(ChunkMark(EPOCH, 1, 3), 3, store.label, epoch=EPOCH, slot=0, intent=INTENT).done == 1
            with pytest.raises(PositionMoved, match="into 3 chunks before and into 4 now"):
                expect(ChunkMark(EPOCH, 1, 3), 4, store.label, epoch=EPOCH, slot=0, intent=INTENT)
            expect(ChunkMark(EPOCH, 0, 0), 4, store.label, epoch=EPOCH, slot=0, intent=INTENT)


def _step(
    store: ServerPositionStore,
    *,
    chunk: int,
    epoch: int = EPOCH,
    intent: Intent = INTENT,
    stage: str = "direct",
    slot: int = 0,
    total: int = 3,
) -> bool:
    return store.step_chunk(epoch=epoch, intent=intent, stage=stage, slot=slot, chunk=chunk, total=total)


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
