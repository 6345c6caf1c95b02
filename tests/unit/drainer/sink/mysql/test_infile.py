"""A server that asks for files gets the bytes that were offered to it, once, and nothing else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysql.constants import CLIENT
from pymysql.err import OperationalError

from drainer.sink.mysql.config import ServerConfig
from drainer.sink.mysql.connection import ConnectionLost, InfileConnection, Loaded, ServerError, ServerSession, counts

_GREETING = (
    b"\x0a5.7.0\0" + b"\1\0\0\0" + b"12345678\0" + b"\xff\xf7" + b"\x2d" + b"\2\0" + b"\x0f\x00" + b"\x15" + bytes(10)
    + b"123456789012\0" + b"mysql_native_password\0"
)  # fmt: skip
_OK = b"\0\0\0\2\0\0\0"
_ERROR = b"\xff\x7c\x04#42000not allowed"  # 1148


class FakeServer:
    """Answers statements that begin with LOAD or EVIL as `answer` says, all others with OK. `got`: what came after it
    had asked for a file, a list of packets for each time."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.got: list[list[bytes]] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        raw, _ = self._listener.accept()
        with raw, raw.makefile("rwb") as stream:
            self._send(stream, 0, _GREETING)
            self._receive(stream)
            self._send(stream, 2, _OK)
            while (command := self._receive(stream)) is not None:
                statement = command[1][1:]
                reply = self._answer(statement) if statement.startswith((b"LOAD", b"EVIL")) else _OK
                self._send(stream, 1, reply)
                if reply.startswith(b"\xfb"):
                    self._send(stream, self._file(stream), _OK + b"Records: 2  Deleted: 1  Skipped: 0  Warnings: 3")

    def _file(self, stream: Any) -> int:
        packets: list[bytes] = []
        self.got.append(packets)
        while (packet := self._receive(stream)) is not None:
            number, data = packet
            if not data:
                return number + 1
            packets.append(data)
        return 0

    @staticmethod
    def _send(stream: Any, number: int, payload: bytes) -> None:
        try:
            stream.write(len(payload).to_bytes(3, "little") + bytes([number % 256]) + payload)
            stream.flush()
        except OSError:  # the client has gone
            pass

    @staticmethod
    def _receive(stream: Any) -> tuple[int, bytes] | None:
        try:
            head = stream.read(4)
            if len(head) < 4:
                return None
            return head[3], stream.read(int.from_bytes(head[:3], "little"))
        except OSError:
            return None

    def ended(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._listener.close()


@pytest.fixture
def secret(tmp_path: Path) -> bytes:
    path = tmp_path / "secret"
    path.write_text("what nobody may see")
    return str(path).encode()


@pytest.fixture
def reach() -> Iterator[Callable[[FakeServer], ServerSession]]:
    sessions: list[ServerSession] = []

    def connected(server: FakeServer) -> ServerSession:
        raw = InfileConnection(
            host="127.0.0.1", port=server.port, user="u", password="p", charset="utf8mb4", autocommit=None,
            client_flag=CLIENT.LOCAL_FILES, ssl_disabled=True,
        )  # fmt: skip
        sessions.append(ServerSession(ServerConfig(), raw))
        return sessions[-1]

    yield connected
    for session in sessions:
        session.close()


Reach = Callable[[FakeServer], ServerSession]


def test_server_that_asks_for_any_file_gets_offered_rows(secret: bytes, reach: Reach) -> None:
    server = FakeServer(lambda _: b"\xfb" + secret)
    session = reach(server)
    rows = bytes(range(256)) * 1000
    assert session.load(b"LOAD", rows) == Loaded(2, 1, 0, 3)
    assert session.load(b"LOAD", b"") == Loaded(2, 1, 0, 3)
    session.execute(b"SELECT 1")
    session.close()
    server.ended()
    assert [b"".join(packets) for packets in server.got] == [rows, b""]


def test_request_for_file_not_offered_ends_connection(secret: bytes, reach: Reach) -> None:
    server = FakeServer(lambda _: b"\xfb" + secret)
    session = reach(server)
    with pytest.raises(ConnectionLost, match="not offered"):
        session.execute(b"EVIL")
    with pytest.raises(ConnectionLost):
        session.execute(b"SELECT 1")
    server.ended()
    assert server.got == [[]]


def test_offered_rows_are_sent_only_once(secret: bytes, reach: Reach) -> None:
    server = FakeServer(lambda _: b"\xfb" + secret)
    raw = reach(server)._connection
    raw.offered = b"rows"
    raw.query(b"LOAD")
    with pytest.raises(OperationalError, match="not offered"):
        raw.query(b"LOAD")
    server.ended()
    assert server.got == [[b"rows"], []]


@pytest.mark.parametrize("first", [b"\xfb/rows", _OK, _ERROR], ids=["loaded", "not asked for", "refused"])
def test_offered_rows_are_withdrawn_after_their_statement(secret: bytes, reach: Reach, first: bytes) -> None:
    server = FakeServer(lambda statement: first if statement == b"LOAD" else b"\xfb" + secret)
    session = reach(server)
    if first == _ERROR:
        with pytest.raises(ServerError) as refused:
            session.load(b"LOAD", b"rows")
        assert refused.value.code == 1148
    else:
        assert (session.load(b"LOAD", b"rows") is None) == (first == _OK)
    with pytest.raises(ConnectionLost, match="not offered"):
        session.execute(b"EVIL")
    server.ended()
    assert server.got == ([[b"rows"], []] if first.startswith(b"\xfb") else [[]])


@pytest.mark.parametrize("message", [b"", b"Query OK", b"Records: 3  Deleted: 0  Skipped: 0", b"Records: x  1 2 3"])
def test_load_message_without_four_numbers_gives_no_counts(message: bytes) -> None:
    assert counts(message) is None


@given(*[st.integers(0, 10**12)] * 4, st.sampled_from([b"", b"3", b"5", b"\xfc"]))
def test_load_message_counts_are_read_in_any_language(
    records: int, deleted: int, skipped: int, warned: int, length: bytes
) -> None:
    """PyMySQL leaves the length of the message in front of it, which may be a digit."""
    text = f"Datensätze: {records}  Gelöscht: {deleted}  Ausgelassen: {skipped}  Warnungen: {warned}"
    assert counts(length + text.encode()) == Loaded(records, deleted, skipped, warned)
