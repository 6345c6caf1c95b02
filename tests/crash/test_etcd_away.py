"""etcd stands still, or is gone, for longer than the lease of the pump that allocates timestamps. CRASH_OUTAGE_S says
how long (a minute at a desk)."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.registry import Registry, State
from binlog.cluster.timestamp import OwnTimestamps, TimestampSource

from pump.cluster.election import LEASE_S
from tests.crash.pumps import Life
from tests.crash.through import going
from tests.integration.pump.rpc import until
from tests.integration.pump.test_process import cluster_of
from tests.support.servers import Etcd, answers
from tests.unit.pump.build import prewrite

pytestmark = [pytest.mark.slow, pytest.mark.integration]

OUTAGE_S = float(os.environ.get("CRASH_OUTAGE_S", str(2.5 * LEASE_S)))


@pytest.mark.timeout(300 + 2 * OUTAGE_S)
@pytest.mark.parametrize("gone", [False, True], ids=["stands still", "killed"])
async def test_pumps_resume_timestamps_after_etcd_outage_longer_than_lease(
    tmp_path: Path, etcd: Etcd, gone: bool
) -> None:
    """Nobody gets timestamps for a while, what has its timestamp is written and read; then everything goes on, with
    larger timestamps, in the same processes, and the pumps' records are their own."""
    cluster_id = await cluster_of(etcd)
    lives = [Life(tmp_path, etcd, name, cluster_id) for name in ("p1", "p2")]
    source = TimestampSource(OwnTimestamps(connect_etcd([etcd.endpoint])), wait_s=OUTAGE_S + 120)
    store = connect_etcd([etcd.endpoint])
    try:
        for life in lives:
            life.start()
        for life in lives:
            await life.serving()
        async with going(lives, source) as through:
            kept = [life.journal.begin(await source.get()) for life in lives]
            assert etcd.server.process is not None
            if gone:
                etcd.server.kill()
            else:
                etcd.server.process.send_signal(signal.SIGSTOP)
            away = asyncio.create_task(asyncio.sleep(OUTAGE_S))

            async def lease_ended() -> bool:
                last_ts = through.last_ts
                await asyncio.sleep(0.5)
                return through.last_ts == last_ts

            await until(lease_ended)
            for life, each in zip(lives, kept, strict=True):
                client = life.client()
                await client.write(each.prewrite)
                each.prewrite_acked = True
                assert each.start_ts in await life.pending(client)
                await client.write(prewrite(each.start_ts, row=each.row))
                await client.close()
            await away
            through.check()

            if gone:
                etcd.server.start()
                await until(lambda: asyncio.to_thread(answers, int(etcd.endpoint.rsplit(":", 1)[1])))
            else:
                etcd.server.process.send_signal(signal.SIGCONT)
            await through.goes_on()
            before = {record.status.node_id: record for record in (await Registry(store).list("pumps")).nodes}

            async def heartbeats() -> bool:
                now = (await Registry(store).list("pumps")).nodes
                assert all(record.status.state is State.ONLINE for record in now)
                return all(record.mod_revision > before[record.status.node_id].mod_revision for record in now)

            await until(heartbeats)
        for life in lives:
            assert life.server is not None and life.server.alive
            assert "another process overwrote" not in life.server.text()
    finally:
        for life in lives:
            life.kill()
        await source.close()
        await store.close()
