"""Fixtures of the drainer's integration tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.drainer.stubs import Stubs, running_stubs
from tests.support.servers import Etcd


@pytest.fixture
def stubs(etcd: Etcd, java: None) -> Iterator[Stubs]:
    """No pump yet; `add` makes them."""
    with running_stubs(etcd) as cluster:
        yield cluster
