"""What a real TiDB writes of a statement that a foreign key undoes (docs/compatibility.md). Needs PEER_BIN."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pymysql
import pytest

from tests.peer.cluster import Peer, peer_bin, running_peer
from tests.peer.marks import desk_test
from tests.support.servers import wait_until

BINARIES = peer_bin()

pytestmark = desk_test(600)

UPSTREAM = (
    "SET GLOBAL tidb_enable_foreign_key = ON",
    "CREATE DATABASE f_{0}",
    "USE f_{0}",
    "CREATE TABLE parent (id INT PRIMARY KEY)",
    "CREATE TABLE child (id INT PRIMARY KEY, pid INT, FOREIGN KEY (pid) REFERENCES parent(id) ON UPDATE CASCADE)",
    "INSERT INTO parent VALUES (12), (52)",
    "INSERT INTO child VALUES (1, 12)",
)


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    assert BINARIES is not None
    with running_peer(BINARIES, tmp_path_factory.mktemp("peer")) as made:
        made.go_pump(made.place("pump"))
        made.start_tidb()
        yield made


@pytest.mark.parametrize(("mode", "is_written"), [("pessimistic", True), ("optimistic", False)])
def test_rows_of_failed_cascade_are_in_binlog_of_pessimistic_transaction_only(
    peer: Peer, mode: str, is_written: bool
) -> None:
    """The original's drainer writes them, too: upstream has parent 12 and its child, a copy has neither."""
    with peer.connect() as connection, connection.cursor() as cursor:
        for statement in UPSTREAM:
            cursor.execute(statement.format(mode))
        cursor.execute(f"BEGIN {mode}")
        with pytest.raises(pymysql.err.IntegrityError, match="1062"):
            cursor.execute("UPDATE parent SET id = id + 40 WHERE id = 12")
        cursor.execute("INSERT INTO parent VALUES (99)")
        cursor.execute("COMMIT")
        cursor.execute("SELECT pid FROM child")
        assert cursor.fetchall() == ((12,),)
        cursor.execute("CREATE TABLE last_one (id INT)")
    files = peer.directory / mode
    (other,) = {"pessimistic", "optimistic"} - {mode}
    peer.go_file_drainer(files, name=mode, ignored=[f"f_{other}"])
    command = [str(peer.binaries / "reparo"), "-data-dir", str(files), "-config", "/dev/null"]

    def printed() -> str:
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout if files.exists() else ""
        return text if "last_one" in text else ""

    text = wait_until(printed, deadline_s=120, what="the original's drainer has written everything")
    assert "id(int): 99" in text
    assert ("pid(int): 12 => 52" in text) == is_written
