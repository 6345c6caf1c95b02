"""Drivers that are not alone: fences, locks, connections that go, deadlocks (rule 15)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from binlog.tidb.job import ActionType

from drainer.batch.work import Folded, Kind
from drainer.sink.base import Intent
from drainer.sink.errors import (
    Fenced,
    LockHeld,
)
from tests.integration.sink.case import opened, put, shape, work
from tests.integration.sink.ddl_case import step
from tests.support.servers import MariaDB

pytestmark = pytest.mark.integration


def position(db: MariaDB) -> int:
    return int(db.query("SELECT commit_ts FROM tidb_binlog.drainer_position")[0][0])


def test_fenced_driver_writes_nothing_after_takeover(db: MariaDB) -> None:
    """Rule 15: the first driver is told so, whatever it tries, and its rows do not arrive."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
    old = opened(db)
    new = opened(db)  # the same node id: a former life's connection is ended
    t = Folded(shape("t", "id v"), (put(1, b"(1,1)"),))
    for attempt in (
        lambda: old.apply(work(100, 200, t), 1),
        lambda: old.advance(300, 1),
        lambda: old.close(clean=True),
    ):
        with pytest.raises((Fenced, LockHeld)):
            attempt()
    assert db.query("SELECT * FROM d.t") == []
    new.apply(work(100, 200, t), 1)
    assert position(db) == 200


@pytest.mark.parametrize("attempt", ["rows", "position", "range", "end of range", "DDL", "checkpoint"])
def test_fenced_driver_with_live_connection_writes_nothing(db: MariaDB, attempt: str) -> None:
    """Rule 15: the epoch alone has to tell, where the lock told nobody: a proxy that kept the connection, a failover
    of the server. Everything that a driver may do is refused in the transaction itself."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
    old = opened(db, at=90)
    old.advance(100, 1)  # upstream's checkpoint is written now and then, behind a fence of its own: not in what follows
    range_ = Intent(100, 200, 2, 3, 1, "all")
    attempts: dict[str, Callable[[], object]] = {
        "rows": lambda: old.apply(work(100, 200, Folded(shape("t", "id v"), (put(1, b"(1,1)"),))), 1),
        "position": lambda: old.advance(300, 1),
        "range": lambda: old.begin(range_),
        "end of range": lambda: old.commit(range_, [], 1),
        "DDL": lambda: old.ddl(step(1, ActionType.DROP_TABLE, 200, "DROP TABLE `t`")),
        "checkpoint": lambda: old.close(clean=True),
    }
    if attempt == "end of range":
        old.begin(range_)
    db.query("UPDATE tidb_binlog.drainer_position SET epoch=epoch+1, node_id='drainer-2'")
    tables = ("tidb_binlog.drainer_position", "tidb_binlog.checkpoint", "tidb_binlog.drainer_ddl", "d.t")
    before = [db.query(f"SELECT * FROM {name}") for name in tables]
    with pytest.raises(Fenced, match="'drainer-2' has taken over"):
        attempts[attempt]()
    assert [db.query(f"SELECT * FROM {name}") for name in tables] == before


def test_reconnected_driver_of_old_epoch_is_fenced(db: MariaDB) -> None:
    """Rule 15: another drainer came and went while it was away, and left the lock free; even a look is refused then."""
    old = opened(db)
    (holder,) = db.query("SELECT IS_USED_LOCK('tidb_binlog/7/main')")[0]
    db.query(f"KILL {holder}")
    db.query("UPDATE tidb_binlog.drainer_position SET epoch=epoch+1, node_id='drainer-2'")
    with pytest.raises(Fenced, match="took over while the connection was lost"):
        old.job_done(1)


def test_drainer_with_another_node_id_takes_over_only_by_force(db: MariaDB) -> None:
    """A holder with another node id is named, and ended only by force."""
    old = opened(db)
    with pytest.raises(LockHeld, match=r"'drainer-1'.*force"):
        opened(db, node="drainer-2")
    old.advance(150, 1)
    forced = opened(db, node="drainer-2", takeover="force")
    forced.advance(160, 1)
    with pytest.raises((Fenced, LockHeld)):
        old.advance(170, 1)
    assert position(db) == 160


def test_killed_connection_is_replaced_and_segment_applied(db: MariaDB) -> None:
    """The server ends our connection between two segments: the next one takes the lock again and goes on."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
    destination = opened(db)
    (holder,) = db.query("SELECT IS_USED_LOCK('tidb_binlog/7/main')")[0]
    db.query(f"KILL {holder}")
    destination.apply(work(100, 200, Folded(shape("t", "id v"), (put(1, b"(1,1)"),))), 1)
    assert db.query("SELECT * FROM d.t") == [(1, 1)]
    assert position(db) == 200


def test_deadlock_repeats_the_whole_transaction(db: MariaDB) -> None:
    """Another session locks rows in the other order; one of the two is rolled back, and ours comes through."""
    import threading

    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
    db.query("INSERT INTO d.t VALUES (1,0),(2,0)")
    destination = opened(db)
    one, two = shape("t", "id v", table_id=1), shape("t", "id v", table_id=2)
    other = db.connect(autocommit=False)
    with other, other.cursor() as cursor:
        cursor.execute("UPDATE d.t SET v=v+1 WHERE id=2")
        done: list[object] = []
        thread = threading.Thread(
            target=lambda: done.append(
                destination.apply(
                    work(
                        100,
                        200,
                        Folded(one, (put(1, b"(1,10)", Kind.UPDATE),)),
                        Folded(two, (put(2, b"(2,10)", Kind.UPDATE),)),
                    ),
                    1,
                )
            )
        )
        thread.start()
        try:
            cursor.execute("SELECT SLEEP(0.3)")
            cursor.execute("UPDATE d.t SET v=v+1 WHERE id=1")
            other.commit()
        except Exception:  # noqa: BLE001  whichever side the server chose as victim
            other.rollback()
        thread.join(120)
    assert len(done) == 1
    assert db.query("SELECT * FROM d.t ORDER BY id") == [(1, 10), (2, 10)]
