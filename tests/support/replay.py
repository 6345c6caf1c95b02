"""Replays a recording through real pumps and a real drainer.

A recording carries the timestamps of its day. While transaction i is still on its way, the clock must stand below
its commit_ts, or a pump would resolve past rows that have not arrived (that is what resolved ts promises). So
the replay's PD is held, before each write, just below the least commit_ts that is still to come.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from binlog.pb import binlog_pb2, pump_pb2
from binlog.runtime.channel import stub_of

from tests.support.capture import CaptureSet
from tests.support.servers import Etcd, MariaDB, Server, free_port, python_module, wait_until

Clock = Callable[[int], None]


@dataclass(frozen=True)
class Write:
    """One WriteBinlog of the recording. `clock_ts`: where the clock must stand when it is sent."""

    payload: bytes
    kind: int
    start_ts: int
    clock_ts: int


def schedule(payloads: Sequence[bytes]) -> list[Write]:
    """The writes in their order with the clock each needs: below every commit_ts whose prewrite is not yet stored."""
    binlogs = [binlog_pb2.Binlog.FromString(payload) for payload in payloads]
    commit_of = {b.start_ts: b.commit_ts for b in binlogs if b.tp == binlog_pb2.Commit}
    ceiling = max(commit_of.values(), default=1) + 1
    writes: list[Write] = []
    for payload, binlog in zip(reversed(payloads), reversed(binlogs), strict=True):
        if binlog.tp == binlog_pb2.Prewrite:
            ceiling = min(ceiling, commit_of.get(binlog.start_ts, ceiling) - 1)
        writes.append(Write(payload, binlog.tp, binlog.start_ts, ceiling))
    writes.reverse()
    return writes


def last_ts(payloads: Sequence[bytes]) -> int:
    """The greatest timestamp of the recording."""
    return max(max(b.start_ts, b.commit_ts) for b in map(binlog_pb2.Binlog.FromString, payloads))


def first_ts(payloads: Sequence[bytes]) -> int:
    """The least start_ts of the recording."""
    return min(binlog_pb2.Binlog.FromString(payload).start_ts for payload in payloads)


@dataclass
class Pump:
    """One real pump process on a fixed port and data-dir, so that it can be killed and come back."""

    server: Server
    port: int
    log: Path

    def start(self) -> None:
        self.server.start()

    def wait_ready(self) -> None:
        seen = self.server.text().count("pump is serving")
        wait_until(
            lambda: self.server.text().count("pump is serving") >= max(1, seen),
            deadline_s=90,
            what=f"pump serves\n{self.server.tail()}",
        )


@dataclass
class Chain:
    """etcd, a PD whose clock we hold, two pumps, and a drainer's configuration."""

    etcd: Etcd
    pd_addr: str
    cluster_id: int
    directory: Path
    pumps: list[Pump] = field(default_factory=list)
    lives: int = 0

    def add_pump(self, name: str) -> Pump:
        port = free_port()
        argv = (
            "-node-id", name, "-addr", f"127.0.0.1:{port}", "-pd-urls", self.etcd.endpoint, "-tso-source", "pd",
            "-pd-addr", self.pd_addr, "-data-dir", str(self.directory / name), "-fake-binlog-interval", "3600",
            "-status-addr", "",
        )  # fmt: skip
        log = self.directory / f"{name}.log"
        pump = Pump(python_module("pump", *argv, output=log), port, log)
        self.pumps.append(pump)
        return pump

    def drainer(self, config: Path, *args: str) -> Server:
        """Its next life, with a log of its own."""
        self.lives += 1
        output = self.directory / f"drainer-{self.lives}.log"
        return python_module("drainer", "-config", str(config), *args, output=output)

    def write_config(self, text: str, name: str = "drainer.toml") -> Path:
        path = self.directory / name
        path.write_text(text)
        return path

    def close(self) -> None:
        for pump in self.pumps:
            pump.server.kill()


def drainer_config(chain: Chain, capture: CaptureSet, destination: MariaDB, *, jobs: Path, from_ts: int) -> str:
    """drainer.toml that drains into a MariaDB; DDL that it cannot run is replaced as meta.json says."""
    rewrites = "\n".join(
        f"[[syncer.ddl-rewrite]]\njob-id = {entry['job_id']}\nsql = {json.dumps(entry['replacement'])}\n"
        for entry in capture.meta.get("drainer_skipped_commit_ts", [])
    )
    return f"""
pd-urls = "{chain.etcd.endpoint}"
tso-source = "pd"
pd-addr = "{chain.pd_addr}"
node-id = "replay"
addr = "127.0.0.1:{free_port()}"
status-addr = ""
data-dir = "{chain.directory / "drainer"}"
initial-commit-ts = {from_ts}

[schema]
history-file = "{jobs}"

[syncer]
db-type = "mysql"
{rewrites}
[syncer.to]
host = "{destination.host}"
port = {destination.port}
user = "{destination.user}"
password = "{destination.password}"
"""


class Sender:
    """Sends each write to the pump that has its prewrite; prewrites alternate. Retries until the pump answers."""

    def __init__(self, chain: Chain, clock: Clock) -> None:
        self._chain = chain
        self._clock = clock
        self._home: dict[int, int] = {}
        self._turn = 0
        self._stubs: dict[int, Any] = {}

    def _stub(self, index: int) -> Any:
        if index not in self._stubs:
            options = [("grpc.max_reconnect_backoff_ms", 200), ("grpc.initial_reconnect_backoff_ms", 50)]
            channel = grpc.insecure_channel(f"127.0.0.1:{self._chain.pumps[index].port}", options=options)
            self._stubs[index] = stub_of(channel, pump_pb2.DESCRIPTOR, "Pump")
        return self._stubs[index]

    def send(self, write: Write) -> None:
        self._clock(write.clock_ts)
        if write.kind == binlog_pb2.Prewrite:
            self._home[write.start_ts] = self._turn
            self._turn = (self._turn + 1) % len(self._chain.pumps)
        index = self._home.get(write.start_ts, 0)
        request = pump_pb2.WriteBinlogReq(clusterID=self._chain.cluster_id, payload=write.payload)

        def sent() -> bool:
            try:
                answer = self._stub(index).WriteBinlog(request, timeout=5, wait_for_ready=True)
            except grpc.RpcError as error:
                code = error.code()
                if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    return False
                if "no online" in error.details():
                    return False
                raise
            assert answer.errmsg == "", answer.errmsg
            return True

        wait_until(sent, deadline_s=180, what=f"pump {index} takes start_ts {write.start_ts}")


def temporary_directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="replay-"))
