"""Ports of the demo's programs stay theirs until they have started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from demo import processes
from demo.processes import DemoError, free_port
from tests.support import servers


def test_free_port_returns_each_port_once_below_ephemeral_range() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(10_000 <= port < lowest for port in ports), "outgoing connections take what lies above"


def test_free_port_of_demo_avoids_port_given_to_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one port to choose from."""
    port = servers.free_port()
    monkeypatch.setattr(processes.random.SystemRandom, "randrange", lambda *_: port)
    with pytest.raises(DemoError, match="no free port"):
        free_port()


def test_free_port_avoids_port_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        monkeypatch.setattr(processes.random.SystemRandom, "randrange", lambda *_: port)
        with pytest.raises(DemoError, match="no free port"):
            free_port()
