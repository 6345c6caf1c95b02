"""A large transaction's pieces on a real server: one transaction, repeated whole when the connection goes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from drainer.batch.work import Folded, Kind, Pieces, SegmentWork
from drainer.sink.errors import DestinationRefused, RowsRefused, UniqueConflict
from drainer.sink.mysql.connection import ServerError
from drainer.sink.mysql.sink import explained
from tests.integration.sink.case import change, gone, opened, put, shape, work
from tests.support.servers import MariaDB

pytestmark = pytest.mark.integration


def position(db: MariaDB) -> int:
    return int(db.query("SELECT commit_ts FROM tidb_binlog.drainer_position")[0][0])


def test_pieces_are_applied_in_order_in_one_transaction(db: MariaDB) -> None:
    """Between two of them nothing is visible, and the position moves with the last."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, u INT UNIQUE)")
    db.query("CREATE TABLE d.bag (tag INT)")
    t, bag = shape("t", "id u", unique=("u",)), shape("bag", "tag", ())

    def works() -> Iterator[SegmentWork]:
        yield work(100, 200, Folded(t, (put(1, b"(1,10)"), put(2, b"(2,20)"))))
        yield work(100, 200, ordered=[change(bag, Kind.INSERT, new="5"), change(bag, Kind.INSERT, new="5")])
        assert db.query("SELECT * FROM d.t") == db.query("SELECT * FROM d.bag") == []
        assert position(db) == 100
        rows = (put(1, b"(1,20)", Kind.UPDATE), put(2, b"(2,10)", Kind.UPDATE))
        yield work(100, 200, Folded(t, rows), ordered=[change(bag, Kind.DELETE, old="5")])

    opened(db).apply_pieces(Pieces(100, 200, works), 5)
    assert db.query("SELECT * FROM d.t ORDER BY id") == [(1, 20), (2, 10)]
    assert db.query("SELECT * FROM d.bag") == [(5,)]
    assert position(db) == 200


def test_connection_lost_between_pieces_restarts_transaction(db: MariaDB) -> None:
    db.query("CREATE TABLE d.bag (tag INT)")
    bag = shape("bag", "tag", ())
    destination = opened(db)
    lives: list[int] = []

    def works() -> Iterator[SegmentWork]:
        lives.append(1)
        yield work(100, 200, ordered=[change(bag, Kind.INSERT, new="1")])
        if len(lives) == 1:
            (holder,) = db.query("SELECT IS_USED_LOCK('tidb_binlog/7/main')")[0]
            db.query(f"KILL {holder}")
        yield work(100, 200, ordered=[change(bag, Kind.INSERT, new="2")])

    destination.apply_pieces(Pieces(100, 200, works), 1)
    assert len(lives) == 2
    assert db.query("SELECT * FROM d.bag ORDER BY tag") == [(1,), (2,)]


def test_piece_blocked_by_untouched_row_stops_transaction(db: MariaDB) -> None:
    """Rule 12: nothing that upstream did not touch is evicted, and nothing of the transaction stays."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, u INT UNIQUE)")
    db.query("INSERT INTO d.t VALUES (9, 10)")
    t = shape("t", "id u", unique=("u",))
    first = work(100, 200, Folded(t, (put(1, b"(1,1)"),)))
    second = work(100, 200, Folded(t, (put(2, b"(2,10)"),)))
    destination = opened(db)
    with pytest.raises(UniqueConflict):
        destination.apply_pieces(Pieces(100, 200, lambda: (first, second)), 1)
    assert db.query("SELECT * FROM d.t") == [(9, 10)]
    assert position(db) == 100


def test_unique_values_moving_between_pieces_are_applied(db: MariaDB) -> None:
    """UPDATE t SET u=u+1 ORDER BY u DESC: each row takes the value of the next one, which is in a later piece."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, u INT UNIQUE)")
    db.query("INSERT INTO d.t VALUES (1,1),(2,2),(3,3),(4,4)")
    t = shape("t", "id u", unique=("u",))

    def works() -> Iterator[SegmentWork]:
        yield work(100, 200, Folded(t, (put(1, b"(1,2)", Kind.UPDATE), put(2, b"(2,3)", Kind.UPDATE))))
        yield work(100, 200, Folded(t, (put(3, b"(3,4)", Kind.UPDATE), gone(4))))
        yield work(100, 200, Folded(t, (put(5, b"(5,5)"), put(3, b"(3,9)", Kind.UPDATE))))

    opened(db).apply_pieces(Pieces(100, 200, works), 1)
    assert db.query("SELECT * FROM d.t ORDER BY id") == [(1, 2), (2, 3), (3, 9), (5, 5)]


@pytest.mark.parametrize(
    ("code", "setting"), [(8004, "txn-total-size-limit"), (1197, "max_binlog_cache_size"), (1206, "buffer_pool_size")]
)
def test_transaction_size_limit_of_server_is_named(code: int, setting: str) -> None:
    """TiDB tells of a transaction that is too large at a statement or at the commit."""
    refused = ServerError(code, "Transaction is too large, size: 104857601", "db:4000")
    with pytest.raises(DestinationRefused, match=rf"commit_ts 77 .*{setting}"), explained("db:4000", 77):
        raise refused
    with pytest.raises(DestinationRefused, match=setting), explained("db:4000", 77):
        raise RowsRefused("refused", schema="d", table="t") from refused
    with pytest.raises(RowsRefused), explained("db:4000", 77):
        raise RowsRefused("refused", schema="d", table="t") from ServerError(1146, "no such table", "db:4000")
