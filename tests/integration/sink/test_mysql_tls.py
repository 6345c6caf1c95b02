"""TLS to a real MariaDB: whose certificate is believed, and what happens where none is."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from drainer.sink.errors import DestinationRefused
from drainer.sink.mysql.connection import ConnectionLost, ServerSession, connect, unverified_tls
from drainer.sink.mysql.sink import MySQLSink
from tests.integration.sink.case import IDENTITY, server_config
from tests.support.certificates import Authority, Pair
from tests.support.servers import MariaDB, running_mariadb

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Certificates:
    """Of one authority: for 127.0.0.1, for another host, and one that has expired."""

    authority: Authority
    good: Pair
    other_name: Pair
    expired: Pair


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where the server's user can read."""
    directory = Path(tempfile.mkdtemp(prefix="tls-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def certificates(folder: Path) -> Certificates:
    authority = Authority(folder)
    made = Certificates(
        authority,
        authority.issue("good"),
        authority.issue("other", host="db.example.com"),
        authority.issue("expired", days=-1),
    )
    for file in folder.iterdir():
        file.chmod(0o644)
    return made


Serving = Callable[[Pair], MariaDB]


@pytest.fixture(scope="module")
def serving(certificates: Certificates) -> Iterator[Serving]:
    """A server with this pair; one for each pair, kept for the module."""
    with ExitStack() as stack:
        running: dict[Path, MariaDB] = {}

        def with_pair(pair: Pair) -> MariaDB:
            if pair.cert not in running:
                options = (f"--ssl-ca={certificates.authority.ca}", f"--ssl-cert={pair.cert}", f"--ssl-key={pair.key}")
                running[pair.cert] = stack.enter_context(running_mariadb(*options))
            return running[pair.cert]

        yield with_pair


def opened(mariadb: MariaDB, **changes: object) -> ServerSession:
    return connect(server_config(mariadb, **changes), idle_s=60, read_timeout_s=10)


def is_encrypted(session: ServerSession) -> bool:
    return session.query(b"SHOW STATUS LIKE 'Ssl_cipher'")[0][1] != ""


def test_certificate_of_ca_for_host_is_accepted(serving: Serving, certificates: Certificates) -> None:
    session = opened(serving(certificates.good), ssl_ca=str(certificates.authority.ca))
    assert is_encrypted(session)
    session.close()


def test_certificate_of_another_ca_is_refused_without_retry(
    serving: Serving, certificates: Certificates, tmp_path: Path
) -> None:
    """At once, not after the time for which an unreachable server is waited for; the text says what to correct."""
    stranger = Authority(tmp_path, "stranger")
    destination = MySQLSink(server_config(serving(certificates.good), ssl_ca=str(stranger.ca)))
    with pytest.raises(DestinationRefused, match="certificate is refused") as caught:
        destination.open(IDENTITY, 1)
    assert "stranger.pem" in str(caught.value) and "skip-verify" in str(caught.value)


def test_certificate_for_another_host_is_refused(serving: Serving, certificates: Certificates) -> None:
    with pytest.raises(DestinationRefused, match=r"127\.0\.0\.1.*not valid for|IP address mismatch"):
        opened(serving(certificates.other_name), ssl_ca=str(certificates.authority.ca))


def test_expired_certificate_is_refused(serving: Serving, certificates: Certificates) -> None:
    with pytest.raises(DestinationRefused, match="expired"):
        opened(serving(certificates.expired), ssl_ca=str(certificates.authority.ca))


def test_skip_verify_encrypts_without_verification_and_warns(serving: Serving, certificates: Certificates) -> None:
    """It is asked for by name, and the log says so."""
    for pair in (certificates.expired, certificates.other_name):
        for more in ({}, {"ssl_ca": str(certificates.authority.ca)}):
            session = opened(serving(pair), skip_verify=True, **more)
            assert is_encrypted(session)
            session.close()
    destination = MySQLSink(server_config(serving(certificates.expired), skip_verify=True))
    with capture_logs() as lines:
        destination.open(IDENTITY, 1)
    destination.close(clean=True)
    assert any("not verified" in line["event"] for line in lines)


def test_default_connection_is_encrypted_without_verification(serving: Serving, certificates: Certificates) -> None:
    """As long as the server offers it. Connections share what they need for that, and none reads the system's CAs."""
    for _ in range(2):
        session = opened(serving(certificates.expired))
        assert is_encrypted(session)
        session.close()
    assert not unverified_tls().get_ca_certs()


def test_client_certificate_is_presented_to_server(serving: Serving, certificates: Certificates) -> None:
    mariadb = serving(certificates.good)
    mariadb.query("CREATE OR REPLACE USER strict@'%' IDENTIFIED BY 'x' REQUIRE X509")
    mariadb.query("GRANT ALL ON *.* TO strict@'%'")
    ca, pair = str(certificates.authority.ca), certificates.good
    with pytest.raises(DestinationRefused, match="1045"):
        opened(mariadb, user="strict", password="x", ssl_ca=ca)
    session = opened(mariadb, user="strict", password="x", ssl_ca=ca, ssl_cert=str(pair.cert), ssl_key=str(pair.key))
    assert is_encrypted(session)
    session.close()


def test_unusable_tls_files_are_refused_by_name(serving: Serving, certificates: Certificates, tmp_path: Path) -> None:
    mariadb = serving(certificates.good)
    with pytest.raises(DestinationRefused, match="no-such-ca"):
        opened(mariadb, ssl_ca=str(tmp_path / "no-such-ca.pem"))
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(DestinationRefused, match=r"empty\.pem"):
        opened(mariadb, ssl_ca=str(empty))
    with pytest.raises(DestinationRefused, match="ssl-ca"):
        opened(mariadb, ssl_cert=str(certificates.good.cert), ssl_key=str(certificates.good.key))


def test_server_without_tls_is_refused_when_tls_is_configured(mariadb: MariaDB, certificates: Certificates) -> None:
    """Nobody between may take TLS away: no password is sent."""
    for changes in ({"ssl_ca": str(certificates.authority.ca)}, {"skip_verify": True}):
        with pytest.raises(DestinationRefused, match="offers no TLS"):
            opened(mariadb, **changes)


@contextmanager
def asking_for_the_password(plugin: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A server without TLS that asks every client to authenticate with this plugin; its port, and what it was sent
    for an answer."""
    heard: list[bytes] = []
    greeting = (
        b"\x0a8.0.0\x00" + (1).to_bytes(4, "little") + b"12345678\x00" + b"\xff\xf7" + b"\x2d" + b"\x02\x00"
        + b"\xff\x80" + b"\x15" + b"\x00" * 10 + b"123456789012\x00" + b"mysql_native_password\x00"
    )  # fmt: skip
    switch = b"\xfe" + plugin + b"\x00" + b"Password: \x00"

    def packet(number: int, body: bytes) -> bytes:
        return len(body).to_bytes(3, "little") + bytes([number]) + body

    def serve(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client:
            client.settimeout(10)
            client.sendall(packet(0, greeting))
            client.recv(4096)
            client.sendall(packet(2, switch))
            try:
                heard.append(client.recv(4096))
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield listener.getsockname()[1], heard
        thread.join(60)


@pytest.mark.parametrize("plugin", [b"mysql_clear_password", b"dialog"])
def test_password_is_never_sent_in_clear_to_unverified_server(plugin: bytes, mariadb: MariaDB) -> None:
    secret = "s3cret-" + os.urandom(4).hex()
    with asking_for_the_password(plugin) as (port, heard):
        config = server_config(mariadb, port=port, password=secret)
        with pytest.raises((DestinationRefused, ConnectionLost)) as caught:
            connect(config, idle_s=60, read_timeout_s=10)
    assert all(secret.encode() not in sent for sent in heard)
    assert isinstance(caught.value, DestinationRefused), caught.value
    assert "clear" in str(caught.value)
