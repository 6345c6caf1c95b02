"""Sessions of binlogctl on an etcd in memory, and the lines that they log."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
from binlog.cluster.etcd import Etcd
from binlog.cluster.registry import Registry

from pumpclient.ctl.options import Options
from pumpclient.ctl.output import LogOutput, Output
from pumpclient.ctl.session import CommandSession
from pumpclient.options import upstream
from pumpclient.sdk.service import Service
from tests.unit.pumpclient.sdk.conftest import Shop, shop
from tests.unit.pumpclient.stub_pump import CLUSTER_ID, StubPump

__all__ = ["shop"]


class Local(CommandSession):
    """A session whose cluster id is known."""

    async def cluster_id(self) -> int:
        return CLUSTER_ID


def session(etcd: Etcd, out: Output | None = None, **options: Any) -> CommandSession:
    made = Options(**options)
    return Local(made, upstream(made.pd_urls), etcd, Registry(etcd), None, out or LogOutput())


async def abandoned(shop: Shop) -> tuple[StubPump, Service]:
    """Pump a with one pending prewrite, 100, whose writer is gone."""
    service = await shop.service()
    await service.client.write_prewrite(100, b"t\x01", b"\x08\x01")
    return shop.pumps["a"], service


@pytest.fixture
def lines() -> Any:
    with structlog.testing.capture_logs() as captured:
        yield captured
