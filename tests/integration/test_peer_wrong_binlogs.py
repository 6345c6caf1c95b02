"""What TiDB puts into its binlogs wrongly (docs/compatibility.md), line by line: `drainer check` names it, and
`drainer check -repair` mends it. A desk test: skipped without PEER_BIN, in CI too. Five minutes.

The rows of a cascade that ends with 1062, and rows that no binlog has, are in test_peer_ranges.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pymysql
import pytest

from tests.peer.cluster import Peer, peer_bin, running_peer
from tests.peer.compare import AS_TEXT, columns, rows
from tests.peer.marks import desk_test
from tests.support.servers import MariaDB, wait_until

pytestmark = desk_test(900)

Row = dict[str, str] | None
Cursor = pymysql.cursors.Cursor


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    binaries = peer_bin()
    assert binaries is not None
    with running_peer(binaries, tmp_path_factory.mktemp("peer")) as peer:
        peer.our_pump(peer.place("pump"))
        peer.start_tidb()
        with contextlib.closing(peer.connect()) as connection:
            # A TiKV's GC worker writes this row, and the TiKV in one process has none. RECOVER TABLE reads it.
            connection.query("REPLACE INTO mysql.tidb VALUES ('tikv_gc_safe_point', '20200101-00:00:00 +0000', '')")
        yield peer


@dataclass
class Stream:
    """A database upstream with tables, and a drainer that begins before it was created."""

    peer: Peer
    mariadb: MariaDB
    name: str
    begin_ts: int = 0

    def begin(self, *statements: str) -> None:
        self.begin_ts = asyncio.run(self.peer.now_ts())
        with contextlib.closing(self.peer.connect()) as connection:
            connection.query(f"CREATE DATABASE `{self.name}`")
        with self.session() as cursor:
            for statement in statements:
                cursor.execute(statement)

    @contextlib.contextmanager
    def session(self) -> Iterator[Cursor]:
        with contextlib.closing(self.peer.connect(database=self.name)) as connection, connection.cursor() as cursor:
            yield cursor

    def drain(self, syncer: str = "") -> tuple[int, str]:
        """Apply what is there. Return the exit code and the end of the log."""
        arguments = "-until-now", f"-initial-commit-ts={self.begin_ts}"
        drainer = self.peer.our_drainer(self.mariadb, *arguments, name=self.name, syncer=syncer)
        return drainer.wait(deadline_s=300), drainer.tail()

    def check(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Return the exit code and what is reported of each table."""
        more = f'[upstream]\nhost = "127.0.0.1"\nport = {self.peer.tidb_port}\n'
        chosen = "-json", f"-table={self.name}.*", *arguments
        ran = self.peer.our_drainer(self.mariadb, *chosen, name=self.name, more=more, command=("check",))
        code, text = ran.wait(deadline_s=300), ran.text()
        assert "[\n  {" in text, text
        found = json.loads(text[text.rindex("[\n  {") :])
        return code, {one["table"].removeprefix(f"{self.name}."): one for one in found}

    def assert_named_and_mended(self, **expected: Sequence[tuple[Row, Row]]) -> None:
        """`expected`: of each table that differs, the rows upstream and at the destination, in any order."""
        code, found = self.check()
        differing = {
            name: sorted(repr((row["upstream"], row["destination"])) for row in one["differences"])
            for name, one in found.items()
            if one["differences"]
        }
        assert differing == {name: sorted(map(repr, of)) for name, of in expected.items()}
        assert (code, [one["schema"] for one in found.values() if one["schema"]]) == (3, [])
        code, found = self.check("-repair")
        assert (code, {name: len(one["repaired"]) for name, one in found.items() if one["repaired"]}) == (
            0,
            {name: len(of) for name, of in expected.items()},
        )
        ours, theirs = self.peer.connect(**AS_TEXT), self.mariadb.connect(**AS_TEXT)
        with contextlib.closing(ours), contextlib.closing(theirs):
            for table in found:
                named = self.name, table, columns(ours, self.name, table)  # whose order may be another one
                assert rows(ours, *named) == rows(theirs, *named)


