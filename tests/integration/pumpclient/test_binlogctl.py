"""binlogctl as a person and a script meet it: exit codes, -watch at a terminal and in a pipe, servers that are not
there or speak TLS otherwise."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.registry import NodeStatus, Registry, State
from binlog.runtime.security import Security

from pumpclient.ctl import session as ctl_session
from pumpclient.ctl.__main__ import main
from pumpclient.ctl.session import why_unreachable
from tests.support.certificates import Authority
from tests.support.servers import ROOT, Etcd, free_port, wait_until

pytestmark = pytest.mark.integration

DEADLINE_S = 180.0


def register(etcd: Etcd, *statuses: NodeStatus) -> None:
    async def put() -> None:
        store = connect_etcd([etcd.endpoint])
        try:
            for status in statuses:
                await Registry(store).create("pumps", status)
        finally:
            await store.close()

    asyncio.run(put())


def ended(*argv: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(list(argv))
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def test_binlogctl_names_unreachable_etcd_with_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    place = f"127.0.0.1:{free_port()}"
    assert ended("pumps", "-pd-urls", place, "-o", "table") == 3
    error = capsys.readouterr().err
    assert f"no connection to etcd at http://{place} within 5 s" in error
    assert f"http://{place} cannot be reached: " in error


@contextmanager
def listening(context: ssl.SSLContext | None) -> Iterator[str]:
    """The URL of a server that takes connections, with TLS where there is a context, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    found, _ = server.accept()
                    found.settimeout(DEADLINE_S)
                    held.append(context.wrap_socket(found, server_side=True) if context is not None else found)
                except ssl.SSLError:
                    continue
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            scheme = "https" if context is not None else "http"
            yield f"{scheme}://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(DEADLINE_S)
            for each in held:
                each.close()


def test_why_unreachable_names_tls_mismatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "theirs")
    pair = authority.issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)

    def why(url: str, ca: Path | None) -> str:
        security = Security(str(ca)) if ca is not None else None
        return asyncio.run(why_unreachable([url], security))

    with listening(context) as url, monkeypatch.context() as patched:
        patched.setattr(ctl_session, "PROBE_S", DEADLINE_S)  # a handshake may take long on a busy machine
        assert "has a certificate that -ssl-ca does not verify: " in why(url, stranger.ca)
        assert "does it need -ssl-cert and -ssl-key?" in why(url, authority.ca)
        assert "does it need -ssl-ca?" in why(url, None)
    with listening(None) as url:
        assert why(url, authority.ca) == f"{url} does not answer"
        assert why(url, None) == f"{url} accepts the connection, but does not answer: it hangs, or is no etcd"


def started(*argv: str, term: str = "xterm", **files: int) -> subprocess.Popen[str]:
    program = [sys.executable, "-m", "pumpclient.ctl", *argv]
    env = {**os.environ, "TERM": term}
    return subprocess.Popen(program, stdin=subprocess.DEVNULL, cwd=ROOT, text=True, env=env, **files)  # type: ignore[call-overload,no-any-return]


def test_watch_to_a_pipe_prints_one_json_document_per_line(etcd: Etcd) -> None:
    """It goes on while etcd is away, says so, and ends by a signal as if it were asked to."""
    register(etcd, NodeStatus("p1", "h:8250", State.ONLINE, update_ts=1 << 58))
    argv = ("pumps", "-watch", "-interval", "1s", "-o", "json", "-pd-urls", etcd.endpoint)
    with started(*argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        killer = threading.Timer(DEADLINE_S, watching.kill)
        killer.start()
        try:
            first, second = (json.loads(watching.stdout.readline()) for _ in range(2))
            assert [row["node_id"] for row in first["pumps"]] == ["p1"]
            assert first["time"] < second["time"]
            etcd.server.kill()
            while "error" not in (away := json.loads(watching.stdout.readline())):
                pass
            assert away["error"]["exit_code"] == 3
            watching.send_signal(signal.SIGINT)
            rest = watching.stdout.read()
            assert all(json.loads(line) for line in rest.splitlines())
            assert watching.wait(DEADLINE_S) == 0
            assert watching.stderr.read() == ""
        finally:
            killer.cancel()
            watching.kill()


def test_watch_ends_when_its_reader_closes_the_pipe(etcd: Etcd) -> None:
    """`binlogctl pumps -watch | head -1` leaves no process and no traceback behind."""
    argv = ("pumps", "-watch", "-interval", "1s", "-o", "table", "-pd-urls", etcd.endpoint)
    with started(*argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        try:
            assert watching.stdout.readline().startswith("20")
            assert watching.stdout.readline() == "no pumps to list\n"
            watching.stdout.close()
            assert watching.wait(DEADLINE_S) == 0
            assert watching.stderr.read() == ""
        finally:
            watching.kill()


@contextmanager
def watching_at_terminal(etcd: Etcd, term: str) -> Iterator[tuple[subprocess.Popen[str], Callable[[], bytes]]]:
    """binlogctl pumps -watch at a pseudo-terminal, and a function that returns what it has printed."""
    register(etcd, NodeStatus("p1", "h:8250", State.ONLINE, update_ts=1 << 58))
    master, slave = pty.openpty()
    argv = ("pumps", "-watch", "-interval", "1s", "-pd-urls", etcd.endpoint)
    watching = started(*argv, term=term, stdout=slave, stderr=slave)
    os.close(slave)
    shown = bytearray()

    def read() -> bytes:
        while select.select([master], [], [], 0)[0]:
            try:
                found = os.read(master, 1 << 16)
            except OSError:  # nobody has the other end any more
                break
            shown.extend(found)
            if not found:
                break
        return bytes(shown)

    try:
        wait_until(lambda: read().count(b"NODE ID") >= 3, deadline_s=DEADLINE_S, what="three listings")
        yield watching, read
    finally:
        watching.kill()
        watching.wait(DEADLINE_S)
        os.close(master)


def test_watch_at_terminal_replaces_previous_listing(etcd: Etcd) -> None:
    """One listing takes the place of the one before; Ctrl-C leaves the last one and a visible cursor."""
    with watching_at_terminal(etcd, "xterm") as (watching, read):
        shown = read()
        assert b"\x1b[2K" in shown  # lines of the former listing are erased
        assert b"Ctrl-C ends it" in shown
        assert b"\x1b[?25l" in shown
        watching.send_signal(signal.SIGINT)
        ends_s = time.monotonic() + DEADLINE_S
        while watching.poll() is None and time.monotonic() < ends_s:
            read()
            time.sleep(0.02)
        assert watching.returncode == 0
        assert read().rstrip().endswith(b"\x1b[?25h")


def test_watch_at_dumb_terminal_appends_listings(etcd: Etcd) -> None:
    with watching_at_terminal(etcd, "dumb") as (_, read):
        assert b"\x1b" not in read()
