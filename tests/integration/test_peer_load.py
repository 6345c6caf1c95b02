"""The load of the desk tests against a TiDB alone, without binlogs: its statements must fit every time."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest

from tests.peer.load import CALM_DDLS, DDLS, Load, prepare, running_load
from tests.peer.marks import desk_test
from tests.support.servers import MariaDB, wait_until

pytestmark = desk_test(600)


@pytest.fixture(autouse=True)
def tables(tidb: MariaDB) -> None:
    with contextlib.closing(tidb.connect()) as connection:
        prepare(connection)


@pytest.mark.parametrize("ddls", [DDLS, CALM_DDLS], ids=["all", "calm"])
def test_the_ddl_lists_can_run_again(ddls: Sequence[str], tidb: MariaDB) -> None:
    """The tests run them once, twice or in two parts: none may need what an earlier run has taken away."""
    load = Load(tidb.connect, works=())
    for _ in range(2):
        load.define(ddls, pause_s=0)
        assert load.failed_ddls == []


def test_load_ddls_succeed_beside_concurrent_rows(tidb: MariaDB) -> None:
    """Rows come and go under every DDL; what a transaction runs into because of a DDL is its own matter."""
    with running_load(tidb.connect, pause_s=0.01) as load:
        load.define(DDLS)
        wait_until(lambda: load.committed.total() > 500, deadline_s=120, what="500 transactions are written")
    assert load.failed_ddls == []
