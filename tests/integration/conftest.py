"""Fixtures of several integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peer.cluster import Peer, peer_bin, running_peer


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    """A real cluster, for desk tests, which are skipped without PEER_BIN."""
    binaries = peer_bin()
    assert binaries is not None
    with running_peer(binaries, tmp_path) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Spark session with two cores, for the tests of one module."""
    from drainer.spark.startup.jvm_launch import start_jvm
    from drainer.spark.startup.session import open_session, stop_session  # pyspark is imported where a test needs it

    output = tmp_path_factory.mktemp("spark") / "spark.log"
    session = open_session(start_jvm(master="local[2]", output=output, conf={}))
    yield session
    stop_session(session)
