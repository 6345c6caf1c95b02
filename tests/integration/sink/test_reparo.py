"""reparo that dies by SIGKILL at any of its crash points: a server and a SQLite file have each transaction once."""

from __future__ import annotations

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
