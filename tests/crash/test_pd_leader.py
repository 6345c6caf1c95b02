"""PD's leader changes under load: with stubs of its service, and with three real PDs where PEER_BIN has them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from binlog.cluster.pd import PDClient, ask_first
from binlog.cluster.timestamp import TimestampSource
from binlog.errors import BinlogError
from binlog.pb import pdpb_pb2

from tests.crash.pumps import Life
from tests.crash.through import going
from tests.integration.pump.rpc import until
from tests.peer.cluster import peer_bin
from tests.support.servers import Etcd, Server, free_port
from tests.support.stub_pd import StubPD

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CLUSTER = 7
KILLS = 3


class Member(StubPD):
    """One of several PDs. A follower tells who leads, and gives out nothing; each has its own clock."""

    leader: Member

    async def GetMembers(self, request: Any, context: Any) -> Any:
        answer = await super().GetMembers(request, context)
        answer.leader.client_urls[:] = [self.leader.addr]
        return answer

    async def Tso(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for answer in super().Tso(request_iterator, context):
            if self.leader is self:
                yield answer
                continue
            error = pdpb_pb2.Error(type=pdpb_pb2.UNKNOWN, message="not leader")
            yield pdpb_pb2.TsoResponse(header=pdpb_pb2.ResponseHeader(cluster_id=self.cluster_id, error=error))


@contextlib.asynccontextmanager
async def members() -> AsyncIterator[list[Member]]:
    found = [await Member.start(cluster_id=CLUSTER, addr=f"127.0.0.1:{free_port()}") for _ in range(3)]
    assert all(isinstance(member, Member) for member in found)
    try:
        yield found  # type: ignore[misc]
    finally:
        for member in found:
            await member.close()


async def test_timestamps_rise_over_changes_of_pd_leader(tmp_path: Path, etcd: Etcd) -> None:
    """Writers and drainers go on. A new leader whose clock is behind gives out nothing until it has caught up: no
    timestamp is smaller than one before."""
    async with members() as (first, second, third):

        def lead(leader: Member) -> None:
            for member in (first, second, third):
                member.leader = leader

        lead(first)
        urls = ",".join(f"http://{member.addr}" for member in (first, second, third))
        config = tmp_path / "pump.toml"
        config.write_text(f'pd-addr = "{second.addr}"\n')
        life = Life(tmp_path, etcd, "p1", CLUSTER, args=("-tso-source", "pd", "-config", str(config)))
        source = TimestampSource(PDClient(urls.split(",")), wait_s=120)
        life.start()
        try:
            await life.serving()
            async with going([life], source) as through:
                second.set(first._last_ts)
                lead(second)
                await through.goes_on()
                third.set(second._last_ts)
                lead(third)
                await first.close()
                await through.goes_on()

                behind_ts = third._last_ts - (2000 << 18)
                second.set(behind_ts, hold=True)  # its own clock, and two seconds behind what the former gave out
                last_ts = through.last_ts
                lead(second)

                async def refused() -> bool:
                    return second.asked > 3 and through.last_ts >= last_ts

                asked, second.asked = second.asked, 0
                await until(refused)
                through.check()
                second.run()
                second.set(third._last_ts)
                second.asked += asked
                await through.goes_on()
            assert life.server is not None and life.server.alive
        finally:
            life.kill()
            await source.close()


@pytest.fixture
def real_pds(tmp_path: Path) -> Iterator[list[tuple[str, Server]]]:
    """Three PDs of one cluster, by their client URLs."""
    binaries = peer_bin()
    if binaries is None or not (binaries / "pd-server").exists():
        pytest.skip("PEER_BIN names no folder with a pd-server")
    clients = [f"http://127.0.0.1:{free_port()}" for _ in range(3)]
    peers = [f"http://127.0.0.1:{free_port()}" for _ in range(3)]
    cluster = ",".join(f"pd{number}={peer}" for number, peer in enumerate(peers))
    servers = []
    for number, (client, peer) in enumerate(zip(clients, peers, strict=True)):
        argv = [str(binaries / "pd-server"), f"--name=pd{number}", f"--data-dir={tmp_path}/pd{number}"]
        argv += [f"--client-urls={client}", f"--peer-urls={peer}", f"--initial-cluster={cluster}"]
        argv.append(f"--log-file={tmp_path}/pd{number}.log")
        servers.append(Server(argv, tmp_path / f"pd{number}.out").start())
    try:
        yield list(zip(clients, servers, strict=True))
    finally:
        for server in servers:
            server.kill()


async def test_writes_continue_after_kills_of_real_pd_leader(
    tmp_path: Path, real_pds: list[tuple[str, Server]]
) -> None:
    """With the leader goes one of the three members of the etcd in which the pump's record lies."""
    clients = [client for client, _ in real_pds]

    async def leads() -> bool:
        with contextlib.suppress(BinlogError):
            return bool((await ask_first(clients)).cluster_id)
        return False

    await until(leads)
    cluster_id = (await ask_first(clients)).cluster_id
    etcd = Etcd(real_pds[0][1], ",".join(clients), tmp_path)
    life = Life(tmp_path, etcd, "p1", cluster_id, args=("-tso-source", "pd"))
    source = TimestampSource(PDClient(clients), wait_s=120)
    life.start()
    try:
        await life.serving()
        async with going([life], source) as through:
            for _ in range(KILLS):
                leader = (await ask_first(clients)).address
                (server,) = [server for client, server in real_pds if client == leader]
                await asyncio.to_thread(server.kill)
                await through.goes_on()
                server.start()
                await until(leads)
        assert life.server is not None and life.server.alive
        assert "another process overwrote" not in life.server.text()
    finally:
        life.kill()
        await source.close()
