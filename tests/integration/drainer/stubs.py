"""Stub pumps registered in a real etcd, and the drainer as a process."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from binlog.cluster.etcd import connect_etcd
from binlog.cluster.registry import ROOT, NodeStatus, State
from binlog.cluster.timestamp import CLUSTER_ID_KEY

from tests.support.servers import Etcd, Server, free_port, python_module
from tests.support.stub_pump import StubPump

CLUSTER = 1


@dataclass
class Stubs:
    """A cluster of stub pumps. `directory` is thrown away at the end. `node_id`: of its drainer."""

    etcd: Etcd
    directory: Path
    pumps: dict[str, StubPump] = field(default_factory=dict)
    servers: list[Server] = field(default_factory=list)
    count: int = 0
    node_id: str = "d1"

    def add(self, name: str, *, extension: bool = True, state: State = State.ONLINE) -> StubPump:
        pump = self.pumps[name] = StubPump(extension=extension, cluster_id=CLUSTER)
        self.register(name, state)
        return pump

    def register(self, name: str, state: State, **status: object) -> None:
        host = self.pumps[name].host if name in self.pumps else "127.0.0.1:1"
        record = NodeStatus(name, host, state, **status)  # type: ignore[arg-type]
        self.put(f"{ROOT}/pumps/{name}", record.to_json())

    def put(self, key: str, value: bytes) -> None:
        async def put() -> None:
            etcd = connect_etcd([self.etcd.endpoint])
            await etcd.put(key, value)
            await etcd.close()

        asyncio.run(put())

    def resolve(self, ts: int) -> None:
        for pump in self.pumps.values():
            pump.resolve(ts)

    def share(self, payloads: list[bytes]) -> None:
        """Deal binlogs out to the pumps in turns."""
        pumps = list(self.pumps.values())
        for number, pump in enumerate(pumps):
            pump.put(*payloads[number :: len(pumps)])

    def drainer(self, config: str, *args: str, **env: str) -> Server:
        self.count += 1
        path = self.directory / f"drainer-{self.count}.toml"
        path.write_text(
            f'pd-urls = "{self.etcd.endpoint}"\ntso-source = "own"\nnode-id = "{self.node_id}"\n'
            f'addr = "127.0.0.1:{free_port()}"\ndata-dir = "{self.directory}/data"\n{config}'
        )
        output = self.directory / f"drainer-{self.count}.log"
        server = python_module("drainer", "-config", str(path), *args, output=output, **env)
        self.servers.append(server)
        return server

    def close(self) -> None:
        for server in self.servers:
            server.kill()
        for pump in self.pumps.values():
            pump.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def running_stubs(etcd: Etcd) -> Iterator[Stubs]:
    cluster = Stubs(etcd, Path(tempfile.mkdtemp(prefix="stubs-")))
    cluster.put(CLUSTER_ID_KEY, str(CLUSTER).encode())
    cluster.put(f"{ROOT}/tso/source", b"own")
    try:
        yield cluster
    finally:
        cluster.close()
