"""Rows of a query as packets, from a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from drainer.changes.texts import texts_of
from drainer.sink.mysql.connection import ConnectionLost, ServerError, ServerSession, connect
from tests.integration.sink.case import server_config
from tests.support.servers import MariaDB

pytestmark = pytest.mark.integration
LENGTHS = (0, 1, 250, 251, 252, 65_535, 65_536)


@pytest.fixture
def session(mariadb: MariaDB) -> Iterator[ServerSession]:
    opened = connect(server_config(mariadb), idle_s=60, read_timeout_s=60)
    yield opened
    opened.close()


def read(session: ServerSession, query: str, block_bytes: int = 1 << 20) -> list[list[tuple[bytes | None, ...]]]:
    """The rows of each block."""
    count, blocks = session.packets(query.encode(), block_bytes)
    texts = [[column.to_pylist() for column in texts_of(block, count)] for block in blocks]
    return [list(zip(*columns, strict=True)) for columns in texts]


def test_rows_of_any_length_arrive_in_blocks(session: ServerSession) -> None:
    query = " UNION ALL ".join(f"SELECT REPEAT('x', {n}), NULL, {n}" for n in LENGTHS)
    wanted = [(b"x" * n, None, str(n).encode()) for n in LENGTHS]
    assert read(session, query) == [wanted]
    assert [row for block in read(session, query, 300) for row in block] == wanted
    assert len(read(session, query, 300)) > 2
    assert read(session, query + " LIMIT 0") == []
    assert session.query(b"SELECT 1") == [(1,)]


@pytest.mark.parametrize("length", [(1 << 24) - 6, (1 << 24) - 5, (1 << 24) - 4, 17_000_000])
def test_row_of_several_packets_is_joined(mariadb: MariaDB, length: int) -> None:
    """A packet has at most 2^24 - 1 bytes, four of which are the length of the text."""
    (before,) = mariadb.query("SELECT @@GLOBAL.max_allowed_packet")[0]
    mariadb.query("SET GLOBAL max_allowed_packet = 67108864")
    try:
        session = connect(server_config(mariadb), idle_s=60, read_timeout_s=60)
        assert [len(row[0] or b"") for (row,) in read(session, f"SELECT REPEAT('x', {length})")] == [length]
        assert session.query(b"SELECT 1") == [(1,)]
        session.close()
    finally:
        mariadb.query(f"SET GLOBAL max_allowed_packet = {before}")


def test_error_between_rows_leaves_the_session_usable(session: ServerSession, mariadb: MariaDB) -> None:
    failing = "SELECT seq, IF(seq < 5000, 1, (SELECT seq UNION SELECT 2)) FROM mysql.seq_1_to_9000"
    count, blocks = session.packets(failing.encode(), 1 << 10)
    rows = 0
    with pytest.raises(ServerError) as error:
        for block in blocks:
            rows += len(block)
    assert (error.value.code, count) == (1242, 2)
    assert rows > 0
    assert session.query(b"SELECT 1") == [(1,)]
    with pytest.raises(ServerError):
        session.packets(b"SELECT * FROM gone.gone", 1)
    assert session.query(b"SELECT 1") == [(1,)]


def test_connection_that_ends_between_rows_is_lost(session: ServerSession, mariadb: MariaDB) -> None:
    ((number,),) = session.query(b"SELECT CONNECTION_ID()")
    _, blocks = session.packets(b"SELECT seq, REPEAT('x', 1000) FROM mysql.seq_1_to_100000", 1 << 10)
    next(blocks)
    mariadb.query(f"KILL {number}")
    with pytest.raises(ConnectionLost):
        list(blocks)
