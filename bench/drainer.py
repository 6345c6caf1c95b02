"""A backlog in two pumps, drained to MariaDB: rows a second against a plain loader's ceiling, and the Go drainer.

    python -m bench.drainer [--single 200000] [--wide 10000] [--rows 20]

Both leave the start of the JVM out: the clock runs from the first row that is visible downstream to the last, and the
rows that were there at the first look are not counted. A spread batch shows its first rows when it has read and folded
all of them, which that clock leaves out too; so the figures from the moment the drainer runs, and of its whole life,
are printed beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from binlog.cluster.etcd import connect_etcd
from binlog.cluster.identity import cluster_id
from binlog.runtime.config import UpstreamSection

from bench.fill import fill_batched, fill_with_pumpload, transactions
from bench.report import Report
from bench.sbtest import CREATE, ceiling, jobs
from bench.stack import Stack, peer_binary, running_stack
from drainer.spark.startup.java import archive_of, check_java
from tests.support.servers import MariaDB, Server, wait_until

RUNNING = "drainer is running"


def own_cluster_id(endpoint: str) -> int:
    """The cluster id that the pumps at this etcd chose."""

    async def ask() -> int:
        etcd = connect_etcd([endpoint], None)
        try:
            return await cluster_id(etcd, UpstreamSection.model_validate({"pd-urls": [endpoint]}))
        finally:
            await etcd.close()

    return asyncio.run(ask())


def fill(stack: Stack, cluster: int, *, txns: int, rows_each: int, base: int, pumpload: bool) -> None:
    """Half of the transactions into each pump."""
    half = txns // len(stack.pump_ports)
    for number, port in enumerate(stack.pump_ports):
        first = base + number * half * rows_each
        if pumpload:
            print("  " + fill_with_pumpload(port, cluster, txns=half, rows_each=rows_each, base=first), flush=True)
        else:
            fill_batched(port, cluster, list(transactions(half, rows_each, base=first, seed=number)))


def applied(mariadb: MariaDB) -> int:
    return int(mariadb.query("SELECT COUNT(*) FROM bench.sbtest")[0][0])


@dataclass(frozen=True, slots=True)
class Drained:
    """Rows a second: `steady` from the first visible row on; `running` from the moment the drainer says that it runs,
    0 where it says no such thing; `whole` from the start of its process."""

    steady: float
    running: float
    whole: float


def drain(start: Callable[[], Server], mariadb: MariaDB, expected: int) -> Drained:
    """Start a drainer and wait until so many rows are there."""
    begin = time.perf_counter()
    server = start()
    runs: list[float] = []

    def look() -> int:
        if not server.alive and server.wait() != 0:
            raise SystemExit(f"the drainer failed:\n{server.tail()}")
        if not runs and RUNNING in server.text():
            runs.append(time.perf_counter())
        return applied(mariadb)

    at_first = wait_until(look, deadline_s=180, what=f"first row downstream\n{server.tail()}")
    first = time.perf_counter()
    wait_until(lambda: look() >= expected, deadline_s=900, what=f"all rows downstream\n{server.tail()}")
    end = time.perf_counter()
    running = expected / (end - runs[0]) if runs else 0.0
    return Drained((expected - at_first) / (end - first), running, expected / (end - begin))


def measure(stack: Stack, mariadb: MariaDB, report: Report, *, txns: int, rows_each: int, pumpload: bool) -> None:
    expected = txns * rows_each
    mariadb.reset()
    mariadb.query("CREATE DATABASE bench")
    mariadb.query(CREATE.format(schema="bench"))
    before = max(ceiling(mariadb, 100_000, connections=2, rows_a_statement=500) for _ in range(2))
    history = stack.directory / "jobs.json"
    history.write_text(jobs())
    config = stack.config(mariadb, schema=f'history-file = "{history}"')
    drained = drain(lambda: stack.start_drainer(config, "--until-now"), mariadb, expected)
    assert stack.drainer is not None
    code = stack.drainer.wait(deadline_s=120)
    if code != 0:
        raise SystemExit(f"the drainer exited with {code}:\n{stack.drainer.tail()}")
    after = max(ceiling(mariadb, 100_000, connections=2, rows_a_statement=500) for _ in range(2))
    report.add("plain REPLACE, 2 connections x 500 rows", (before + after) / 2, "rows/s")
    report.add("this drainer", drained.steady, "rows/s")
    report.add("this drainer, from the moment it runs", drained.running, "rows/s")
    report.add("this drainer, with the start of Spark", drained.whole, "rows/s")
    report.ratio("this drainer", "plain REPLACE, 2 connections x 500 rows")


def make_archive() -> None:
    """The JVM's classes as an installed drainer has them (`make archive`)."""
    if not archive_of(check_java()).exists():
        print("the archive of the JVM's classes is made, once", flush=True)
        subprocess.run([sys.executable, "-m", "drainer.spark.startup.class_archive"], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.drainer", description=__doc__)
    parser.add_argument("--single", type=int, default=200_000, help="single-row transactions")
    parser.add_argument("--wide", type=int, default=10_000, help="transactions of --rows rows")
    parser.add_argument("--rows", type=int, default=20)
    args = parser.parse_args()
    pumpload = peer_binary("pumpload") is not None
    make_archive()
    for title, txns, rows_each in (("single-row", args.single, 1), (f"{args.rows}-row", args.wide, args.rows)):
        with running_stack(pumps=2) as (stack, mariadb):
            report = Report(f"{txns:,} {title} transactions in two pumps, to MariaDB")
            cluster = own_cluster_id(stack.endpoint)
            fill(stack, cluster, txns=txns, rows_each=rows_each, base=1, pumpload=pumpload)
            measure(stack, mariadb, report, txns=txns, rows_each=rows_each, pumpload=pumpload)
    if peer_binary("drainer") is None:
        print("\nthe Go drainer was not measured: PEER_BIN names no folder with its binaries")
        return
    # In a process of its own: it needs a PD and a TiDB beside everything else.
    for txns, rows_each in ((args.single, 1), (args.wide, args.rows)):
        argv = [sys.executable, "-m", "bench.original", "--txns", str(txns), "--rows", str(rows_each)]
        if subprocess.run(argv, check=False).returncode != 0:
            sys.exit(1)


if __name__ == "__main__":
    main()
