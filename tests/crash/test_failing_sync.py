"""fsync and fdatasync of a pump process fail in the kernel, under load."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.registry import Registry, State
from binlog.cluster.timestamp import TimestampSource
from grpc import aio

from tests.crash.pumps import Life
from tests.crash.syscalls import Interception, require_interception
from tests.integration.pump.rpc import until
from tests.integration.pump.test_process import cluster_of, timestamps
from tests.support.servers import Etcd
from tests.unit.pump.build import prewrite

pytestmark = [pytest.mark.slow, pytest.mark.integration]

COMMITS = 100  # before the fault


@pytest.fixture
def interception(tmp_path: Path) -> Iterator[Interception]:
    require_interception(tmp_path)
    made = Interception(tmp_path)
    yield made
    made.close()


async def written_until_it_fails(life: Life, source: TimestampSource, fail: Callable[[], object]) -> None:
    """Load; after a moment of it `fail` is called, and the load ends by that."""
    client = life.client()
    load = life.load(source, random.Random(1))
    running = asyncio.create_task(load.run(client))
    following = [asyncio.create_task(stream.follow(client)) for stream in life.streams]
    await life.has_acknowledged(COMMITS)
    assert not load.ended_by, "the load must end by the fault"
    fail()
    async with asyncio.timeout(120):
        await running
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    await client.close()


def lose_the_rest(synced: dict[str, int]) -> None:
    """What was behind the last sync of each file that worked never reached the disk."""
    for path, size in synced.items():
        os.truncate(path, min(size, Path(path).stat().st_size))


@pytest.mark.parametrize(
    ("place", "lost"),
    [(".vlog", True), (".vlog", False), ("/kv/", True), ("/checkpoint.new", False), ("/value", True)],
)
async def test_pump_with_failed_sync_stops_writing_and_recovers_after_restart(
    tmp_path: Path, etcd: Etcd, interception: Interception, place: str, lost: bool
) -> None:
    """The pump writes no more, leaves `online` and says why; it serves what it has, until a restart, which serves what
    was acknowledged: whether the disk has the bytes of the failed sync or not (`lost`)."""
    synced: dict[str, int] = {}

    def rule(path: str, fails: str = "\0") -> int:
        """Errors for `fails`; else remembers how much of a file of the log is on the disk now."""
        if fails in path and (fails != "/value" or path.endswith(fails)):
            return errno.EIO
        if path.endswith(".vlog"):
            synced[path] = Path(path).stat().st_size
        return 0

    interception.rule = rule
    life = Life(tmp_path, etcd, "p1", await cluster_of(etcd), before=interception.before)
    source, store = await timestamps(etcd), connect_etcd([etcd.endpoint])
    life.start()
    try:
        await life.serving()

        def fail() -> None:
            interception.rule = lambda path: rule(path, place)

        await written_until_it_fails(life, source, fail)
        interception.rule = rule  # a disk that works again is no reason to go on: nobody knows what it holds
        assert interception.failed and all(place in path for path in interception.failed)

        async def pausing() -> bool:
            record = await Registry(store).get("pumps", "p1")
            return record is not None and record.status.state is State.PAUSING

        await until(pausing)
        client = life.client()
        for payload in (b"", prewrite(await source.get())):
            with pytest.raises(aio.AioRpcError, match="no online") as refusal:
                await client.write(payload)
            assert "put/output error" in (refusal.value.details() or "")
        await life.check(client, "broken")
        await client.close()

        life.kill()
        if lost:
            lose_the_rest(synced)
        life.start()
        await life.serving()
        client = life.client()
        await life.check(client, "restarted")
        await life.load(source, random.Random(2)).finish(client)
        await life.check_streams(client, "restarted and finished")
        assert len(life.streams[0].served) >= COMMITS
        await client.close()
    finally:
        life.kill()
        await source.close()
        await store.close()
