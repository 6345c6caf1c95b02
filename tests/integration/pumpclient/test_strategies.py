"""Strategies `score` and `label` with real pumps: what they report, and who gets the writes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.registry import NodeStatus, Registry
from binlog.cluster.timestamp import connect_timestamps

from pumpclient import writer
from pumpclient.client import PumpsClient
from pumpclient.options import upstream
from pumpclient.writer import Limits
from tests.integration.pumpclient.conftest import Cluster
from tests.support.counted import counting
from tests.support.servers import Etcd

pytestmark = pytest.mark.integration

PATIENT = Limits(patience_s=30.0, write_timeout_s=60.0)  # who is chosen, not who is quick: the machine may be slow


@pytest.fixture
def labelled(etcd: Etcd, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(etcd, tmp_path)
    made.add("a1", "-labels", "zone=a,rack=1")
    made.add("b1", "-labels", "zone=b")
    yield made
    for pump in made.pumps.values():
        pump.server.kill()


async def statuses(cluster: Cluster) -> dict[str, NodeStatus]:
    etcd = connect_etcd([cluster.url])
    try:
        return {record.status.node_id: record.status for record in (await Registry(etcd).list("pumps")).nodes}
    finally:
        await etcd.close()


async def written(cluster: Cluster, client: PumpsClient, count: int) -> Counter[str]:
    """So many transactions of nothing, one after the other; who got them."""
    etcd = connect_etcd([cluster.url])
    timestamps = await connect_timestamps(etcd, upstream(cluster.url, tso_source="own"), None)
    chosen: Counter[str] = Counter()
    try:
        for _ in range(count):
            start_ts = await timestamps.get()
            chosen[await client.write_prewrite(start_ts, b"t\x80key", b"\x08\x01")] += 1
            await client.commit(start_ts, await timestamps.get())
    finally:
        await timestamps.close()
        await etcd.close()
    return chosen


async def test_pumps_report_scores_and_labels_in_registry(labelled: Cluster) -> None:
    found = await statuses(labelled)
    assert {name: 1 <= status.score <= 1000 for name, status in found.items()} == {"a1": True, "b1": True}
    assert found["a1"].label == {"zone": "a", "rack": "1"}
    async with await PumpsClient.connect(labelled.url, "score", tso_source="own", limits=PATIENT) as client:
        assert set(await written(labelled, client, 60)) == {"a1", "b1"}
    before = {name: status.update_ts for name, status in found.items()}
    async with asyncio.timeout(180):
        while True:
            found = await statuses(labelled)
            if all(found[name].update_ts > ts for name, ts in before.items()):
                break
            await asyncio.sleep(0.2)
    assert all(1 <= status.score <= 1000 for status in found.values())
    assert json.loads(found["a1"].to_json())["label"] == {"labels": {"zone": "a", "rack": "1"}}


async def test_label_strategy_returns_to_matching_pump_after_its_restart(labelled: Cluster) -> None:
    labels = {"zone": "a"}
    connecting = PumpsClient.connect(labelled.url, "label", tso_source="own", labels=labels, limits=PATIENT)
    async with await connecting as client:
        assert set(await written(labelled, client, 20)) == {"a1"}
        await asyncio.to_thread(labelled.pumps["a1"].server.stop)
        async with asyncio.timeout(180):
            while client.available_pumps != ("b1",):  # noqa: ASYNC110  the registry says so
                await asyncio.sleep(0.05)
        outside = counting(writer.OUTSIDE)
        assert set(await written(labelled, client, 5)) == {"b1"}
        assert outside() == 5
        await asyncio.to_thread(labelled.pumps["a1"].start)
        async with asyncio.timeout(180):
            while client.available_pumps != ("a1", "b1"):  # noqa: ASYNC110  the registry says so
                await asyncio.sleep(0.05)
        assert set(await written(labelled, client, 5)) == {"a1"}
