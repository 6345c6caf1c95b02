"""The real servers start, answer, and are gone afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import ROOT, Etcd, MariaDB, answers, free_port

pytestmark = pytest.mark.integration


def test_etcd_answers(etcd: Etcd) -> None:
    assert answers(int(etcd.endpoint.rsplit(":", 1)[1]))


def test_mariadb_answers(mariadb: MariaDB) -> None:
    assert mariadb.query("SELECT 1 + 1") == [(2,)]


def test_java_for_spark(java: None) -> None:
    """The fixture itself is the check."""


def test_a_port_is_given_once() -> None:
    """Also over processes, and never one that the kernel may take for an outgoing connection."""
    ours = {free_port() for _ in range(300)}
    child = "from tests.support.servers import free_port; print(*(free_port() for _ in range(300)))"
    printed = subprocess.run([sys.executable, "-c", child], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    theirs = {int(port) for port in printed.split()}
    assert len(ours) == len(theirs) == 300
    assert not ours & theirs
    assert max(ours | theirs) < int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
