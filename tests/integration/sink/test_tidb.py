"""A real TiDB as the destination. A desk test: it runs where PEER_BIN names a folder with `tidb-server`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pymysql
import pytest

from drainer.batch.work import Folded, Kind
from drainer.sink.errors import CommitRefused, DestinationRefused, Fenced, LockHeld, ValueChanged
from drainer.sink.mysql import position
from drainer.sink.mysql.connection import Retry, ServerSession, connect
from drainer.sink.mysql.position import Changefeed
from tests.integration.sink.case import IDENTITY, change, gone, opened, put, server_config, shape, work
from tests.integration.sink.test_schema_check import create, differences, mend
from tests.peer.marks import desk_test
from tests.support.servers import MariaDB

pytestmark = desk_test(600)


@pytest.fixture
def db(tidb: MariaDB) -> MariaDB:
    """An empty database `d` on a TiDB with its own defaults."""
    tidb.query("CREATE DATABASE d")
    return tidb


DANGEROUS = {
    "tidb_txn_mode": ("optimistic", "pessimistic"),
    "tidb_disable_txn_auto_retry": ("OFF", "ON"),
    "tidb_retry_limit": ("10", "10"),
    "tidb_constraint_check_in_place_pessimistic": ("OFF", "ON"),
    "tidb_batch_insert": ("ON", "OFF"),
    "tidb_dml_batch_size": ("1", "0"),
    "tidb_low_resolution_tso": ("ON", "OFF"),
}


@pytest.fixture
def dangerous(db: MariaDB) -> Iterator[MariaDB]:
    """A TiDB whose operators have chosen the other value of what they may choose."""
    chosen = {name: value for name, value in DANGEROUS.items() if _settable(db, name, value[0])}
    assert {"tidb_txn_mode", "tidb_disable_txn_auto_retry"} <= chosen.keys()
    yield db
    for name, (_, usual) in chosen.items():
        db.query(f"SET GLOBAL {name} = {usual!r}")


def _settable(db: MariaDB, name: str, value: str) -> bool:
    try:
        db.query(f"SET GLOBAL {name} = {value!r}")
    except pymysql.err.Error as error:
        assert "1228" in str(error) or "1193" in str(error), error  # a session variable, or unknown
        return False
    return True


def session_of(db: MariaDB) -> ServerSession:
    return connect(server_config(db), idle_s=60, read_timeout_s=60)


def test_tidb_session_is_pessimistic_without_automatic_retry(dangerous: MariaDB) -> None:
    session = session_of(dangerous)
    names = ",".join(f"'{name}'" for name in DANGEROUS)
    shown = dict(session.query(f"SHOW SESSION VARIABLES WHERE Variable_name IN ({names})".encode()))
    assert shown["tidb_txn_mode"] == "pessimistic"
    assert (shown["tidb_disable_txn_auto_retry"], shown["tidb_retry_limit"]) == ("ON", "0")
    assert (shown["tidb_batch_insert"], shown["tidb_dml_batch_size"]) == ("OFF", "0")
    assert shown["tidb_constraint_check_in_place_pessimistic"] == "ON"
    assert shown["tidb_low_resolution_tso"] == "OFF"
    session.close()


@pytest.mark.parametrize(
    ("name", "value"), [("tidb_txn_mode", "optimistic"), ("tidb_batch_insert", "1"), ("tidb_dml_batch_size", "5")]
)
def test_tidb_session_params_that_undo_safety_are_refused(db: MariaDB, name: str, value: str) -> None:
    with pytest.raises(DestinationRefused, match=name):
        opened(db, params=((name, value),))


def test_tidb_transaction_retried_after_takeover_is_fenced(dangerous: MariaDB) -> None:
    """Rule 15: rows of an old driver are there only if its successor finds the position behind them."""
    db = dangerous
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY)")
    old = opened(db)
    old.close(clean=True)
    mine, other = session_of(db), session_of(db)
    changefeed = Changefeed.of(server_config(db), IDENTITY, mine)
    epoch = int(db.query("SELECT epoch FROM tidb_binlog.drainer_position")[0][0])
    found: list[int] = []

    def take_over() -> None:
        while True:
            try:
                position.store(other, changefeed).take_epoch(epoch, "successor")
                break
            except Retry:
                continue  # a write conflict, as for a driver that opens
        stored = position.store(other, changefeed).read()
        found.append(stored.commit_ts if stored else -1)

    successor = threading.Thread(target=take_over, daemon=True)

    with contextlib.suppress(Retry, CommitRefused, Fenced), mine.transaction("rows"):
        position.store(mine, changefeed).move(epoch=epoch, after_ts=100, until_ts=200, schema_version=1)
        successor.start()
        successor.join(2)  # an optimistic one is over by now; a pessimistic one waits for this transaction
        mine.execute(b"INSERT INTO d.t VALUES (1)")
    successor.join(120)
    assert len(found) == 1
    rows = [row[0] for row in db.query("SELECT id FROM d.t")]
    assert (found[0], rows) in ((200, [1]), (100, []))


def test_tidb_refused_commit_names_rows_not_written(db: MariaDB) -> None:
    """COMMIT reports it where TiDB looks for duplicates no earlier, which our sessions do not let it do."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY)")
    db.query("INSERT INTO d.t VALUES (1)")
    session = session_of(db)
    session.execute(b"SET SESSION tidb_constraint_check_in_place_pessimistic=0, tidb_txn_assertion_level='OFF'")
    refused = pytest.raises(CommitRefused, match=r"rows of \(1, 2\].*COMMIT is refused")
    with refused, session.transaction("rows of (1, 2]"):
        session.execute(b"INSERT INTO d.t VALUES (1)")


