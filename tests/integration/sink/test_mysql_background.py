"""An index that no row depends on is built beside the stream, on a real server: once, whatever is killed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from binlog.tidb.job import ActionType
from binlog.tidb.table import IndexColumn, IndexInfo

from drainer.batch.work import Folded
from drainer.schema.steps import Ddl
from drainer.sink.errors import DdlFailed
from drainer.sink.mysql.connection import ConnectionLost, Retry, ServerError, ServerSession
from tests.integration.sink.case import opened, put, server_config, shape, work
from tests.integration.sink.child import run_until_done
from tests.integration.sink.ddl_case import column, position, step, table
from tests.support.servers import MariaDB, wait_until

pytestmark = pytest.mark.integration

COLUMNS = (column(1, "id"), column(2, "v"))
LOCK = "tidb_binlog/7/main/index/5"
STATES = "SELECT job_id, state FROM tidb_binlog.drainer_ddl ORDER BY job_id"


def add_index(job_id: int, commit_ts: int, name: str, *, of: str = "a", unique: bool = False) -> Ddl:
    made = IndexInfo(1, name, (IndexColumn("v", 1),), unique=unique)
    before, after = table(51, of, *COLUMNS), table(51, of, *COLUMNS, indexes=[made])
    return step(job_id, ActionType.ADD_INDEX, commit_ts, "...", before=before, after=after)


ADD = add_index(5, 300, "i")
ROWS = work(300, 400, Folded(shape("a", "id v"), (put(9, b"(9,9)"),)))


@pytest.fixture(autouse=True)
def _tables(db: MariaDB) -> None:
    for name in ("a", "b"):
        db.query(f"CREATE TABLE d.{name} (id INT PRIMARY KEY, v INT)")
        db.query(f"INSERT INTO d.{name} VALUES (1, 1)")


def indexes(db: MariaDB, name: str = "a") -> list[str]:
    return [row[2] for row in db.query(f"SHOW INDEX FROM d.{name}") if row[2] != "PRIMARY"]


@contextlib.contextmanager
def held(db: MariaDB) -> Iterator[None]:
    """The lock of the index's statement, as while a statement of a former drainer runs."""
    with db.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, 10)", (LOCK,))
        yield
        cursor.execute("SELECT RELEASE_LOCK(%s)", (LOCK,))


def test_rows_and_ddl_of_other_tables_go_on_while_index_is_built(db: MariaDB) -> None:
    destination = opened(db, index_wait_s=0.01)
    with held(db):
        destination.ddl(ADD)
        assert (position(db), destination.job_done(5), indexes(db)) == (300, True, [])
        assert [text.rpartition(" (")[0] for text in destination.building()] == [
            "ALTER TABLE `d`.`a` ADD KEY `i` (`v`)"
        ]
        destination.apply(ROWS, 1)
        destination.ddl(add_index(6, 500, "j", of="b", unique=True))
        assert indexes(db, "b") == ["j"]
        assert db.query("SELECT * FROM d.a ORDER BY id") == [(1, 1), (9, 9)]
        assert db.query(STATES) == [(5, "building"), (6, "done")]
    wait_until(lambda: db.query(STATES)[0] == (5, "done"), deadline_s=60, what="the index is marked as built")
    assert indexes(db) == ["i"]
    destination.advance(600, 1)
    assert destination.building() == []


def test_second_ddl_of_table_waits_for_its_index(db: MariaDB) -> None:
    destination = opened(db, index_wait_s=0.01)
    drop = step(6, ActionType.DROP_TABLE, 500, "DROP TABLE `a`", before=table(51, "a", *COLUMNS))
    with held(db):
        destination.ddl(ADD)
        waiting = threading.Thread(target=destination.ddl, args=(drop,))
        waiting.start()
        waiting.join(1)
        assert waiting.is_alive()
        assert db.query("SHOW TABLES IN d") == [("a",), ("b",)]
    waiting.join(60)
    assert db.query("SHOW TABLES IN d") == [("b",)]
    assert db.query(STATES) == [(5, "done"), (6, "done")]


def test_foreign_key_waits_for_index_of_its_parent(db: MariaDB) -> None:
    """The server refuses it otherwise, and it would be left out."""
    destination = opened(db, index_wait_s=0.01)
    key = {"id": 1, "fk_name": {"O": "f"}, "ref_table": {"O": "a"}, "state": 5}
    key |= {"cols": [{"O": "v"}], "ref_cols": [{"O": "v"}]}
    before = table(52, "b", *COLUMNS)
    add = step(6, ActionType.ADD_FOREIGN_KEY, 500, "...", before=before, after=replace(before, rest={"fk_info": [key]}))
    with held(db):
        destination.ddl(ADD)
        waiting = threading.Thread(target=destination.ddl, args=(add,))
        waiting.start()
        waiting.join(1)
        assert waiting.is_alive()
    waiting.join(60)
    assert "FOREIGN KEY (`v`) REFERENCES `a` (`v`)" in db.query("SHOW CREATE TABLE d.b")[0][1]


