"""Our files, read by the original's reparo. A desk test: skipped without PEER_BIN, in CI too.

PEER_BIN names a folder with the original's `reparo`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden.compare import differences
from tests.golden.test_files import policy
from tests.peer.cluster import peer_bin
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.file_case import binlogs, record, sink
from tests.support.servers import MariaDB, running_mariadb

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(peer_bin() is None, reason="PEER_BIN does not name a folder of the peer's binaries"),
]


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDB]:
    with running_mariadb("--character-set-server=utf8mb4", "--collation-server=utf8mb4_nopad_bin") as server:
        yield server


def reparo(directory: Path, *args: str) -> str:
    program = peer_bin()
    assert program is not None
    command = [str(Path(program) / "reparo"), "-data-dir", str(directory), *args]
    done = subprocess.run(
        command, capture_output=True, timeout=300, check=True, env={"TZ": "UTC"}, cwd=directory.parent
    )
    return (done.stdout + done.stderr).decode(errors="replace")  # it prints binary strings as they are


@pytest.mark.parametrize("name", ["keys", "types", "ddl"])
def test_it_prints_every_row_and_ddl(tmp_path: Path, name: str) -> None:
    capture = CaptureSet(GOLDEN / name)
    files = tmp_path / "files"
    record(capture, sink(files, "pb", rotate_bytes=50_000), tmp_path / "jobs.json", policy(capture))
    lines = reparo(files, "-dest-type", "print").splitlines()
    found = binlogs(files)
    assert sum(line.startswith("schema: ") for line in lines) == sum(len(one.names()) for one in found) > 100
    assert sum(line.startswith("DDL query: ") for line in lines) == sum(one.query is not None for one in found) > 10
    assert not [line for line in lines if "[ERROR]" in line]


def test_its_tables_are_those_of_tidb(mariadb: MariaDB, tmp_path: Path) -> None:
    capture = CaptureSet(GOLDEN / "keys")
    files = tmp_path / "files"
    record(capture, sink(files, "pb", rotate_bytes=50_000), tmp_path / "jobs.json", policy(capture))
    config = tmp_path / "reparo.toml"
    config.write_text(
        f'dest-type = "mysql"\n[dest-db]\nhost = "127.0.0.1"\nport = {mariadb.port}\nuser = "lab"\npassword = "lab"\n'
    )
    out = reparo(files, "-config", str(config))
    assert "[ERROR]" not in out, [line for line in out.splitlines() if "[ERROR]" in line]
    assert differences(mariadb, capture) == []