def behind(cursor: Cursor, statement: str) -> threading.Thread:
    """Execute a statement that waits for others."""
    thread = threading.Thread(target=cursor.execute, args=(statement,), daemon=True)
    thread.start()
    return thread


def error_of(cursor: Cursor, statement: str) -> int:
    try:
        cursor.execute(statement)
    except pymysql.err.Error as error:
        return int(error.args[0])
    return 0


def test_rows_of_a_cascade_that_a_foreign_key_or_a_missing_index_refuses(upstream: Peer, mariadb: MariaDB) -> None:
    """A refused statement that does not cascade leaves no row in the binlog."""
    stream = Stream(upstream, mariadb, "refused")
    stream.begin(
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        "CREATE TABLE other (id INT PRIMARY KEY)",
        "CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES other (id), "
        "FOREIGN KEY (p) REFERENCES parent (id) ON UPDATE CASCADE ON DELETE CASCADE)",
        "CREATE TABLE refuser (p INT PRIMARY KEY, FOREIGN KEY (p) REFERENCES parent (id))",
        "CREATE TABLE indexed (id INT PRIMARY KEY, p INT, KEY first_key (p), KEY second_key (p), "
        "FOREIGN KEY (p) REFERENCES other (id) ON UPDATE CASCADE)",
        "CREATE TABLE committed (id INT PRIMARY KEY AUTO_INCREMENT)",
        "INSERT INTO parent VALUES (1), (2), (3)",
        "INSERT INTO other VALUES (1), (2), (3)",
        "INSERT INTO child VALUES (1, 1), (2, 2)",
        "INSERT INTO refuser VALUES (1)",
        "INSERT INTO indexed VALUES (3, 3)",
    )
    with stream.session() as writer, stream.session() as reader, stream.session() as definer:
        for mode, statement, code in (
            ("OPTIMISTIC", "DELETE FROM parent WHERE id = 1", 1451),  # `refuser` has it
            ("PESSIMISTIC", "UPDATE parent SET id = 9 WHERE id = 2", 1452),  # `other` has no 9
            ("PESSIMISTIC", "INSERT INTO child VALUES (7, 77)", 1452),
            ("OPTIMISTIC", "DELETE FROM other WHERE id = 2", 1451),
        ):
            writer.execute(f"BEGIN {mode}")
            assert error_of(writer, statement) == code, statement
            writer.execute("INSERT INTO committed VALUES ()")
            writer.execute("COMMIT")
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM indexed")  # the job waits for its end in a state in which nobody reads the index
        dropping = behind(definer, "ALTER TABLE indexed DROP INDEX first_key")

        def is_refused() -> bool:
            writer.execute("ROLLBACK")
            writer.execute("BEGIN")
            return error_of(writer, "UPDATE other SET id = 30 WHERE id = 3") == 1176

        wait_until(is_refused, what="the index is being dropped")
        writer.execute("INSERT INTO committed VALUES ()")
        writer.execute("COMMIT")
        reader.execute("COMMIT")
        dropping.join()
    code, log = stream.drain()
    assert code == 0, log
    stream.assert_named_and_mended(
        parent=[({"id": "1"}, None), ({"id": "2"}, None), (None, {"id": "9"})],
        child=[({"p": "2"}, {"p": "9"})],
        other=[({"id": "3"}, None), (None, {"id": "30"})],
    )


FAMILY = (
    "CREATE TABLE parent (id INT {key}, v INT)",
    "CREATE TABLE child (id INT PRIMARY KEY, p INT, v INT, FOREIGN KEY (p) REFERENCES parent (id) ON UPDATE CASCADE)",
    "CREATE TABLE counter (n INT PRIMARY KEY)",
    "INSERT INTO parent VALUES (1, 1), (2, 2)",
    "INSERT INTO child VALUES (1, 1, 1), (2, 2, 2)",
    "INSERT INTO counter VALUES (5)",
)