def test_small_and_unique_indexes_are_there_when_ddl_returns(db: MariaDB) -> None:
    destination = opened(db)
    destination.ddl(ADD)
    assert (indexes(db), db.query(STATES)) == (["i"], [(5, "done")])
    destination.ddl(replace(ADD, commit_ts=310))  # its own binlog, after it ran before
    assert (position(db), db.query(STATES)) == (310, [(5, "done")])
    with held(db):
        destination.ddl(add_index(6, 320, "u", unique=True))
        assert indexes(db) == ["u", "i"]


POINTS = ("before_commit", "after_commit", "ddl_index_marked", "ddl_index_built", "ddl_index_commit", "ddl_index_done")


@pytest.mark.parametrize("point", POINTS)
def test_index_of_killed_drainer_is_built_once(db: MariaDB, tmp_path: Path, point: str) -> None:
    code = run_until_done(server_config(db), [("ddl", ADD), ("rows", ROWS)], f"sink.{point}", tmp_path)
    assert code == -9
    assert (indexes(db), position(db)) == (["i"], 400)
    assert db.query(STATES) == [(5, "done")]


def test_statement_that_outlived_its_drainer_is_waited_for(db: MariaDB) -> None:
    """The next start does not build the index a second time."""
    first = opened(db, index_wait_s=0.01)
    with held(db):
        first.ddl(ADD)
        first.interrupt()  # as if it were killed: its thread ends
        second = opened(db, takeover="force", index_wait_s=0.01)
        assert second.job_done(5)
        db.query("ALTER TABLE d.a ADD INDEX `i` (v)")  # what the statement did
    wait_until(lambda: db.query(STATES) == [(5, "done")], deadline_s=60, what="the index is marked as built")
    assert indexes(db) == ["i"]
    second.close(clean=True)


def test_refused_index_stops_stream_with_job_and_remedy(db: MariaDB) -> None:
    db.query("ALTER TABLE d.a DROP COLUMN v")
    destination = opened(db)
    destination.ddl(ADD)
    with pytest.raises(DdlFailed, match=r"DDL job 5 .*beside the stream.*1072(.|\n)*set state to 'done'"):
        destination.advance(400, 1)
    again = opened(db, takeover="force")
    with pytest.raises(DdlFailed, match="DDL job 5"):
        again.advance(400, 1)
    db.query("UPDATE tidb_binlog.drainer_ddl SET state='done'")
    last = opened(db, takeover="force")
    last.advance(400, 1)
    last.close(clean=True)


def test_refused_index_fails_clean_end_too(db: MariaDB) -> None:
    """A drainer that reached what it was to apply does not end as if everything were applied."""
    db.query("ALTER TABLE d.a DROP COLUMN v")
    destination = opened(db, index_wait_s=0.01)
    with held(db):
        destination.ddl(ADD)
    with pytest.raises(DdlFailed, match="DDL job 5"):
        destination.close(clean=True)
    again = opened(db)
    with pytest.raises(DdlFailed, match="DDL job 5"):
        again.close(clean=True)


def test_index_is_built_with_rows_locked_if_log_of_rows_is_full(db: MariaDB) -> None:
    """More rows are written meanwhile than the server logs for a statement that does not lock them."""
    execute, ran = ServerSession.execute, list[bytes]()

    def refused(session: ServerSession, sql: bytes) -> int:
        if sql.startswith(b"ALTER"):
            ran.append(sql)
            if len(ran) == 1:
                raise ServerError(1799, "innodb_online_alter_log_max_size", "here")
        return execute(session, sql)

    with mock.patch.object(ServerSession, "execute", refused):
        opened(db).ddl(ADD)
    assert [sql.partition(b")")[2] for sql in ran] == [b"", b", LOCK=SHARED"]
    assert (indexes(db), db.query(STATES)) == (["i"], [(5, "done")])


def test_fenced_drainer_does_not_build_index_that_its_successor_has_dropped(db: MariaDB) -> None:
    first = opened(db, index_wait_s=0.01)
    with held(db):
        first.ddl(ADD)
        db.query("UPDATE tidb_binlog.drainer_position SET epoch=epoch+1")
        db.query("UPDATE tidb_binlog.drainer_ddl SET state='done'")  # the successor built it, and then dropped it
    wait_until(lambda: first.building() == [], deadline_s=60, what="the first one gives up")
    assert indexes(db) == []


@pytest.mark.parametrize("error", [Retry("1205"), ConnectionLost("1317")], ids=["lock timeout", "connection lost"])
def test_index_is_tried_again_after_timeout_and_lost_connection(db: MariaDB, error: Exception) -> None:
    """The statement of the lost connection has ended when the next one begins, and may have built the index."""
    execute, ran = ServerSession.execute, list[bytes]()

    def interrupted(session: ServerSession, sql: bytes) -> int:
        if sql.startswith(b"ALTER"):
            ran.append(sql)
            if isinstance(error, ConnectionLost):
                execute(session, sql)
            if len(ran) == 1:
                raise error
        return execute(session, sql)

    with mock.patch.object(ServerSession, "execute", interrupted):
        destination = opened(db)
        destination.ddl(ADD)
        wait_until(lambda: db.query(STATES) == [(5, "done")], deadline_s=60, what="the index is marked as built")
    assert indexes(db) == ["i"]
    assert len(ran) == (1 if isinstance(error, ConnectionLost) else 2)
    destination.close(clean=True)
