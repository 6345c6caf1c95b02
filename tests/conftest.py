"""Fixtures every test may use, and the options of the golden tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import Etcd, MariaDB, require_java, running_etcd, running_mariadb


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--captures",
        action="append",
        type=Path,
        default=[],
        metavar="DIR",
        help="run the golden capture tests on this recording too (a set, or a folder of sets)",
    )
    parser.addoption(
        "--vectors",
        action="append",
        type=Path,
        default=[],
        metavar="FILE",
        help="run the golden codec tests on this file of vectors too",
    )


@pytest.fixture
def etcd() -> Iterator[Etcd]:
    """A fresh real etcd; `.endpoint` is its client URL."""
    with running_etcd() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDB]:
    with running_mariadb() as server:
        yield server


@pytest.fixture
def mariadb(mariadb_server: MariaDB) -> MariaDB:
    """A real MariaDB without any database of an earlier test."""
    mariadb_server.reset()
    return mariadb_server


@pytest.fixture
def java() -> None:
    """Spark can start here."""
    require_java()
