"""Fixtures of several integration tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peer.cluster import Peer, peer_bin, running_peer


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    """A real cluster, for desk tests, which are skipped without PEER_BIN."""
    binaries = peer_bin()
    assert binaries is not None
    with running_peer(binaries, tmp_path) as cluster:
        yield cluster
