"""A standalone Spark cluster on this machine: a master, and nodes that see nothing of the driver's files.

A node is a worker in a mount namespace of its own: the folders of this checkout, of this user and for temporary files
are empty there but for what an operator installs, which is the interpreter with its packages and this project's. Where
the system gives no namespaces a node is only told of other folders; `strangers` then still tells whether it uses any of
the driver's.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from tests.support.processes import descendants
from tests.support.servers import ROOT, Server, answers, free_port, require_java, wait_until

HOME = "/tmp/node"
CORES = 2
SECRET = "of this cluster alone"
# Small JVMs that move bytes.
JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
PACKAGES = ("drainer", "proto")
_EXECUTOR = b"CoarseGrainedExecutorBackend"


@functools.cache
def namespace_command() -> tuple[str, ...]:
    """What goes in front of a command to give it mounts and a host name of its own; empty where this may not be."""
    for options in (("--mount", "--uts"), ("--map-root-user", "--mount", "--uts")):
        command = ("unshare", *options, "--propagation", "private")
        trial = (*command, "mount", "-t", "tmpfs", "tmpfs", "/mnt")
        with contextlib.suppress(OSError):
            if subprocess.run(trial, capture_output=True, check=False).returncode == 0:
                return command
    return ()


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    assert found is not None
    return found


def scala_version() -> str:
    """Which scripts of Spark put into the environment, and a worker needs to start an executor."""
    core = next((Path(pyspark.__file__).parent / "jars").glob("spark-core_*.jar"))
    return core.name.split("_")[1].split("-")[0]


def _java_command(main: str, *args: str) -> list[str]:
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    return [java(), "-Xmx256m", *JAVA_OPTIONS, "-cp", str(jars), main, *args]


@dataclass
class Node:
    """One worker, started by `start`. `packages`: what is installed of this project."""

    name: str
    address: str
    directory: Path
    master_url: str
    cores: int = CORES
    packages: Sequence[str] = PACKAGES
    server: Server | None = None

    def start(self) -> None:
        self.directory.mkdir(exist_ok=True)
        home = HOME if namespace_command() else str(self.directory / "work")
        Path(self.directory / "work").mkdir(exist_ok=True)
        write_settings(self.directory / "work" / "spark.conf")
        (self.directory / "hosts").write_text(f"127.0.0.1 localhost\n{self.address} {self.name}\n")
        argv = _java_command(
            "org.apache.spark.deploy.worker.Worker",
            *("--host", self.address, "--port", str(free_port()), "--webui-port", "0"),
            *("--cores", str(self.cores), "--memory", "1g", "--work-dir", f"{home}/work"),
            *("--properties-file", f"{home}/spark.conf", self.master_url),
        )
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": home,
            "TMPDIR": f"{home}/tmp",
            "TZ": "Asia/Tokyo",
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_SCALA_VERSION": scala_version(),
            "SPARK_LOCAL_DIRS": f"{home}/local",
        }
        for name in ("tmp", "local"):
            (self.directory / "work" / name).mkdir(exist_ok=True)
        self.server = Server(self._command(argv, environment, home), self.directory / "worker.log").start()
        self.server.wait_for_output("Successfully registered with master", deadline_s=120)

    def _command(self, argv: list[str], environment: dict[str, str], home: str) -> list[str]:
        if not namespace_command():
            names = [f"{name}={value}" for name, value in environment.items()]
            return ["env", "-i", f"--chdir={home}", *names, *argv]
        spec = {
            "name": self.name,
            "hide": [*driver_folders(), "/tmp", "/var/tmp"],
            "show": _installed(self.packages),
            "work": str(self.directory / "work"),
            "home": home,
            "hosts": str(self.directory / "hosts"),
            "command": argv,
            "env": environment,
        }
        place = self.directory / "node.json"
        place.write_text(json.dumps(spec))
        script = str(ROOT / "tests" / "support" / "spark_node.py")
        return [*namespace_command(), sys.executable, "-I", "-S", script, str(place)]

    @property
    def alive(self) -> bool:
        return self.server is not None and self.server.alive

    def processes(self) -> list[int]:
        assert self.server is not None and self.server.process is not None
        return [self.server.process.pid, *descendants(self.server.process.pid)]

    def executors(self) -> list[int]:
        """Process ids of the JVMs that run tasks here. A program that one of them starts has its command line until it
        calls exec; it is none of them."""
        below = {pid: descendants(pid) for pid in self.processes()}
        found = []
        for pid in below:
            with contextlib.suppress(OSError):
                if _EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        started = {child for pid in found for child in below[pid]}
        return [pid for pid in found if pid not in started]

    def kill(self) -> None:
        """As a power cut does."""
        if self.server is None:
            return
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.server.kill()

    def strangers(self, *folders: Path) -> list[str]:
        """What the processes of this node hold open, are in, or have in their environment below one of `folders`, which
        are the driver's; where a node sees its own files alone there is no such thing by itself."""
        found = []
        for pid in self.processes():
            place = Path(f"/proc/{pid}")
            with contextlib.suppress(OSError):
                said = (place / "environ").read_bytes().decode(errors="replace").split("\0")
                links = [str(link.readlink()) for link in [place / "cwd", *(place / "fd").iterdir()]]
                found += [text for text in (*said, *links) if any(str(folder) in text for folder in folders)]
        return found


