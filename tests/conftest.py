"""Fixtures every test may use, and the options of the golden tests."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import CACHE, Etcd, MariaDB, require_java, running_etcd, running_mariadb


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


# How long an example takes says how busy the machine is, and nothing of what is tested.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_configure(config: pytest.Config) -> None:
    os.environ["XDG_CACHE_HOME"] = str(CACHE)


@pytest.fixture
async def closing() -> AsyncIterator[AsyncExitStack]:
    """What is pushed onto it is closed when the test fails, too: a gRPC server that still runs when Python ends keeps
    the process waiting for minutes."""
    async with AsyncExitStack() as stack:
        yield stack


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


@pytest.fixture(scope="session")
def java() -> None:
    """Spark can start here."""
    require_java()
