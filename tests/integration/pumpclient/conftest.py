"""A real etcd, real pumps as processes, and what they hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from binlog.cluster.etcd import connect_etcd
from binlog.cluster.timestamp import LEADER_KEY, connect_timestamps, own_cluster_id
from binlog.envelope import Envelope, scan
from binlog.pb import pump_ext_pb2 as pb
from binlog.runtime.channel import open_channel, stub_of

from pumpclient.options import upstream
from tests.support.servers import Etcd, Server, free_port, python_module, wait_until


async def leader_addr(url: str) -> str:
    """The address of the pump that gives out timestamps, once there is one: on a slow machine a lease may end."""
    etcd = connect_etcd([url])
    try:
        async with asyncio.timeout(90):
            while (kv := await etcd.get(LEADER_KEY)) is None:  # noqa: ASYNC110  other processes
                await asyncio.sleep(0.05)
            return kv.value.decode()
    finally:
        await etcd.close()


@dataclass
class Pump:
    """One pump process; it keeps its port and data-dir over restarts."""

    node_id: str
    server: Server
    addr: str

    def start(self) -> None:
        seen = self.server.text().count("pump is serving")
        self.server.start(PUMP_TSO_SOURCE="own")

        def serves() -> bool:
            if not self.server.alive:
                pytest.fail(f"pump {self.node_id} has ended\n{self.server.tail()}")
            return self.server.text().count("pump is serving") > seen

        wait_until(serves, deadline_s=180, what=f"pump {self.node_id} serves\n{self.server.tail()}")


@dataclass
class Cluster:
    """An etcd and its pumps; timestamps come from the elected pump."""

    etcd: Etcd
    directory: Path
    pumps: dict[str, Pump] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.etcd.endpoint

    def add(self, node_id: str, *options: str) -> Pump:
        """`options`: further flags. With `-advertise-addr` others reach the pump by way of that address."""
        flags = {"-addr": f"127.0.0.1:{free_port()}", **dict(zip(options[::2], options[1::2], strict=True))}
        addr = flags["-addr"]
        given = [word for pair in flags.items() for word in pair]
        arguments = ("-pd-urls", self.url, "-node-id", node_id, "-status-addr", "", *given)
        output = self.directory / f"{node_id}.log"
        server = python_module("pump", *arguments, "-data-dir", str(self.directory / node_id), output=output)
        pump = self.pumps[node_id] = Pump(node_id, server, addr)
        pump.start()
        return pump

    async def leader(self) -> str:
        """The id of the pump that gives out timestamps."""
        addr = await leader_addr(self.url)
        return next(p.node_id for p in self.pumps.values() if p.addr == addr)

    async def settled(self) -> None:
        """Wait until every pump has resolved all that was written before: where a drainer that is started with
        `--until-now` ends at the least."""
        etcd = connect_etcd([self.url])
        cluster_id = await own_cluster_id(etcd)
        timestamps = await connect_timestamps(etcd, upstream(self.url, tso_source="own"), None)
        until_ts = await timestamps.get()
        await timestamps.close()
        await etcd.close()
        for pump in self.pumps.values():
            async with open_channel(pump.addr) as channel:
                await self._resolved(stub_of(channel, pb.DESCRIPTOR, "PumpExt"), cluster_id, until_ts)

    async def _resolved(self, stub: Any, cluster_id: int, until_ts: int) -> None:
        async with asyncio.timeout(90):
            while True:
                mark = await stub.Watermark(pb.WatermarkReq(cluster_id=cluster_id), timeout=60)
                if mark.resolved_ts >= until_ts:
                    return
                await asyncio.sleep(0.05)

    async def inspect(self, pump: Pump, cluster_id: int) -> pb.InspectResp:
        async with open_channel(pump.addr) as channel:
            stub = stub_of(channel, pb.DESCRIPTOR, "PumpExt")
            return await stub.Inspect(pb.InspectReq(cluster_id=cluster_id, pending_max=1000), timeout=60)

    async def pull(self, pump: Pump, cluster_id: int, until_ts: int) -> list[Envelope]:
        """Everything a pump serves up to `until_ts`, once it is resolved there, without fakes."""
        return [scan(payload) for payload in await self.pull_payloads(pump, cluster_id, until_ts)]

    async def pull_payloads(self, pump: Pump, cluster_id: int, until_ts: int) -> list[bytes]:
        """As `pull`, the binlogs themselves."""
        async with open_channel(pump.addr) as channel:
            stub = stub_of(channel, pb.DESCRIPTOR, "PumpExt")
            await self._resolved(stub, cluster_id, until_ts)
            request = pb.PullRangeReq(cluster_id=cluster_id, after_ts=0, until_ts=until_ts)
            found = [p async for response in stub.PullRange(request) for p in response.payloads]
        return [payload for payload in found if not scan(payload).is_fake]


@pytest.fixture
def cluster(etcd: Etcd, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(etcd, tmp_path)
    made.add("p1")
    made.add("p2")
    yield made
    for pump in made.pumps.values():
        pump.server.kill()
