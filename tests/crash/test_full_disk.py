"""A pump process on a small disk that somebody else fills, and empties again."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
from grpc import StatusCode, aio

from pump.store.limits import RESUME_BYTES
from tests.crash.pumps import Life
from tests.crash.small_disk import on_small_disk, require_small_disk, seen_by
from tests.integration.pump.rpc import Client, until
from tests.integration.pump.test_process import cluster_of, timestamps
from tests.support.servers import Etcd, wait_until
from tests.unit.pump.build import prewrite

pytestmark = [pytest.mark.slow, pytest.mark.integration]

DISK_BYTES = RESUME_BYTES + (32 << 20)
LIMIT_BYTES = 16 << 20
COMMITS = 100  # before the fault
BLOCK = bytes(1 << 16)


def fill(path: Path, left_bytes: int) -> None:
    """Until the file system has no more than that left."""
    with path.open("wb", buffering=0) as file:
        while (free := os.statvfs(path).f_bavail * os.statvfs(path).f_frsize) > left_bytes:
            file.write(BLOCK[: max(1, min(len(BLOCK), free - left_bytes))])


async def refusal(client: Client, payload: bytes) -> tuple[StatusCode, str] | None:
    try:
        await client.write(payload)
    except aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return None


@pytest.mark.parametrize("limit", [LIMIT_BYTES, 0], ids=["limit", "to the last byte"])
async def test_full_disk_refuses_writes_until_space_returns(tmp_path: Path, etcd: Etcd, limit: int) -> None:
    """Writes are refused and say why, reads go on, and when there is room again writes do, by themselves."""
    require_small_disk(tmp_path)
    config = tmp_path / "pump.toml"
    config.write_text(f"[storage]\nstop-write-at-available-space = {limit}\n")
    life = Life(tmp_path, etcd, "p1", await cluster_of(etcd), args=("-config", str(config)))
    life.data.mkdir()
    source = await timestamps(etcd)
    life.start(under=lambda argv: on_small_disk(life.data, DISK_BYTES, argv))
    try:
        await life.serving()
        assert life.server is not None and life.server.process is not None
        pid = life.server.process.pid
        filler = seen_by(pid, life.data / "filler")
        client = life.client()
        load = life.load(source, random.Random(1))
        running = asyncio.create_task(load.run(client))
        following = [asyncio.create_task(stream.follow(client)) for stream in life.streams]
        await life.has_acknowledged(COMMITS)
        assert not load.ended_by, "the load must end by the fault"
        await asyncio.to_thread(fill, filler, limit // 2)
        async with asyncio.timeout(120):
            await running
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)

        refused = await refusal(client, prewrite(await source.get()))
        assert refused is not None
        if limit:
            assert refused[0] is StatusCode.UNKNOWN
            assert "no available space, available: " in refused[1] and str(limit) in refused[1]
        else:
            assert "No space left on device; the pump goes on by itself when the disk has room" in refused[1]
        await life.check(client, "full")
        assert "restarting" not in life.server.text()

        filler.unlink()
        if not limit:
            wait_until(lambda: life.server.text().count("pump is serving") == 2, what="it serves again", deadline_s=120)

        async def taken() -> bool:
            return await refusal(client, b"") is None

        await until(taken)
        assert life.server.process.poll() is None, "by itself, in the same process"
        await client.close()
        client = life.client()
        await life.load(source, random.Random(2)).finish(client)
        await life.check_streams(client, "room again")
        assert len(life.streams[0].served) >= COMMITS
        await client.close()
    finally:
        life.kill()
        await source.close()
