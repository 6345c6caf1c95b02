"""The marks of desk tests, which run the peer's binaries."""

from __future__ import annotations

import pytest

from tests.peer.cluster import peer_bin


def desk_test(timeout_s: int) -> list[pytest.MarkDecorator]:
    """Return the marks of a module whose tests are skipped without PEER_BIN."""
    return [
        pytest.mark.integration,
        pytest.mark.slow,
        pytest.mark.timeout(timeout_s),
        pytest.mark.skipif(peer_bin() is None, reason="PEER_BIN does not name a folder of the peer's binaries"),
    ]
