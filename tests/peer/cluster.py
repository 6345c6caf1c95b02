"""A real TiDB with binlogs on, and the programs of the original, from the folder that PEER_BIN names.

PEER_BIN holds `pd-server`, `unitikv` (a TiKV in one process), `tidb-server`, and the original's `pump`, `drainer` and
`binlogctl`. Everything listens on free ports of 127.0.0.1 and keeps its files in one folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
import pytest
from binlog.cluster.pd import PDClient

from tests.support.servers import MariaDB, Server, answers, free_port, python_module, wait_until

GO_IGNORED = "INFORMATION_SCHEMA,PERFORMANCE_SCHEMA,mysql,METRICS_SCHEMA"


def peer_bin() -> Path | None:
    """The folder of the peer's binaries, or None when PEER_BIN does not name one."""
    named = os.environ.get("PEER_BIN")
    return Path(named) if named and (Path(named) / "tidb-server").exists() else None


@dataclass
class PumpPlace:
    """Where a pump lives; either program may be started there."""

    node_id: str
    port: int
    data: Path

    @property
    def addr(self) -> str:
        return f"127.0.0.1:{self.port}"


@dataclass
class Peer:
    """PD and TiKV run from the start; pumps, TiDB and drainers when asked for."""

    binaries: Path
    directory: Path
    pd_port: int = field(default_factory=free_port)
    tidb_port: int = field(default_factory=free_port)
    tidb_status_port: int = field(default_factory=free_port)
    servers: list[Server] = field(default_factory=list)

    @property
    def pd_url(self) -> str:
        return f"http://127.0.0.1:{self.pd_port}"

    @property
    def history_url(self) -> str:
        return f"http://127.0.0.1:{self.tidb_status_port}"

    async def now_ts(self) -> int:
        client = PDClient([self.pd_url])
        try:
            return (await client.timestamps(1))[0]
        finally:
            await client.close()

    def start_store(self) -> None:
        peer_port, kv_port = free_port(), free_port()
        self._start(
            "pd",
            str(self.binaries / "pd-server"),
            "--name=pd1",
            f"--data-dir={self.directory}/pd",
            f"--client-urls={self.pd_url}",
            f"--peer-urls=http://127.0.0.1:{peer_port}",
            f"--log-file={self.directory}/pd.log",
        )
        wait_until(self._pd_leads, deadline_s=180, what="PD has a leader")
        self._start(
            "tikv",
            str(self.binaries / "unitikv"),
            f"-dir={self.directory}/tikv",
            f"-addr=127.0.0.1:{kv_port}",
            f"-pd=127.0.0.1:{self.pd_port}",
        )
        wait_until(lambda: answers(kv_port), deadline_s=180, what="TiKV answers")

    def start_tidb(self) -> Server:
        """A pump must be online before: TiDB refuses to start while it finds none."""
        return self._tidb("tidb", self.tidb_port, self.tidb_status_port, binlog=True)

    def start_tidb_without_binlog(self) -> int:
        """Return the port of a further TiDB, whose transactions no pump gets."""
        port = free_port()
        self._tidb("no-binlog", port, free_port(), binlog=False)
        return port

    def _tidb(self, name: str, port: int, status_port: int, *, binlog: bool) -> Server:
        file = self.directory / f"{name}.toml"
        file.write_text(
            f'host = "127.0.0.1"\nport = {port}\nstore = "tikv"\npath = "127.0.0.1:{self.pd_port}"\n'
            f'temp-dir = "{self.directory}/{name}-tmp"\n'
            f'[status]\nstatus-host = "127.0.0.1"\nstatus-port = {status_port}\n'
            f'[binlog]\nenable = {str(binlog).lower()}\nstrategy = "range"\n'
            f'[log]\nslow-query-file = "{self.directory}/{name}-slow.log"\n'
            f'[log.file]\nfilename = "{self.directory}/{name}.log"\n'
        )
        server = self._start(name, str(self.binaries / "tidb-server"), "-config", str(file))
        wait_until(lambda: answers(port), deadline_s=90, what="TiDB answers")
        return server

    def connect(self, **options: Any) -> pymysql.connections.Connection[Any]:
        defaults: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.tidb_port,
            "user": "root",
            "charset": "utf8mb4",
            "autocommit": True,
            "init_command": "SET time_zone='+00:00'",
        }
        return pymysql.connect(**{**defaults, **options})

    def place(self, node_id: str) -> PumpPlace:
        return PumpPlace(node_id, free_port(), self.directory / node_id)

    def our_pump(self, place: PumpPlace, *arguments: str) -> Server:
        pump = python_module(
            "pump",
            *(f"-node-id={place.node_id}", f"-addr={place.addr}", f"-pd-urls={self.pd_url}"),
            *(f"-data-dir={place.data}", "-status-addr=", "-fake-binlog-interval=1"),
            *arguments,
            output=self.directory / f"{place.node_id}.out",
        ).start()
        self.servers.append(pump)
        self._wait_online(place, pump)
        return pump

    def go_pump(self, place: PumpPlace) -> Server:
        pump = self._start(
            place.node_id,
            str(self.binaries / "pump"),
            *(f"-node-id={place.node_id}", f"-addr={place.addr}", f"-pd-urls={self.pd_url}"),
            *(f"-data-dir={place.data}", "-fake-binlog-interval=1"),
        )
        self._wait_online(place, pump)
        return pump

    def _wait_online(self, place: PumpPlace, pump: Server) -> None:
        def online() -> bool:
            if not pump.alive:
                pytest.fail(f"pump {place.node_id} ended:\n{pump.tail()}")
            return answers(place.port) and self.pump_states().get(place.node_id) == "online"

        wait_until(online, deadline_s=180, what=f"pump {place.node_id} is online")

    def our_drainer(
        self,
        destination: MariaDB | str,
        *arguments: str,
        name: str = "ours",
        more: str = "",
        syncer: str = "",
        command: Sequence[str] = (),
        point: str = "",
    ) -> Server:
        """`destination`: a MariaDB, or the settings from db-type on; `command`: what comes before the flags; `point`:
        the crash point at which it is killed."""
        file = self.directory / f"{name}.toml"
        if not isinstance(destination, str):
            destination = (
                f'db-type = "mariadb"\n{syncer}\n[syncer.to]\nhost = "{destination.host}"\nport = {destination.port}\n'
                f'user = "{destination.user}"\npassword = "{destination.password}"\n'
            )
        file.write_text(
            f'initial-commit-ts = 0\nstatus-addr = ""\n{more}\n[schema]\nhistory-url = "{self.history_url}"\n'
            f"[syncer]\n{destination}"
        )
        drainer = python_module(
            "drainer",
            *command,
            *(f"-config={file}", f"-node-id={name}", f"-addr=127.0.0.1:{free_port()}", f"-pd-urls={self.pd_url}"),
            *(f"-data-dir={self.directory}/{name}", *arguments),
            output=self.directory / f"{name}.out",
            **({"BINLOG_CRASH_POINT": point} if point else {}),
        ).start()
        self.servers.append(drainer)
        return drainer

    def go_drainer(
        self,
        destination: MariaDB,
        *,
        name: str = "original",
        worker_count: int = 4,
        syncer: str = "",
        ignored: Sequence[str] = (),
        initial_ts: int = 0,
    ) -> Server:
        return self._go_drainer(
            name,
            f'db-type = "mysql"\nsql-mode = "NO_ENGINE_SUBSTITUTION"\nworker-count = {worker_count}\n{syncer}\n'
            f'[syncer.to]\nhost = "{destination.host}"\nport = {destination.port}\n'
            f'user = "{destination.user}"\npassword = "{destination.password}"\n',
            ignored=ignored,
            initial_ts=initial_ts,
        )

    def go_file_drainer(
        self, files: Path, *, name: str = "original", ignored: Sequence[str] = (), port: int = 0
    ) -> Server:
        """TIMESTAMPs are in UTC. `ignored`: schemas of which it writes nothing."""
        return self._go_drainer(name, f'db-type = "file"\n[syncer.to]\ndir = "{files}"\n', ignored=ignored, port=port)

    def go_kafka_drainer(self, addresses: str, topic: str, *, name: str = "original") -> Server:
        """It publishes the secondary binlog, all of it to the topic's first partition."""
        kafka = f'kafka-addrs = "{addresses}"\nkafka-version = "2.8.1"\ntopic-name = "{topic}"\n'
        return self._go_drainer(name, f'db-type = "kafka"\n[syncer.to]\n{kafka}')

    def _go_drainer(
        self,
        name: str,
        syncer: str,
        *,
        ignored: Sequence[str] = (),
        port: int = 0,
        initial_ts: int = 0,
    ) -> Server:
        file = self.directory / f"{name}.toml"
        file.write_text(f'[syncer]\nignore-schemas = "{",".join((GO_IGNORED, *ignored))}"\n{syncer}')
        return self._start(
            name,
            *("env", "TZ=UTC"),
            str(self.binaries / "drainer"),
            *("-config", str(file), f"-node-id={name}", f"-addr=127.0.0.1:{port or free_port()}"),
            *(f"-pd-urls={self.pd_url}", f"-data-dir={self.directory}/{name}", f"-initial-commit-ts={initial_ts}"),
        )

    def binlogctl(self, *arguments: str) -> str:
        """Output of the original's binlogctl; raises CalledProcessError when it fails."""
        done = subprocess.run(
            [str(self.binaries / "binlogctl"), f"-pd-urls={self.pd_url}", *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            cwd=self.directory,
        )
        return done.stdout + done.stderr

    def pump_states(self) -> dict[str, str]:
        """node id → state, as the original's binlogctl lists the pumps."""
        states: dict[str, str] = {}
        for line in self.binlogctl("-cmd", "pumps").splitlines():
            _, _, found = line.partition("NodeID: ")
            if found:
                node_id, _, rest = found.partition(",")
                states[node_id] = rest.partition("State: ")[2].partition(",")[0]
        return states

    def stop_all(self) -> None:
        for server in reversed(self.servers):
            server.kill()

    def _start(self, name: str, *argv: str) -> Server:
        server = Server(argv, self.directory / f"{name}.out").start()
        self.servers.append(server)
        return server

    def _pd_leads(self) -> bool:
        with urllib.request.urlopen(f"{self.pd_url}/pd/api/v1/leader", timeout=1) as answer:
            return bool(json.load(answer).get("name"))


@contextlib.contextmanager
def running_peer(binaries: Path, directory: Path) -> Iterator[Peer]:
    """PD and TiKV, and whatever the caller starts through it; all are killed at the end."""
    peer = Peer(binaries, directory)
    try:
        peer.start_store()
        yield peer
    finally:
        peer.stop_all()
