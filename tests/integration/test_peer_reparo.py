"""Our files, read by the original's reparo. Skipped without PEER_BIN, which names a folder with it. Files of the
original's drainer, read by ours: test_peer_arbiter.py."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden.compare import differences
from tests.golden.test_files import policy
from tests.peer.cluster import peer_bin
from tests.peer.marks import desk_test
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.file_case import binlogs, record, sink
from tests.support.servers import MariaDB, running_mariadb

pytestmark = desk_test(600)


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDB]:
    with running_mariadb("--character-set-server=utf8mb4", "--collation-server=utf8mb4_nopad_bin") as server:
        yield server


def reparo(directory: Path, *args: str) -> str:
    program = peer_bin()
    assert program is not None
    command = [str(Path(program) / "reparo"), "-data-dir", str(directory), *args]
    done = subprocess.run(
        command, capture_output=True, timeout=300, check=False, env={"TZ": "UTC"}, cwd=directory.parent
    )
    printed = (done.stdout + done.stderr).decode(errors="replace")  # it prints binary strings as they are
    assert done.returncode == 0, printed[-5000:]
    return printed


@pytest.mark.parametrize("name", ["keys", "types", "ddl"])
def test_go_reparo_prints_every_row_and_ddl_of_our_files(tmp_path: Path, name: str) -> None:
    capture = CaptureSet(GOLDEN / name)
    files = tmp_path / "files"
    record(capture, sink(files, "pb", rotate_bytes=50_000), tmp_path / "jobs.json", policy(capture))
    lines = reparo(files, "-dest-type", "print").splitlines()
    found = binlogs(files)
    assert sum(line.startswith("schema: ") for line in lines) == sum(len(one.names()) for one in found) > 100
    assert sum(line.startswith("DDL query: ") for line in lines) == sum(one.query is not None for one in found) > 10
    assert not [line for line in lines if "[ERROR]" in line]


def test_go_reparo_of_our_files_makes_tables_equal_to_tidb(mariadb: MariaDB, tmp_path: Path) -> None:
    capture = CaptureSet(GOLDEN / "keys")
    files = tmp_path / "files"
    record(capture, sink(files, "pb", rotate_bytes=50_000), tmp_path / "jobs.json", policy(capture))
    config = tmp_path / "reparo.toml"
    # One worker: its 16 lock gaps of MariaDB's indexes in different orders, and it ends when a few retries end in a
    # deadlock again.
    config.write_text(
        'dest-type = "mysql"\nworker-count = 1\n'
        f'[dest-db]\nhost = "127.0.0.1"\nport = {mariadb.port}\nuser = "lab"\npassword = "lab"\n'
    )
    out = reparo(files, "-config", str(config))
    assert "[ERROR]" not in out, [line for line in out.splitlines() if "[ERROR]" in line]
    assert differences(mariadb, capture) == []
