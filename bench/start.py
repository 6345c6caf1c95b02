"""Measure a start, from the command to "drainer is running": seconds, and the CPU of each process. Two pumps, MariaDB,
nothing to drain.

    python -m bench.start [--rounds 3] [--timeline] [--nodes 0]

On a machine that others use too, only the CPU is meaningful. For comparison, the same run measures an interpreter and a
JVM that do nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.latency import Destination
from bench.report import Report
from bench.stack import Stack, running_stack
from pumpclient.sdk import BigInt, Column, SyncService, Table
from tests.support.servers import MariaDB, Server
from tests.support.spark_cluster import running_cluster

RUNNING = "drainer is running"
POLL_S = 0.02
TICKS = os.sysconf("SC_CLK_TCK")
# A part of a command line, and the name printed for such processes; the first that matches.
KINDS = (
    ("supervisor.py", "supervisor"),
    ("org.apache.spark.launcher.Main", "spark-submit's launcher (JVM)"),
    ("org.apache.spark.deploy.SparkSubmit", "JVM"),
    ("spark-submit", "spark-submit"),
    ("spark-class", "spark-submit"),
    ("supervisor.py", "supervisor"),
    ("-m drainer.spark.startup.fork_server", "Python workers"),
    ("drainer.spark.startup.worker_imports", "Python workers"),
    ("pyspark.sql", "Python's part of the source"),
    ("pyspark.daemon", "Python's part of the source"),
    ("-m drainer", "drainer"),
)


def kind_of(command: str) -> str:
    return next((kind for word, kind in KINDS if word in command), command[:60])


@dataclass
class Seen:
    """One process: when it was first and last seen, seconds after the command, and the CPU it had by then."""

    pid: int
    command: str
    first_s: float
    last_s: float = 0.0
    cpu_s: float = 0.0


@dataclass
class Watch:
    """Samples a process and all its descendants until `end`."""

    pid: int
    begin_s: float
    seen: dict[int, Seen] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self._over.wait(POLL_S):
            self.poll()

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self.poll()

    def poll(self) -> None:
        parents: dict[int, tuple[int, float]] = {}
        for name in os.listdir("/proc"):  # noqa: PTH208
            if name.isdigit():
                try:
                    fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                parents[int(name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS
        now = time.perf_counter() - self.begin_s
        for pid, (_, cpu_s) in parents.items():
            if self._is_ours(pid, parents):
                found = self.seen.setdefault(pid, Seen(pid, "", now))
                found.last_s, found.cpu_s = now, cpu_s
                found.command = _command(pid) or found.command

    def _is_ours(self, pid: int, parents: dict[int, tuple[int, float]]) -> bool:
        while pid in parents and pid != self.pid:
            pid = parents[pid][0]
        return pid == self.pid

    def by_kind(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for one in self.seen.values():
            found[kind_of(one.command)] += one.cpu_s  # type: ignore[assignment]
        return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def one_start(stack: Stack, mariadb: MariaDB, *, timeline: bool) -> tuple[float, Counter[str]]:
    """Start once. Return the seconds until the drainer runs, and CPU seconds by kind of process until then."""
    config = stack.config(mariadb)
    begin = time.perf_counter()
    server = stack.launch_drainer(config)
    assert server.process is not None
    watch = Watch(server.process.pid, begin)
    watch.start()
    server.wait_for_output(RUNNING, deadline_s=300)
    seconds = time.perf_counter() - begin
    watch.end()
    if timeline:
        _print_timeline(watch, server)
    server.stop(deadline_s=60)
    return seconds, watch.by_kind()


def first_rows(stack: Stack, mariadb: MariaDB, service: SyncService, table: Table, spark: str) -> tuple[float, ...]:
    """Return the seconds from the command to "running" and to a row that was written before it, and from "running" to a
    row that is written then. `spark`: sections of drainer.toml."""

    def write() -> int:
        with service.transaction() as txn:
            txn.insert(table, {"id": (number := time.time_ns())})
        return number

    before, begin = write(), time.perf_counter()
    server = stack.launch_drainer(stack.config(mariadb, top=spark))
    with ThreadPoolExecutor() as pool:
        seen = pool.submit(Destination(mariadb, server.tail).wait, before, begin)  # maybe before "running"
        server.wait_for_output(RUNNING, deadline_s=300)
        running = time.perf_counter()
        then_s = Destination(mariadb, server.tail).wait(write(), running)
    server.stop(deadline_s=60)
    return running - begin, seen.result(), then_s


def measure_first_rows(stack: Stack, mariadb: MariaDB, nodes: int, rounds: int) -> None:
    with running_cluster() as cluster, SyncService.connect(stack.endpoint) as service:
        for number in range(1, nodes + 1):
            cluster.add(f"node-{number}")
        service.create_database("bench")
        table = service.create_table("bench", Table("t", Column("id", BigInt(), primary_key=True)))
        stack.launch_drainer(stack.config(mariadb), "--until-now").wait(deadline_s=300)  # makes the table
        run = partial(first_rows, stack, mariadb, service, table)
        found = [(run(""), run(cluster.settings())) for _ in range(rounds)]
    report = Report(f"first rows, {nodes} nodes; ratios to a local master")
    for at, name in enumerate(("until it runs", "from the command to a row", "from running to a row")):
        for one, master in enumerate(("local", "cluster")):
            report.add(f"{name}, {master}", statistics.median(pair[one][at] for pair in found) * 1000, "ms")
        report.ratio(f"{name}, cluster", f"{name}, local")


def _print_timeline(watch: Watch, server: Server) -> None:
    for one in sorted(watch.seen.values(), key=lambda seen: seen.first_s):
        said = f"{one.first_s:6.2f} to {one.last_s:6.2f} s, CPU {one.cpu_s:5.2f} s  {kind_of(one.command)}"
        print(said, one.command[-70:], flush=True)
    print(server.text(), flush=True)


def yardstick() -> float:
    """Return CPU seconds of an interpreter and of a JVM that do nothing."""
    before = os.times()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    java = shutil.which("java")
    assert java is not None
    subprocess.run([java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-version"], check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--timeline", action="store_true", help="print each process with its times, and the drainer's log"
    )
    parser.add_argument(
        "--nodes", type=int, default=0, help="only the first rows: with a local master, on so many nodes"
    )
    args = parser.parse_args()
    with running_stack(pumps=2) as (stack, mariadb):
        if args.nodes:
            measure_first_rows(stack, mariadb, args.nodes, args.rounds)
        else:
            report = Report("from the command to a running drainer")
            floor = "CPU of an idle interpreter and an idle JVM"
            report.add(floor, statistics.median(yardstick() for _ in range(5)) * 1000, "ms")
            starts = [one_start(stack, mariadb, timeline=args.timeline) for _ in range(args.rounds)]
            report.add("until it runs, median", statistics.median(seconds for seconds, _ in starts) * 1000, "ms")
            kinds = sorted({kind for _, cpu in starts for kind in cpu})
            for kind in kinds:
                report.add(f"CPU: {kind}", statistics.median(cpu[kind] for _, cpu in starts) * 1000, "ms")
            report.add("CPU together, median", statistics.median(cpu.total() for _, cpu in starts) * 1000, "ms")
            report.ratio("CPU together, median", floor)
    shutil.rmtree(Path("spark-warehouse"), ignore_errors=True)


if __name__ == "__main__":
    main()
