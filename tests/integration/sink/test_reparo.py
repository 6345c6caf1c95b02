"""reparo that dies by SIGKILL at any of its crash points: a server and a SQLite file have each transaction once. A DDL
into a server: what is interrupted runs once, and what was refused is refused again."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from drainer.ddl.repetition import named_tables
from drainer.reparo.__main__ import main
from drainer.sink.errors import DestinationDown
from drainer.sink.mysql.connection import ConnectionLost
from drainer.sink.mysql.ddl import fingerprint, interrupted
from drainer.sink.mysql.replay import ddl_replay
from drainer.sink.mysql.replay.destination import ServerReplayer, make
from drainer.sink.mysql.section import MySQLSection
from drainer.sink.replay import ReplayFailed, ReplayPosition, ReplaySettings
from tests.golden.compare import differences
from tests.golden.test_files import policy
from tests.integration.sink.forks import children
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.file_case import record, sink
from tests.support.servers import MariaDB, running_mariadb

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CAPTURE = CaptureSet(GOLDEN / "keys")
SERVER_POINTS = [
    "reparo.before_ddl:3",
    "reparo.after_ddl:5",
    "reparo.before_commit",
    "reparo.after_commit:3",
    "reparo.after_ddl",
    "reparo.before_commit:4",
]
FILE_POINTS = ["reparo.before_commit", "reparo.before_commit:3", "reparo.after_commit:3", "sink.before_commit:9"]


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDB]:
    with running_mariadb("--character-set-server=utf8mb4", "--collation-server=utf8mb4_nopad_bin") as server:
        yield server


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("reparo")
    record(CAPTURE, sink(directory / "files", "pb", rotate_bytes=50_000), directory / "jobs.json", policy(CAPTURE))
    return directory / "files"


def run(args: list[str]) -> None:
    assert main(args) == 0


def life(args: list[str], scratch: Path, crash: str = "") -> int:
    scratch.mkdir(exist_ok=True)
    return children().start(run, (args,), scratch, crash).wait()


def test_a_server_has_every_transaction_once(mariadb: MariaDB, files: Path, tmp_path: Path) -> None:
    config = tmp_path / "reparo.toml"
    config.write_text(
        f'data-dir = "{files}"\ndest-type = "mariadb"\n[dest-db]\nport = {mariadb.port}\nuser = "lab"\n'
        f'password = "lab"\n'
    )
    args = ["-config", str(config), "-txn-batch", "7"]
    assert [life(args, tmp_path / "child", point) for point in SERVER_POINTS] == [-signal.SIGKILL] * len(SERVER_POINTS)
    assert life(args, tmp_path / "child") == 0
    assert differences(mariadb, CAPTURE) == []


def contents(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        return sorted(connection.iterdump())
    finally:
        connection.close()


def test_a_sqlite_file_has_every_transaction_once(files: Path, tmp_path: Path) -> None:
    def args(name: str) -> list[str]:
        config = tmp_path / f"{name}.toml"
        config.write_text(f'data-dir = "{files}"\ndest-type = "sqlite"\n[dest-db]\npath = "{tmp_path / name}"\n')
        return ["-config", str(config), "-txn-batch", "7"]

    assert life(args("whole"), tmp_path / "child") == 0
    for point in FILE_POINTS:
        assert life(args("killed"), tmp_path / "child", point) == -signal.SIGKILL
    assert life(args("killed"), tmp_path / "child") == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert len(contents(tmp_path / "whole")) > 200


FORMER = ReplayPosition(1, 4, 90, 7, 400)
AFTER = ReplayPosition(1, 90, 170, 8, 500)
BEGUN = ReplayPosition(1, 90, 90, 8, 500, in_ddl=True)
TABLES = (
    "CREATE TABLE d.t (id INT PRIMARY KEY, v INT)",
    "INSERT INTO d.t VALUES (1, 1)",
    "CREATE TABLE d.u (id INT PRIMARY KEY)",
    "CREATE TABLE d.w LIKE d.t",
    "CREATE TABLE d.p (id INT PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (9))",
    "CREATE TABLE d.q (id INT PRIMARY KEY)",
    "INSERT INTO d.q VALUES (1)",
)


class Life:
    """One reparo after another, each with a connection of its own."""

    def __init__(self, port: int, *, safe: bool = False) -> None:
        self._port = port
        self._settings = ReplaySettings("test", wait_s=0.0, safe=safe)

    def opened(self) -> tuple[ServerReplayer, ReplayPosition | None]:
        to = make(MySQLSection.model_validate({"port": self._port, "user": "lab", "password": "lab"}), self._settings)
        return to, to.open()

    def ddl(self, query: str, table: str = "t") -> None:
        """As reparo runs it: `repeated` if the stored position says so."""
        to, found = self.opened()
        try:
            tables = named_tables(query, "d", table)
            to.ddl("d", query, AFTER, tables=tables, repeated=found is not None and found.in_ddl)
        finally:
            to.close()

    def position(self) -> ReplayPosition | None:
        to, found = self.opened()
        to.close()
        return found


@pytest.fixture
def db(mariadb: MariaDB) -> MariaDB:
    for statement in (
        "DROP DATABASE IF EXISTS d",
        "DROP DATABASE IF EXISTS tidb_binlog",
        "CREATE DATABASE d",
        *TABLES,
    ):
        mariadb.query(statement)
    return mariadb


def fail_once(monkeypatch: pytest.MonkeyPatch, point: str, error: Exception) -> None:
    failures = [error]

    def passed(name: str) -> None:
        if name == point and failures:
            raise failures.pop()

    monkeypatch.setattr(ddl_replay, "crash_point", passed)


@pytest.mark.parametrize("error", [ConnectionLost("gone"), KeyError("killed")])
@pytest.mark.parametrize("point", ["reparo.before_ddl", "reparo.after_ddl"])
@pytest.mark.parametrize(
    ("query", "check", "found"),
    [
        ("ALTER TABLE t ADD INDEX (v)", "SHOW INDEX FROM d.t WHERE Column_name = 'v'", 1),
        ("ALTER TABLE t ADD COLUMN x INT", "SHOW COLUMNS FROM d.t", 3),
        ("RENAME TABLE t TO x, u TO t, x TO u", "SHOW COLUMNS FROM d.u", 2),
        ("RENAME TABLE t TO x, w TO t, x TO w", "SELECT * FROM d.w", 1),  # tables that look the same
        ("ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE q", "SELECT * FROM d.p", 1),
    ],
)
def test_an_interrupted_ddl_runs_once(
    db: MariaDB, monkeypatch: pytest.MonkeyPatch, query: str, check: str, found: int, point: str, error: Exception
) -> None:
    """Also where a second run makes no error: it would undo the first one, or make a second index."""
    fail_once(monkeypatch, point, error)
    life = Life(db.port)
    with contextlib.suppress(KeyError, DestinationDown):  # nobody waits for the lost connection here
        life.ddl(query, "p" if "PARTITION" in query else "t")
    assert life.position() == BEGUN
    life.ddl(query, "p" if "PARTITION" in query else "t")
    assert len(db.query(check)) == found
    assert life.position() == AFTER
    assert not db.query("SELECT * FROM tidb_binlog.reparo_ddl")


@pytest.mark.parametrize("former", [FORMER, None])
def test_a_ddl_that_was_refused_is_refused_again(db: MariaDB, former: ReplayPosition | None) -> None:
    """It was not interrupted, so a table that exists is not its work and may have other columns."""
    life = Life(db.port)
    to, _ = life.opened()
    if former is not None:
        to.apply([], former)
    to.close()
    for _ in range(2):
        with pytest.raises(ReplayFailed, match=r"1050.*already exists.*; the statement: CREATE TABLE u") as raised:
            life.ddl("CREATE TABLE u (id INT PRIMARY KEY, more INT)", "u")
        assert raised.value.commit_ts == 500
        assert life.position() == former
    db.query("DROP TABLE d.u")
    life.ddl("CREATE TABLE u (id INT PRIMARY KEY, more INT)", "u")
    assert life.position() == AFTER
    Life(db.port, safe=True).ddl("CREATE TABLE u (id INT PRIMARY KEY, more INT)", "u")


def test_a_ddl_that_may_undo_itself_is_not_run_where_nothing_shows_whether_it_has_run(
    db: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the right to read table ids, and where an earlier version has begun it."""
    life = Life(db.port)
    swap = "RENAME TABLE t TO x, w TO t, x TO w"
    unknown = "it is not known whether it has run.*put 500 into ignore-txn-commit-ts; the statement: RENAME"
    with monkeypatch.context() as patch:
        patch.setattr(fingerprint, "_ids", lambda *_: None)
        fail_once(patch, "reparo.after_ddl", KeyError("killed"))
        with pytest.raises(KeyError):
            life.ddl(swap)
        for _ in range(2):
            with pytest.raises(ReplayFailed, match=unknown):
                life.ddl(swap)
    db.query("DELETE FROM tidb_binlog.reparo_ddl")
    with pytest.raises(ReplayFailed, match=unknown):
        life.ddl(swap)
    assert len(db.query("SELECT * FROM d.w")) == 1
    assert life.position() == BEGUN


def test_a_ddl_of_a_reparo_that_was_killed_is_waited_for(db: MariaDB, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server goes on with its statement. Until that has ended, nothing shows whether it has run."""
    life = Life(db.port)
    fail_once(monkeypatch, "reparo.before_ddl", KeyError("killed"))
    with pytest.raises(KeyError):
        life.ddl("ALTER TABLE t ADD INDEX (v)")
    monkeypatch.setattr(interrupted, "LOCK_WAIT_S", 0)
    with db.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT GET_LOCK('{ddl_replay.lock_name('test')}', 0)")
        with pytest.raises(DestinationDown, match="a DDL of a reparo of this name is still running"):
            life.ddl("ALTER TABLE t ADD INDEX (v)")
        cursor.execute("ALTER TABLE d.t ADD INDEX (v)")
    life.ddl("ALTER TABLE t ADD INDEX (v)")
    assert len(db.query("SHOW INDEX FROM d.t WHERE Column_name = 'v'")) == 1
