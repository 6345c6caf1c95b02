"""What listens while a drainer's Spark runs takes nothing from a local connection that does not know its secret."""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from drainer.spark.session import start_session, stop_session
from tests.support import require_java

pytestmark = pytest.mark.integration

ANSWER_S = 60.0
RPC_REQUEST, RPC_FAILURE = 3, 5


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    require_java()
    made = start_session(master="local[1]", output=tmp_path_factory.mktemp("spark") / "spark.log", conf={})
    yield made
    stop_session(made)


def all_of(connection: socket.socket) -> bytes:
    """Until the other side closes the connection."""
    connection.settimeout(ANSWER_S)
    found = b""
    try:
        while data := connection.recv(4096):
            found += data
    except ConnectionResetError:
        pass
    return found


def listening(process: int) -> set[int]:
    """TCP ports on which this process listens."""
    inodes = set()
    for entry in Path(f"/proc/{process}/fd").iterdir():
        try:
            inodes.add(os.readlink(entry))  # noqa: PTH115  sockets are no paths
        except OSError:
            continue
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def test_the_callback_server_takes_no_command_without_the_token(session: SparkSession) -> None:
    """Through it Spark calls foreachBatch in this process."""
    gateway = session.sparkContext._gateway
    assert gateway is not None
    ensure_callback_server_started(gateway)
    called: list[object] = []

    class Target:
        def run(self) -> str:
            called.append(self)
            return "done"

    name = gateway.gateway_property.pool.put(Target())
    for first in ("", "A\nwrong\n"):
        with socket.create_connection(("127.0.0.1", gateway._callback_server.port)) as connection:
            connection.sendall(f"{first}c\n{name}\nrun\ne\n".encode())
            assert b"done" not in all_of(connection)
    assert not called


def test_sparks_ports_take_no_request_without_the_secret(session: SparkSession) -> None:
    """Every port of the JVM: Spark's say that the other side must authenticate, py4j's says nothing that helps."""
    jvm = session.sparkContext._jvm
    assert jvm is not None
    ports = listening(jvm.java.lang.ProcessHandle.current().pid())
    assert len(ports) >= 3, "py4j's gateway, Spark's RPC and its block manager"
    refused = 0
    for port in ports:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            body = b"who are you"
            message = struct.pack(">bqi", RPC_REQUEST, 1, len(body)) + body
            connection.sendall(struct.pack(">q", 8 + len(message)) + message)
            connection.settimeout(ANSWER_S)
            answer = connection.recv(65536) if port != session.sparkContext._gateway.gateway_parameters.port else b""
        if answer:
            assert answer[8] == RPC_FAILURE
            assert re.search(rb"(?i)sasl|auth|challenge", answer), answer
            refused += 1
    assert refused >= 2


def test_the_secret_is_on_no_command_line(session: SparkSession) -> None:
    jvm = session.sparkContext._jvm
    assert jvm is not None
    command = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/cmdline").read_bytes()
    assert b"authenticate=true" in command
    assert b"secret" not in command.lower()
