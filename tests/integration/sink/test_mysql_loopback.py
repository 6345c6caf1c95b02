"""The marks of loopback-control on a real server: in every transaction that has rows, and in no other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from binlog.tidb.job import ActionType

from drainer.batch.work import Folded, Kind, Pieces, SegmentWork
from drainer.sink.base import Intent
from drainer.sink.errors import DataError
from tests.integration.sink.case import change, opened, put, shape, work
from tests.integration.sink.ddl_case import column, step, table
from tests.support.servers import MariaDB

pytestmark = pytest.mark.integration

CHANNEL = 7
MARKS = "SELECT id, channel_id, val FROM retl._drainer_repl_mark ORDER BY id"


@pytest.fixture
def marked(db: MariaDB) -> MariaDB:
    """With a table `t`, and the table of marks as the original makes it, which has a row of another channel."""
    db.query("CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
    opened(db, channel_id=CHANNEL).close(clean=True)
    db.query("INSERT INTO retl._drainer_repl_mark VALUES (0, 8, 5, NULL)")
    return db


def rows(first: int, count: int) -> Folded:
    return Folded(shape("t", "id v"), tuple(put(n, b"(%d,%d)" % (n, n)) for n in range(first, first + count)))


def marks(db: MariaDB) -> dict[int, int]:
    """The writers of the channel, and how many transactions each has marked."""
    found = db.query(MARKS)
    assert (0, 8, 5) in found  # the other channel's
    return {number: count for number, channel, count in found if channel == CHANNEL}


def test_table_of_marks_is_made_as_the_originals_and_kept(db: MariaDB) -> None:
    opened(db).close(clean=True)
    assert db.query("SHOW DATABASES LIKE 'retl'") == []
    opened(db, channel_id=CHANNEL).close(clean=True)
    columns = db.query(
        "SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_KEY FROM information_schema.COLUMNS"
        " WHERE TABLE_SCHEMA='retl' AND TABLE_NAME='_drainer_repl_mark' ORDER BY ORDINAL_POSITION"
    )
    assert columns == [
        ("id", "bigint(20)", "NO", "PRI"),
        ("channel_id", "bigint(20)", "NO", "PRI"),
        ("val", "bigint(20)", "YES", ""),
        ("channel_info", "varchar(64)", "YES", ""),
    ]
    db.query("ALTER TABLE retl._drainer_repl_mark ADD COLUMN note INT")
    opened(db, channel_id=CHANNEL).close(clean=True)
    assert len(db.query("SHOW COLUMNS IN retl._drainer_repl_mark")) == 5


def test_no_right_to_create_is_needed_where_the_table_is_there(marked: MariaDB) -> None:
    for grant in (
        "CREATE OR REPLACE USER narrow IDENTIFIED BY 'narrow'",
        "GRANT ALL ON tidb_binlog.* TO narrow",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON d.* TO narrow",
        "GRANT SELECT, INSERT, UPDATE ON retl.* TO narrow",
    ):
        marked.query(grant)
    destination = opened(marked, user="narrow", password="narrow", channel_id=CHANNEL, node="drainer-2")
    destination.apply(work(100, 200, rows(1, 1)), 1)
    destination.close(clean=True)
    assert marks(marked) == {0: 1}


def test_transactions_in_driver_are_marked_if_they_have_rows(marked: MariaDB) -> None:
    destination = opened(marked, channel_id=CHANNEL)
    destination.apply(work(100, 110), 1)
    destination.advance(120, 1)
    assert marks(marked) == {}
    destination.apply(work(120, 130, rows(1, 5)), 1)
    assert marks(marked) == {0: 1}

    def works() -> Iterator[SegmentWork]:
        yield work(130, 140)
        yield work(130, 140, rows(10, 2))
        yield work(130, 140, rows(20, 2))

    destination.apply_pieces(Pieces(130, 140, works), 1)
    destination.apply_pieces(Pieces(140, 150, lambda: ()), 1)
    assert marks(marked) == {0: 2}
    assert marked.query("SELECT COUNT(*) FROM d.t") == [(9,)]
    destination.close(clean=True)
    assert marks(marked) == {0: 2}


def test_mark_is_in_the_transaction_of_the_rows(marked: MariaDB) -> None:
    """Of one that is refused nothing stays, neither in the driver nor of a chunk."""
    marked.query("ALTER TABLE d.t MODIFY v TINYINT")
    destination = opened(marked, channel_id=CHANNEL)
    with pytest.raises(DataError):
        destination.apply(work(100, 200, rows(123, 9)), 1)
    assert marks(marked) == {}
    intent = Intent(100, 200, 1, 2, 1, "all")
    writer = destination.begin(intent)
    with pytest.raises(DataError):
        writer.write(0, work(100, 200, rows(123, 9)))
    assert marked.query("SELECT id FROM d.t ORDER BY id") == [(123,), (124,), (125,), (126,)]
    assert marked.query("SELECT chunks_done FROM tidb_binlog.drainer_mark") == [(2,)]
    assert marks(marked) == {1: 2}


def test_every_chunk_of_a_slot_is_marked_once(marked: MariaDB) -> None:
    """In a row of its own slot: slots that are written at once do not wait for one another."""
    intent = Intent(100, 200, 3, 2, 1, "all")
    destination = opened(marked, channel_id=CHANNEL)
    writer = destination.begin(intent)
    receipts = [writer.write(slot, work(100, 200, rows(10 * slot, 5))) for slot in (0, 2)]
    assert marks(marked) == {1: 3, 3: 3}
    writer.write(0, work(100, 200, rows(0, 5)))
    assert destination.commit(intent, receipts, 1) is None
    assert marks(marked) == {1: 3, 3: 3}


def test_rows_written_again_after_a_conflict_are_marked_once(marked: MariaDB) -> None:
    """Unique values change places; a keyless row is in the same transaction."""
    marked.query("CREATE TABLE d.u (id INT PRIMARY KEY, u INT UNIQUE)")
    marked.query("CREATE TABLE d.bag (tag INT)")
    marked.query("INSERT INTO d.u VALUES (1, 1), (2, 2)")
    swapped = (put(1, b"(1,2)", Kind.UPDATE), put(2, b"(2,1)", Kind.UPDATE))
    ordered = [change(shape("bag", "tag", ()), Kind.INSERT, new="5")]
    destination = opened(marked, channel_id=CHANNEL)
    destination.apply(work(100, 200, Folded(shape("u", "id u", unique=("u",)), swapped), ordered=ordered), 1)
    assert marks(marked) == {0: 1}


def test_row_statement_of_ddl_rewrite_is_marked(marked: MariaDB) -> None:
    """Other DDL is not: a mark would be a transaction of its own."""
    info = table(9, "t", column(1, "id"), column(2, "v"))
    statement = "UPDATE d.t SET v = 0", "ALTER TABLE d.t COMMENT 'x'"
    destination = opened(marked, channel_id=CHANNEL)
    destination.ddl(replace(step(5, ActionType.ADD_COLUMN, 200, *statement, before=info, after=info), rewritten=True))
    assert marks(marked) == {0: 1}