def attempt_twice(stream: Stream) -> None:
    """An UPDATE of the parent writes id = 15 and waits for a lock of the child; in its second attempt id = 18."""
    waits = "SELECT 1 FROM information_schema.TIDB_TRX WHERE STATE = 'LockWaiting'"
    update = "UPDATE parent SET id = 10 + (SELECT SUM(n) FROM counter WHERE n > parent.v) WHERE id = 1"
    with stream.session() as writer, stream.session() as holder, stream.session() as asking:
        holder.execute("BEGIN PESSIMISTIC")
        holder.execute("UPDATE child SET v = 7 WHERE id = 1")
        holder.execute("UPDATE counter SET n = 8")
        writer.execute("BEGIN PESSIMISTIC")
        waiting = behind(writer, update)
        wait_until(lambda: asking.execute(waits), what="it waits for a lock")
        holder.execute("COMMIT")
        waiting.join()
        writer.execute("COMMIT")
        asking.execute("SELECT id FROM parent ORDER BY id")
        assert asking.fetchall() == ((2,), (18,))


def test_rows_of_two_attempts_of_a_cascade(upstream: Peer, mariadb: MariaDB) -> None:
    stream = Stream(upstream, mariadb, "twice")
    stream.begin(*(text.format(key="PRIMARY KEY") for text in FAMILY))
    attempt_twice(stream)
    code, log = stream.drain()
    assert code == 0, log
    stream.assert_named_and_mended(parent=[(None, {"id": "15", "v": "1"})])


def test_transaction_of_two_attempts_that_stops_the_drainer_is_skipped(upstream: Peer, mariadb: MariaDB) -> None:
    """The parent's rows have no key by which changes of a row are merged, so each of them is applied."""
    stream = Stream(upstream, mariadb, "skipped")
    stream.begin(*(text.format(key="UNIQUE") for text in FAMILY))
    attempt_twice(stream)
    code, log = stream.drain()
    assert (code, re.findall(r"kind=(\w+)", log)) == (2, ["RowMissing"]), log
    skipped = re.findall(r"put (\d+) into syncer.ignore-txn-commit-ts", log)
    code, log = stream.drain(f"ignore-txn-commit-ts = [{skipped[0]}]")
    assert code == 0, log
    stream.assert_named_and_mended(
        parent=[({"id": "18", "v": "1"}, None), (None, {"id": "1", "v": "1"})], child=[({"p": "18"}, {"p": "1"})]
    )


def test_column_that_comes_back_with_a_recovered_table(upstream: Peer, mariadb: MariaDB) -> None:
    """DROP COLUMN and DROP TABLE are queued behind a DDL that waits for a transaction."""
    stream = Stream(upstream, mariadb, "recovered")
    stream.begin("CREATE TABLE t (id INT PRIMARY KEY, c INT DEFAULT 4, v INT)", "INSERT INTO t VALUES (1,1,1), (2,2,2)")
    ddls = "ALTER TABLE t COMMENT 'x'", "ALTER TABLE t DROP COLUMN c", "DROP TABLE t"
    with contextlib.ExitStack() as stack:
        writer, *definers = (stack.enter_context(stream.session()) for _ in range(1 + len(ddls)))
        writer.execute("BEGIN")
        writer.execute("SELECT * FROM t")
        running: list[threading.Thread] = []

        def has_queued() -> bool:
            writer.execute("ADMIN SHOW DDL JOBS 5")
            return len([row for row in writer.fetchall() if row[2] == "t" and row[-1] != "synced"]) == len(running)

        for definer, ddl in zip(definers, ddls, strict=True):
            running.append(behind(definer, ddl))
            wait_until(has_queued, what=f"a job is there: {ddl}")
        writer.execute("COMMIT")
        for thread in running:
            thread.join()
        for statement in ("RECOVER TABLE t", "INSERT INTO t (id, v) VALUES (3, 3)", "UPDATE t SET v = 9 WHERE id = 1"):
            writer.execute(statement)
    code, log = stream.drain()
    assert (code, re.findall(r"kind=(\w+)", log)) == (2, ["RowsRefused"]), log
    code, found = stream.check("-repair")
    assert (code, bool(found["t"]["error"]), len(found["t"]["schema"])) == (2, True, 1)
    mariadb.query(found["t"]["schema"][0]["statement"])
    code, log = stream.drain()
    assert code == 0, log
    stream.assert_named_and_mended(t=[({"c": "2"}, {"c": "4"})])
