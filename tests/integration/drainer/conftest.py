"""Fixtures of the drainer's integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.drainer.stubs import Stubs, running_stubs
from tests.support.servers import Etcd


@pytest.fixture
def stubs(etcd: Etcd, java: None) -> Iterator[Stubs]:
    """No pump yet; `add` makes them."""
    with running_stubs(etcd) as cluster:
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
