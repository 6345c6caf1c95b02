"""Bytes of a pump's log are lost: drainers cannot read past them until an operator gives up that one transaction."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sqlite3
from pathlib import Path

import grpc
import pytest
from binlog.cluster.writers import PublishedJobs
from binlog.envelope import scan
from binlog.tidb.job import Job

from drainer.sink.sqlite.sink import SQLiteSink
from pumpclient.sdk import BigInt, Column, Service, Table, VarChar
from tests.integration.pumpclient.conftest import Cluster, Pump
from tests.integration.pumpclient.test_pumps import binlogctl
from tests.integration.sink.test_sdk_columns import drain

pytestmark = pytest.mark.integration


def turn_a_bit(pump: Pump, directory: Path, mark: bytes) -> None:
    """In the one record of its log that has `mark`."""
    (log,) = (directory / pump.node_id / "value").glob("*.vlog")
    data = bytearray(log.read_bytes())
    data[data.index(mark)] ^= 1
    log.write_bytes(data)


async def test_damaged_binlog_is_skipped_by_command_and_range_is_readable(cluster: Cluster, tmp_path: Path) -> None:
    commits: list[int] = []
    async with await Service.connect(cluster.url, tso_source="own") as service:
        await service.create_database("shop")
        declared = Table("t", Column("id", BigInt(), primary_key=True), Column("v", VarChar(20)))
        table = await service.create_table("shop", declared)
        for number in range(4):
            async with service.transaction() as txn:
                txn.insert(table, {"id": number, "v": f"the row of {number}"})
            commits.append(txn.commit_ts or 0)
        until_ts = await service._context.timestamps.get()
        cluster_id = service.client.cluster_id
        jobs = [Job.from_json(text) for _, text in await PublishedJobs(service._context.etcd).all()]
        holders = {}
        for pump in cluster.pumps.values():
            holders |= {e.commit_ts: pump for e in await cluster.pull(pump, cluster_id, until_ts)}
    pump = holders[commits[2]]
    await asyncio.to_thread(pump.server.stop)
    turn_a_bit(pump, tmp_path, b"the row of 2")
    await asyncio.to_thread(pump.start)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await cluster.pull(pump, cluster_id, until_ts)
    assert caught.value.code() is grpc.StatusCode.DATA_LOSS
    named = re.search(r"the binlog of commit_ts (\d+) needs it", caught.value.details() or "")
    assert named is not None, caught.value.details()
    assert int(named[1]) == commits[2]

    words = ("pass-over", "-node-id", pump.node_id, "-commit-ts", named[1])
    unasked = await asyncio.to_thread(binlogctl, cluster, *words)
    assert unasked.returncode == 6
    assert "confirm with -yes" in unasked.stdout + unasked.stderr
    shown = await asyncio.to_thread(binlogctl, cluster, *words, "-dry-run", "-o", "json")
    assert json.loads(shown.stdout)["done"][0]["commit_ts"] == commits[2], shown
    with pytest.raises(grpc.aio.AioRpcError):
        await cluster.pull(pump, cluster_id, until_ts)
    other = await asyncio.to_thread(binlogctl, cluster, *words[:-1], str(jobs[0].finished_ts), "-yes")
    assert other.returncode in (4, 6), "nothing but what cannot be read, and nothing that another pump holds"
    done = await asyncio.to_thread(binlogctl, cluster, *words, "-yes")
    assert done.returncode == 0, done.stdout + done.stderr
    await asyncio.to_thread(pump.server.wait_for_output, "a damaged binlog is skipped")

    payloads = [p for each in cluster.pumps.values() for p in await cluster.pull_payloads(each, cluster_id, until_ts)]
    payloads.sort(key=lambda payload: scan(payload).commit_ts)
    assert [ts for payload in payloads if (ts := scan(payload).commit_ts) in commits] == commits, "it keeps its place"
    await asyncio.to_thread(drain, SQLiteSink(tmp_path / "down.sqlite"), jobs, payloads, batch=1000)
    with contextlib.closing(sqlite3.connect(tmp_path / "down.sqlite")) as connection:
        found = connection.execute('SELECT id FROM "shop.t" ORDER BY id').fetchall()
    assert found == [(0,), (1,), (3,)]