def test_tidb_planner_warning_is_not_changed_value(db: MariaDB) -> None:
    """A table without statistics whose partitions are pruned dynamically: warning 1105 at a REPLACE, nothing lost."""
    db.query(
        "CREATE TABLE d.p (id INT, v INT, UNIQUE (id)) PARTITION BY LIST (id)"
        " (PARTITION a VALUES IN (1,2), PARTITION b VALUES IN (3,4,NULL))"
    )
    db.query("CREATE TABLE d.narrow (id INT PRIMARY KEY, v TINYINT)")
    destination = opened(db)
    p = shape("p", "id v", key=(), unique=("id",))
    inserts = [change(p, Kind.INSERT, new=f"{n}|{n}", ts=n, seq=n) for n in (1, 3)]
    destination.apply(work(100, 200, ordered=inserts), 1)
    update = change(p, Kind.UPDATE, old="3|3", new="3|33", ts=4)
    destination.apply(work(200, 300, ordered=[update]), 1)
    assert sorted(db.query("SELECT * FROM d.p")) == [(1, 1), (3, 33)]
    with pytest.raises(ValueChanged, match="1264"):
        destination.apply(work(300, 400, Folded(shape("narrow", "id v"), (put(1, b"(1,1000)"),))), 1)
    destination.close(clean=False)


def test_tidb_update_to_enum_0_is_accepted_and_truncation_refused(db: MariaDB) -> None:
    """TiDB's warning to an UPDATE names no column: the row is looked at."""
    db.query("CREATE TABLE d.t (id INT, e ENUM('a','b'), v VARCHAR(3))")
    db.query("INSERT INTO d.t VALUES (1,'a','x')")
    destination = opened(db)
    t = shape("t", "id e v", key=())
    destination.apply(work(100, 200, ordered=[change(t, Kind.UPDATE, old="1|1|'x'", new="1|0|'y'", ts=101)]), 1)
    assert db.query("SELECT id, e+0, v FROM d.t") == [(1, 0, "y")]
    cut = change(t, Kind.UPDATE, old="1|0|'y'", new="1|0|'long'", ts=201)
    with pytest.raises(ValueChanged):
        destination.apply(work(200, 300, ordered=[cut]), 1)
    assert db.query("SELECT id, e+0, v FROM d.t") == [(1, 0, "y")]
    destination.close(clean=False)


