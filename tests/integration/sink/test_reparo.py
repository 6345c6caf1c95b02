"""reparo that dies by SIGKILL at any of its crash points: a server and a SQLite file have each transaction once. DDLs
that are interrupted anywhere: test_consumer_server.py."""

from __future__ import annotations

import re
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from drainer.reparo.__main__ import main
from tests.golden.compare import differences
from tests.golden.test_files import policy
from tests.integration.sink.forks import children
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.file_case import record, sink
from tests.support.servers import MariaDB, running_mariadb
from tests.unit.drainer.reparo.test_reparo import TS, ddl

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CAPTURE = CaptureSet(GOLDEN / "keys")
SERVER_POINTS = [
    "sink.ddl_marked:3",
    "sink.ddl_after_exec:5",
    "replay.before_commit",
    "replay.after_commit:3",
    "sink.ddl_after_exec",
    "replay.before_commit:4",
]
FILE_POINTS = ["replay.before_commit", "replay.before_commit:3", "replay.after_commit:3", "sink.before_commit:9"]


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


def test_reparo_killed_at_any_point_writes_every_transaction_once_into_server(
    mariadb: MariaDB, files: Path, tmp_path: Path
) -> None:
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


def test_reparo_killed_at_any_point_writes_every_transaction_once_into_sqlite(files: Path, tmp_path: Path) -> None:
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


def test_a_ddl_that_was_refused_is_refused_again_until_it_is_left_out(
    mariadb: MariaDB, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was not interrupted, so a table that exists is not its work and may have other columns."""
    mariadb.reset()
    mariadb.query("CREATE DATABASE shop")
    mariadb.query("CREATE TABLE shop.u (id INT PRIMARY KEY)")
    (tmp_path / "files").mkdir()
    again = "use `shop`; create table u (id int primary key, more int);"
    records = [ddl(TS, again), ddl(TS + 1, "use `shop`; create table t (id int primary key);")]
    (tmp_path / "files" / "binlog-0").write_bytes(b"".join(records))
    config = tmp_path / "reparo.toml"
    to = f'[dest-db]\nport = {mariadb.port}\nuser = "lab"\npassword = "lab"\n'
    text = f'data-dir = "{tmp_path / "files"}"\ndest-type = "mariadb"\n'
    config.write_text(text + to)
    for _ in range(2):
        assert main(["-config", str(config)]) == 2
        assert re.search(
            rf"binlog-0, record at byte 0: the DDL at commit_ts {TS}: .*1050.*already exists.*put {TS} into "
            rf"ignore-txn-commit-ts; the statement: create table u",
            capsys.readouterr().err,
        )
    assert main(["-config", str(config), "-safe-mode", "-name", "safe"]) == 0
    config.write_text(f"{text}ignore-txn-commit-ts = [{TS}, {TS + 1}]\n{to}")
    assert main(["-config", str(config)]) == 0
    assert [row[0] for row in mariadb.query("SHOW COLUMNS FROM shop.u")] == ["id"]
    assert [row[:2] for row in mariadb.query("SELECT name, ddl FROM tidb_binlog.reparo_position ORDER BY name")] == [
        ("reparo", None),
        ("safe", None),
    ]
