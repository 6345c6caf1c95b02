"""A million pings at a pump process: what they cost is bounded, also where nobody reads the answers, and others are
served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import pytest
from binlog.http2 import frames

from tests.integration.drainer.large_case import peak_rss
from tests.integration.pump.rpc import Client, connected, until
from tests.integration.pump.test_process import cluster_of, pump
from tests.support.servers import Etcd, free_port
from tests.unit.http2.peer import GREETING, frame
from tests.unit.pump.build import commit, prewrite

pytestmark = [pytest.mark.slow, pytest.mark.integration]

MIB = 1 << 20
PINGS = 1_000_000
EACH = 10_000
WAIT_S = 60.0
PING = frame(frames.PING, bytes(8))


async def read_all(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(MIB):
            pass


async def flood(port: int, left: int, *, reads: bool) -> int:
    """Write pings over one connection as fast as the socket takes them, until it is cut; how many."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reading = asyncio.create_task(read_all(reader)) if reads else None
    sent = 0
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(GREETING)
            while sent < left:
                writer.write(PING * EACH)
                sent += EACH
                async with asyncio.timeout(WAIT_S):
                    await writer.drain()
    finally:
        if reading is not None:
            reading.cancel()
        writer.transport.abort()
    return sent


async def transactions(client: Client, times: list[float]) -> None:
    """One after another, until cancelled; seconds of each."""
    while True:
        begun_s = time.monotonic()
        start_ts = int(time.time() * 1000) << 18 | 1 << 17
        await client.write(prewrite(start_ts))
        await client.write(commit(start_ts, start_ts + 1))
        times.append(time.monotonic() - begun_s)
        await asyncio.sleep(0.002)  # another millisecond: another start_ts


@pytest.mark.parametrize("reads", [True, False])
async def test_million_pings_take_bounded_memory_while_writes_continue(tmp_path: Path, etcd: Etcd, reads: bool) -> None:
    """Each connection is cut when its budget is used up, and the peer comes again with the rest."""
    port = free_port()
    server = pump(tmp_path, etcd, "p1", port).start()
    try:
        await asyncio.to_thread(server.wait_for_output, "pump is serving")
        assert server.process is not None
        pid = server.process.pid
        async with connected(f"127.0.0.1:{port}", await cluster_of(etcd)) as client:
            times: list[float] = []
            writing = asyncio.create_task(transactions(client, times))
            await written(times, writing, 1)
            base, sent = peak_rss(pid), 0
            while sent < PINGS:
                before = len(times)
                sent += await flood(port, PINGS - sent, reads=reads)
                await written(times, writing, before + 1)
            writing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writing
            assert peak_rss(pid) - base < 48 * MIB
            assert "too many frames that make no progress" in server.text()
    finally:
        server.kill()


async def written(times: list[float], writing: asyncio.Task[None], count: int) -> None:
    """So many transactions are; whatever ended the writer is raised."""

    async def so_many() -> bool:
        return len(times) >= count or writing.done()

    await until(so_many)
    if writing.done():
        writing.result()
