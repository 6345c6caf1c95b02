"""Our files, read by the original's reparo, and files of its drainer, read by ours. Skipped without PEER_BIN.

PEER_BIN names a folder with the original's `reparo`; for the last test with `pd-server`, `unitikv`, `tidb-server`,
`pump` and `drainer`, too.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drainer.reparo.__main__ import main
from tests.golden.compare import differences
from tests.golden.test_files import policy
from tests.integration.test_peer import begin
from tests.peer.cluster import Peer, peer_bin
from tests.peer.compare import AS_TEXT
from tests.peer.compare import differences as of_tidb
from tests.peer.load import CALM_DDLS, running_load
from tests.peer.marks import desk_test
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.file_case import binlogs, record, sink
from tests.support.servers import MariaDB, running_mariadb, wait_until

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


def test_reparo_of_go_drainer_files_makes_tables_equal_to_tidb(
    peer: Peer, mariadb: MariaDB, tidb: MariaDB, tmp_path: Path
) -> None:
    """In a MariaDB and in a TiDB, in several runs while the files grow. The original's drainer is killed once, so that
    it writes transactions twice."""
    mariadb.reset()
    peer.go_pump(peer.place("pump-a"))
    begin(peer)
    files = tmp_path / "files"
    drainer = peer.go_file_drainer(files)
    for seed in (1, 2):
        with running_load(peer.connect, pause_s=0.2, seed=seed) as load:
            load.define(CALM_DDLS)
        assert load.failed_ddls == []
        wait_until(lambda: any(files.glob("binlog-*")), deadline_s=120, what="the drainer writes files")
        run_ours(files, mariadb, "mariadb", tmp_path)  # to wherever they have come
        run_ours(files, tidb, "tidb", tmp_path)
        if seed == 1:
            drainer.kill()
            peer.go_file_drainer(files)
    for destination, kind in ((mariadb, "mariadb"), (tidb, "tidb")):
        wait_until(
            lambda: is_replayed(peer, files, destination, kind, tmp_path),  # noqa: B023
            deadline_s=180,
            what=f"the {kind} has what TiDB has",
        )


def run_ours(files: Path, destination: MariaDB, kind: str, directory: Path) -> None:
    config = directory / f"reparo-{kind}.toml"
    config.write_text(
        f'data-dir = "{files}"\ndest-type = "{kind}"\n[dest-db]\nhost = "{destination.host}"\n'
        f'port = {destination.port}\nuser = "{destination.user}"\npassword = "{destination.password}"\n'
    )
    assert main(["-config", str(config), "-txn-batch", "50"]) == 0


def is_replayed(peer: Peer, files: Path, destination: MariaDB, kind: str, directory: Path) -> bool:
    run_ours(files, destination, kind, directory)
    upstream, downstream = peer.connect(**AS_TEXT), destination.connect(**AS_TEXT)
    with contextlib.closing(upstream), contextlib.closing(downstream):
        return next(of_tidb(upstream, downstream), None) is None
