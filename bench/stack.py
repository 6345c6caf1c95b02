"""etcd, pumps, MariaDB and the drainer for one measurement; the Go programs if PEER_BIN names them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.servers import (
    MariaDB,
    Server,
    answers,
    free_port,
    python_module,
    running_etcd,
    running_mariadb,
    wait_until,
)


def peer_binary(name: str) -> Path | None:
    """Return the path of one of the original's programs; None if it is not in PEER_BIN."""
    folder = os.environ.get("PEER_BIN")
    path = Path(folder) / name if folder else None
    return path if path and path.exists() else None


@dataclass
class Stack:
    """Servers of one measurement. `endpoint` is etcd's (or PD's) client URL."""

    directory: Path
    endpoint: str
    servers: list[Server] = field(default_factory=list)
    pump_ports: list[int] = field(default_factory=list)
    drainer: Server | None = None

    def start_pump(self, name: str, *args: str) -> int:
        port = free_port()
        argv = ("-node-id", name, "-addr", f"127.0.0.1:{port}", "-pd-urls", self.endpoint, "-status-addr", "")
        server = python_module("pump", *argv, "-data-dir", str(self.directory / name), *args,
                               output=self.directory / f"{name}.log").start()  # fmt: skip
        self.servers.append(server)
        server.wait_for_output("pump is serving", deadline_s=60)
        self.pump_ports.append(port)
        return port

    def start_go_pump(self, name: str) -> int:
        binary = peer_binary("pump")
        assert binary is not None
        port = free_port()
        argv = [str(binary), "-node-id", name, "-addr", f"127.0.0.1:{port}", "-pd-urls", self.endpoint,
                "-data-dir", str(self.directory / name)]  # fmt: skip
        server = Server(argv, self.directory / f"{name}.log").start()
        self.servers.append(server)
        wait_until(lambda: answers(port), deadline_s=60, what=f"the Go pump answers\n{server.tail()}")
        return port

    def config(self, mariadb: MariaDB, *, top: str = "", schema: str = "", syncer: str = "") -> Path:
        """Return a drainer.toml that writes into MariaDB."""
        path = self.directory / f"drainer-{len(list(self.directory.glob('drainer-*.toml')))}.toml"
        path.write_text(
            f'pd-urls = "{self.endpoint}"\nnode-id = "bench"\naddr = "127.0.0.1:{free_port()}"\nstatus-addr = ""\n'
            f'data-dir = "{path.with_suffix("")}"\ninitial-commit-ts = 0\n{top}\n[schema]\n{schema}\n'
            f'[syncer]\ndb-type = "mysql"\n{syncer}\n[syncer.to]\nhost = "{mariadb.host}"\nport = {mariadb.port}\n'
            f'user = "{mariadb.user}"\npassword = "{mariadb.password}"\n'
        )
        return path

    def launch_drainer(self, config: Path, *args: str) -> Server:
        """Start a drainer without waiting for it."""
        log = config.with_suffix(".log")
        self.drainer = python_module("drainer", "-config", str(config), *args, output=log).start()
        self.servers.append(self.drainer)
        return self.drainer

    def start_drainer(self, config: Path, *args: str) -> Server:
        drainer = self.launch_drainer(config, *args)
        if "--until-now" not in args:
            drainer.wait_for_output("drainer is running", deadline_s=120)
        return drainer

    def close(self) -> None:
        for server in reversed(self.servers):
            server.kill()


@contextlib.contextmanager
def running_stack(
    *, pumps: int, endpoint: str | None = None, mariadb_options: Sequence[str] = ("--innodb-log-file-size=512M",)
) -> Iterator[tuple[Stack, MariaDB]]:
    """Run a fresh etcd (or the given one), the pumps, and a MariaDB that does not sync its files."""
    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    with contextlib.ExitStack() as stack:
        url = endpoint or stack.enter_context(running_etcd()).endpoint
        mariadb = stack.enter_context(running_mariadb(*mariadb_options))
        found = Stack(directory, url)
        try:
            for number in range(pumps):
                found.start_pump(f"bench-{number}")
            yield found, mariadb
        finally:
            found.close()
            shutil.rmtree(directory, ignore_errors=True)
