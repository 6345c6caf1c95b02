"""Fixtures every test may use, and the options of the golden tests."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import structlog
from binlog.runtime.log import LIBRARY_LOGGER
from hypothesis import HealthCheck, settings

from tests.peer.cluster import peer_bin
from tests.peer.destination import running_tidb
from tests.support.cpu_report import Meter
from tests.support.dealing import dealt, longest_first
from tests.support.kafka import Broker, running_kafka
from tests.support.registry import SchemaRegistryServer, running_registry
from tests.support.servers import CACHE, Etcd, MariaDB, require_java, running_etcd, running_mariadb


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
    parser.addoption("--cpu-report", type=int, default=0, metavar="N", help="print the N dearest tests and modules")


# How long an example takes says how busy the machine is, and nothing of what is tested. The same examples at every run:
# what a change did not break, chance does not break either. `make test` takes a quarter of them, `make test-all` all;
# HYPOTHESIS_PROFILE=search looks for others.
_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
_COMMON = settings(deadline=None, suppress_health_check=_QUIET)
settings.register_profile("tests", _COMMON, derandomize=True, database=None)
settings.register_profile("quick", settings.get_profile("tests"), max_examples=25)
settings.register_profile("search", _COMMON, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tests"))


def pytest_configure(config: pytest.Config) -> None:
    os.environ["XDG_CACHE_HOME"] = str(CACHE)
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        # Some images set it. Without bytecode each of the hundreds of programs that tests start compiles all of its
        # imports, a second of CPU; nothing is written beside the sources.
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(CACHE / "bytecode")
        sys.dont_write_bytecode = False
    if count := config.getoption("--cpu-report"):
        config.pluginmanager.register(Meter(count))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """For `-n auto`: two processes for each core, for half of the time of most tests is waiting for servers. A process
    with its servers takes 2 GiB at times."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    cores = len(os.sched_getaffinity(0))
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(cores, min(2 * cores, memory_bytes // (2 << 30)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    workers = getattr(config, "workerinput", {}).get("workercount", 1)  # there in a process of xdist
    if config.option.markexpr == "slow":  # whole modules are given out, in this order
        items[:] = longest_first(items, module=lambda i: i.path, timeout_s=_timeout_s)
    elif workers > 1:
        dear = "integration"
        items[:] = dealt(items, workers, module=lambda i: i.path, dear=lambda i: i.get_closest_marker(dear) is not None)


def _timeout_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker and marker.args else 0


@pytest.fixture(autouse=True)
def _failures_of_this_test_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test leaves in the register of its process would be the failure that a later test's page shows."""
    failures = sys.modules.get("drainer.sink.retry")
    if failures is not None:
        monkeypatch.setattr(failures.FAILURES, "_found", {})


@pytest.fixture(autouse=True)
def _unconfigured_log() -> Iterator[None]:
    """structlog's capture_logs leaves it configured, and log lines of later tests would go another way. A block of
    docs/sdk.md sets a level, under which they would be missing."""
    yield
    structlog.reset_defaults()
    logging.getLogger(LIBRARY_LOGGER).setLevel(logging.NOTSET)


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


@pytest.fixture(scope="module")
def tidb_server() -> Iterator[MariaDB]:
    """For desk tests, which are skipped without PEER_BIN. Of one module: it takes 1.4 GiB."""
    binaries = peer_bin()
    assert binaries is not None
    with running_tidb(binaries) as server:
        yield server


@pytest.fixture
def tidb(tidb_server: MariaDB) -> MariaDB:
    """A real TiDB with its own defaults, and without any database of an earlier test."""
    tidb_server.reset()
    for statement in ("CREATE DATABASE test", "SET GLOBAL sql_mode = DEFAULT"):
        tidb_server.query(statement)
    return tidb_server


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[Broker]:
    """Started once in each process of tests."""
    with running_kafka() as server:
        yield server


@pytest.fixture
def kafka(kafka_server: Broker) -> Broker:
    """A real Kafka broker that runs; topics of earlier tests are there."""
    return kafka_server if kafka_server.server.alive else kafka_server.start()


@pytest.fixture(scope="session")
def schema_registry_server() -> Iterator[SchemaRegistryServer]:
    """Started once in each process of tests."""
    with running_registry() as server:
        yield server


@pytest.fixture
def schema_registry(schema_registry_server: SchemaRegistryServer) -> SchemaRegistryServer:
    """A real schema registry that runs; subjects of earlier tests may be there."""
    return schema_registry_server if schema_registry_server.server.alive else schema_registry_server.start()


@pytest.fixture(scope="session")
def java() -> None:
    """Spark can start here."""
    require_java()