def driver_folders() -> list[str]:
    """Where a driver's files are on this machine."""
    return list(dict.fromkeys([str(ROOT), str(Path.home()), tempfile.gettempdir()]))


def _installed(packages: Sequence[str]) -> list[str]:
    """What an operator installs on every node: Java, Python with the packages from the index, and this project's."""
    prefixes = [sys.prefix, sys.base_prefix, str(Path(java()).resolve().parent.parent)]
    return [*dict.fromkeys(prefixes), *(str(ROOT / package) for package in packages)]


def write_settings(path: Path) -> None:
    """Of master and workers: nobody takes part who does not know the secret."""
    options = " ".join(JAVA_OPTIONS)
    path.write_text(
        "".join(f"{name} {value}\n" for name, value in security().items())
        + f"spark.executor.extraJavaOptions {options}\nspark.ui.enabled false\n"
    )


def security() -> dict[str, str]:
    return {
        "spark.authenticate": "true",
        "spark.authenticate.secret": SECRET,
        "spark.network.crypto.enabled": "true",
    }


@dataclass
class SparkCluster:
    """`url` of the master; `nodes` by name."""

    url: str
    directory: Path
    master: Server
    nodes: dict[str, Node] = field(default_factory=dict)

    def add(self, name: str, **options: object) -> Node:
        """A node on an address of its own, started."""
        number = len(self.nodes) + 2
        node = Node(name, f"127.0.0.{number}", self.directory / name, self.url, **options)  # type: ignore[arg-type]
        self.nodes[name] = node
        node.start()
        return node

    def settings(self, **more: str) -> str:
        """`[spark]` and `[spark.conf]` of a drainer.toml for this cluster, with `more` settings."""
        conf = {
            **security(),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": " ".join(JAVA_OPTIONS),
            **more,
        }
        lines = "".join(f'"{name}" = "{value}"\n' for name, value in conf.items())
        return f'[spark]\nmaster = "{self.url}"\n[spark.conf]\n{lines}'

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
        self.master.kill()


@contextlib.contextmanager
def running_cluster() -> Iterator[SparkCluster]:
    """A master without nodes."""
    require_java()
    directory = Path(tempfile.mkdtemp(prefix="spark-cluster-"))
    port = free_port()
    write_settings(directory / "spark.conf")
    argv = _java_command(
        "org.apache.spark.deploy.master.Master",
        *("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"),
        *("--properties-file", str(directory / "spark.conf")),
    )
    server = Server(argv, directory / "master.log").start()
    cluster = SparkCluster(f"spark://127.0.0.1:{port}", directory, server)
    try:
        wait_until(lambda: answers(port), deadline_s=120, what=f"the Spark master answers\n{server.tail()}")
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(directory, ignore_errors=True)