def test_tidb_lock_of_former_drainer_process_is_taken_over(db: MariaDB) -> None:
    """This TiDB has no IS_USED_LOCK: whose lock it is stands in a table of ours."""
    former = opened(db)
    with pytest.raises(LockHeld, match="drainer-1"):
        opened(db, node="drainer-2")
    successor = opened(db)
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY)")
    with pytest.raises((Fenced, LockHeld)):
        former.advance(200, 1)
    successor.apply(work(100, 200, Folded(shape("t", "id"), (put(1, b"(1)"),))), 1)
    successor.close(clean=True)
    opened(db, node="drainer-2").close(clean=True)


def test_tidb_virtual_column_overflow_is_not_changed_value(db: MariaDB) -> None:
    """Upstream let the row in, too; TiDB's warning 1690 names no column."""
    db.query("CREATE TABLE d.g (id INT PRIMARY KEY, a TINYINT, g TINYINT AS (a + 100) VIRTUAL)")
    destination = opened(db)
    destination.apply(work(100, 200, Folded(shape("g", "id a"), (put(1, b"(1,100)"),))), 1)
    assert db.query("SELECT id, a FROM d.g") == [(1, 100)]
    for literal in (b"200", b"1e10", b"'1e10'", b"9999999999999999999999"):
        with pytest.raises(ValueChanged):
            destination.apply(work(200, 300, Folded(shape("g", "id a"), (put(2, b"(2," + literal + b")"),))), 1)
    destination.close(clean=False)


def test_tidb_rows_of_reorganized_partitions_are_replaced(db: MariaDB) -> None:
    """TiDB's own assertion takes a row that is deleted and written in one transaction for a new one (8141)."""
    db.query(
        "CREATE TABLE d.p (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id)"
        " (PARTITION p0 VALUES LESS THAN (10), PARTITION pm VALUES LESS THAN MAXVALUE)"
    )
    db.query("INSERT INTO d.p VALUES (1,1), (100,1), (1000,1)")
    db.query(
        "ALTER TABLE d.p REORGANIZE PARTITION pm INTO"
        " (PARTITION p1 VALUES LESS THAN (500), PARTITION pm VALUES LESS THAN MAXVALUE)"
    )
    destination = opened(db)
    p = shape("p", "id v")
    rows = (put(1, b"(1000,2)", Kind.UPDATE), put(2, b"(7,7)"), gone(3, b"(100)"))
    destination.apply(work(100, 200, Folded(p, rows)), 1)
    destination.apply(work(200, 300, Folded(p, (put(1, b"(1000,3)", Kind.UPDATE, (b"(1000)",)),))), 1)
    assert sorted(db.query("SELECT * FROM d.p")) == [(1, 1), (7, 7), (1000, 3)]
    db.query("ADMIN CHECK TABLE d.p")
    destination.close(clean=True)


def test_tidb_table_differs_from_its_definition_only_if_somebody_changed_it(db: MariaDB) -> None:
    create(db)
    assert differences(db) == []
    for statement in (
        "ALTER TABLE d.all DROP COLUMN price",
        "ALTER TABLE d.all MODIFY wide BIGINT NOT NULL DEFAULT 8",
        "ALTER TABLE d.all MODIFY `once` INT AS (a + 2)",
        "ALTER TABLE d.all DROP KEY prefix",
        "ALTER TABLE d.common ADD UNIQUE (b, n)",
        "DROP TABLE d.parted",
    ):
        db.query(statement)
        found = differences(db)
        assert len(found) == 1, (statement, found)
        mend(db, found)
        assert differences(db) == []
