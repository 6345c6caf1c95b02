"""Measure a backlog in two pumps drained to MariaDB: rows a second, compared with a plain loader's ceiling and the Go
drainer.

    python -m bench.drainer [--profile]
    PEER_BIN=… python -m bench.drainer [--profile]
    python -m bench.drainer --single 200000 --wide 0 --unique 0 --keyless 0

There are four backlogs, each with its own pumps and MariaDB. A size of 0 leaves one out:

| option | default | transactions |
|---|---|---|
| `--single` | 1,000,000 | of one row into sysbench's table, which has a secondary key |
| `--wide` | 50,000 | of `--rows` (20) rows into it |
| `--unique` | 200,000 | of one row into a table with three unique keys beside its primary key |
| `--keyless` | 20,000 | of one row into a table without any key |

*Ceiling*: the same number of rows loaded into the same table by CONNECTIONS plain connections, which is the number of
slots written concurrently on two cores. It is the faster of REPLACE statements of 500 rows and LOAD DATA LOCAL …
REPLACE, both in transactions of 10,000 rows. Each is measured before and after the drainer, and the mean of the two
counts. *This drainer*: the clock runs from its "drainer is running" to its last row. *The Go drainer* is measured for
the first two backlogs if PEER_BIN names its binaries. It drains the same pumps before this drainer, with 16 workers;
its clock runs from the first visible row.

`--profile` prints the CPU that each program takes for a row, in µs; how much of it was used before the first row was
visible, which is the same for any number of rows; and how busy these programs kept the machine. `--batch-bytes` and
`--slots` set the drainer's `batch-bytes-max` and `worker-count`, `--master` its Spark; `--debug` prints the drainer's
log of its batches. `--consistency transaction` drains each backlog a second time with that setting. Progress is read
from the server's counter of written rows, because a COUNT of the table would use a part of the machine. On a noisy
machine, compare CPU for each row, and ratios of one run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from binlog.cluster.etcd import connect_etcd
from binlog.cluster.timestamp import cluster_id
from binlog.runtime.fields import UpstreamSection

from bench import cpu
from bench.ceiling import PlainLoader
from bench.fill import fill_batched, transactions
from bench.original import original_backlog
from bench.report import Report
from bench.sbtest import KEYLESS, SBTEST, TABLE_ID, UNIQUE, Table, jobs
from bench.stack import Stack, running_stack
from drainer.spark.startup.java import archive_of, check_java
from tests.peer.cluster import peer_bin
from tests.support.servers import MariaDB, Server, wait_until

RUNNING = "drainer is running"
DRAIN_S = 3600
MARIADB_OPTIONS = ("--innodb-log-file-size=512M", "--innodb-buffer-pool-size=1G")


@dataclass(frozen=True, slots=True)
class Case:
    """One backlog: a number of transactions of `rows_each` rows into `table`."""

    title: str
    table: Table
    txns: int
    rows_each: int = 1
    with_original: bool = False

    @property
    def rows(self) -> int:
        return self.txns * self.rows_each


class Backlog(Protocol):
    """Two pumps to fill, and drainers that read them into an empty MariaDB. Drainers are started without waiting for
    them.
    """

    table_id: int

    @property
    def endpoint(self) -> str: ...

    @property
    def pump_ports(self) -> Sequence[int]: ...

    def pump_pids(self) -> list[int]: ...

    def ours(self, mariadb: MariaDB, syncer: str, top: str) -> Server: ...

    def original(self, mariadb: MariaDB) -> Server | None: ...


@dataclass
class OwnBacklog:
    """etcd and two pumps of this project. A history file describes the table, which exists downstream in advance."""

    stack: Stack
    table: Table
    table_id: int = TABLE_ID

    @property
    def endpoint(self) -> str:
        return self.stack.endpoint

    @property
    def pump_ports(self) -> Sequence[int]:
        return self.stack.pump_ports

    def pump_pids(self) -> list[int]:
        pumps = self.stack.servers[: len(self.stack.pump_ports)]
        return [pump.process.pid for pump in pumps if pump.process is not None]

    def ours(self, mariadb: MariaDB, syncer: str, top: str) -> Server:
        mariadb.query("CREATE DATABASE bench")
        mariadb.query(self.table.create("bench"))
        history = self.stack.directory / "jobs.json"
        history.write_text(jobs(self.table))
        config = self.stack.config(mariadb, schema=f'history-file = "{history}"', syncer=syncer, top=top)
        return self.stack.launch_drainer(config)

    def original(self, mariadb: MariaDB) -> Server | None:
        return None


@contextlib.contextmanager
def backlog_of(case: Case, with_original: bool) -> Iterator[tuple[Backlog, MariaDB]]:
    if with_original:
        binaries = peer_bin()
        assert binaries is not None
        with original_backlog(binaries, case.table.create("bench"), MARIADB_OPTIONS) as found:
            yield found
        return
    with running_stack(pumps=2, mariadb_options=MARIADB_OPTIONS) as (stack, mariadb):
        yield OwnBacklog(stack, case.table), mariadb


def own_cluster_id(endpoint: str) -> int:
    """Return the cluster id that the pumps at this etcd chose."""

    async def ask() -> int:
        etcd = connect_etcd([endpoint], None)
        try:
            return await cluster_id(etcd, UpstreamSection.model_validate({"pd-urls": [endpoint]}))
        finally:
            await etcd.close()

    return asyncio.run(ask())


def fill(backlog: Backlog, case: Case) -> None:
    """Fill half of the transactions into each pump, both concurrently, so that their timestamps are interleaved."""
    cluster = own_cluster_id(backlog.endpoint)
    half = case.txns // len(backlog.pump_ports)

    def fill_one(number: int, port: int) -> None:
        base = 1 + number * half * case.rows_each
        pairs = transactions(half, case.rows_each, base=base, seed=number, table=case.table, table_id=backlog.table_id)
        fill_batched(port, cluster, pairs)

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(fill_one, *item) for item in enumerate(backlog.pump_ports)]:
            done.result()


def applied(mariadb: MariaDB) -> int:
    return int(mariadb.query("SELECT COUNT(*) FROM bench.sbtest")[0][0])


@dataclass
class Watch:
    """Reports when bench.sbtest has a number of rows. Raises SystemExit if the drainer ends before."""

    server: Server
    mariadb: MariaDB
    expected: int
    _connection: Any = field(init=False)
    _written_before: int = field(init=False)

    def __post_init__(self) -> None:
        self._connection = self.mariadb.connect()
        self._written_before = self._written()

    def close(self) -> None:
        self._connection.close()

    def running(self) -> bool:
        return self._polled(lambda: RUNNING in self.server.text())

    def first(self) -> bool:
        return self._polled(lambda: bool(self._ask("SELECT 1 FROM bench.sbtest LIMIT 1")))

    def done(self) -> bool:
        return self._polled(self._all_there)

    def _all_there(self) -> bool:
        return self._written() - self._written_before >= self.expected and applied(self.mariadb) >= self.expected

    def _written(self) -> int:
        """Return the rows that the server's handlers have written, including those of marks and positions, committed or
        not.
        """
        return int(self._ask("SHOW GLOBAL STATUS LIKE 'Handler_write'")[0][1])

    def _polled(self, condition: Callable[[], bool]) -> bool:
        if not self.server.alive:
            raise SystemExit(f"the drainer ended:\n{self.server.tail()}")
        return condition()

    def _ask(self, sql: str) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall()


@dataclass(frozen=True, slots=True)
class Drained:
    """Rows a second, and CPU seconds by program in that time; `first`: of these, until the first row was visible."""

    rate: float
    seconds: float
    cpu: dict[str, float]
    first_s: float
    first: dict[str, float]


def drain(watch: Watch, backlog: Backlog, *, from_running: bool) -> Drained:
    """Wait until all rows have been written. The clock begins when the drainer runs, or with the first visible row."""
    begins = watch.running if from_running else watch.first

    def used() -> dict[str, float]:
        drainer, server = watch.server.process, watch.mariadb.server.process
        assert drainer is not None and server is not None
        pumps = {"pumps": cpu.sum_s(backlog.pump_pids())}
        return {**pumps, **cpu.drainer_s(drainer.pid), "MariaDB": cpu.process_s(server.pid)}

    wait_until(begins, deadline_s=300, what="the drainer runs")
    before, begin = used(), time.perf_counter()
    wait_until(watch.first, deadline_s=DRAIN_S, what="the first row downstream")
    first_s, first = time.perf_counter() - begin, cpu.between(before, used())
    wait_until(watch.done, deadline_s=DRAIN_S, what="all rows downstream")
    seconds = time.perf_counter() - begin
    return Drained(watch.expected / seconds, seconds, cpu.between(before, used()), first_s, first)


def tell_profile(report: Report, who: str, drained: Drained, rows: int) -> None:
    for name, seconds in drained.cpu.items():
        if seconds:
            report.add(f"{who}: CPU of {name}", seconds / rows * 1e6, "µs/row")
    shares = ", ".join(f"{name} {seconds:.1f}" for name, seconds in drained.first.items() if seconds)
    report.note(f"of this before the first row, after {drained.first_s:.1f} s: {shares or 'nothing'} (CPU seconds)")
    total = sum(drained.cpu.values())
    report.add(f"{who}: CPU in all", total / rows * 1e6, "µs/row")
    cores = len(os.sched_getaffinity(0))
    report.add(f"{who}: share of {cores} cores", 100 * total / drained.seconds / cores, "%")


def measure(backlog: Backlog, mariadb: MariaDB, case: Case, args: argparse.Namespace, loader: PlainLoader) -> None:
    report = Report(f"{case.txns:,} transactions, {case.title}, in two pumps, to MariaDB")
    rates: dict[str, list[float]] = {"REPLACE": [], "LOAD DATA": []}

    def take_ceiling() -> None:
        rates["REPLACE"].append(loader.replace())
        rates["LOAD DATA"].append(loader.load_data())

    def run(name: str, start: Callable[[], Server | None], *, from_running: bool, missing: int = 0) -> None:
        mariadb.reset()
        server = start()
        if server is None:
            return
        watch = Watch(server, mariadb, case.rows - missing)
        drained = drain(watch, backlog, from_running=from_running)
        watch.close()
        server.stop(deadline_s=120)
        if args.debug:
            print("\n".join(line for line in server.text().splitlines() if "DEBUG" in line.upper()))
        report.add(name, drained.rate, "rows/s")
        if args.profile:
            tell_profile(report, name, drained, case.rows)

    fill(backlog, case)
    # The original's merger drops the second of two equal commit_ts, so its last few rows may never be written.
    run("Go drainer", lambda: backlog.original(mariadb), from_running=False, missing=50 * case.rows_each)
    take_ceiling()
    syncer = f"worker-count = {args.slots}"
    top = f"batch-bytes-max = {args.batch_bytes}\n" if args.batch_bytes else ""
    top += 'log-level = "debug"\n' if args.debug else ""
    top += f'[spark]\nmaster = "{args.master}"\n' if args.master else ""
    run("this drainer", lambda: backlog.ours(mariadb, syncer, top), from_running=True)
    if args.consistency == "transaction":
        whole = syncer + '\nconsistency = "transaction"'
        run("transactions whole", lambda: backlog.ours(mariadb, whole, top), from_running=True)
    take_ceiling()
    means = {name: sum(found) / len(found) for name, found in rates.items()}
    for name, rate in means.items():
        report.note(f"plain {name}: before {rates[name][0]:,.0f}, after {rates[name][1]:,.0f}, mean {rate:,.0f} rows/s")
    report.add("ceiling", max(means.values()), "rows/s")
    report.ratio("this drainer", "ceiling")
    report.ratio("this drainer", "Go drainer")
    if args.consistency == "transaction":
        report.ratio("transactions whole", "this drainer")


def make_archive() -> None:
    """Create the archive of the JVM's classes that an installed drainer has (`make archive`)."""
    if not archive_of(check_java()).exists():
        print("the archive of the JVM's classes is made, once", flush=True)
        subprocess.run([sys.executable, "-m", "drainer.spark.startup.class_archive"], check=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.drainer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--single", type=int, default=1_000_000, metavar="TXNS")
    parser.add_argument("--wide", type=int, default=50_000, metavar="TXNS")
    parser.add_argument("--rows", type=int, default=20, help="rows in each transaction of --wide")
    parser.add_argument("--unique", type=int, default=200_000, metavar="TXNS")
    parser.add_argument("--keyless", type=int, default=20_000, metavar="TXNS")
    parser.add_argument("--profile", action="store_true", help="print each program's CPU for a row")
    parser.add_argument("--debug", action="store_true", help="print the drainer's log of its batches")
    parser.add_argument("--no-original", action="store_true", help="leave out the Go drainer even if PEER_BIN has it")
    parser.add_argument("--batch-bytes", type=int, default=0, help="batch-bytes-max of the drainer; 0: its default")
    parser.add_argument("--slots", type=int, default=0, help="worker-count of the drainer; 0: its default")
    parser.add_argument("--consistency", choices=("row", "transaction"), default="row", help="transaction: after row")
    parser.add_argument("--master", default="", help="Spark's master; its default if empty")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    make_archive()
    cases = (
        Case("single rows", SBTEST, args.single, with_original=True),
        Case(f"{args.rows} rows each", SBTEST, args.wide, args.rows, with_original=True),
        Case("single rows, three unique keys", UNIQUE, args.unique),
        Case("single rows, no key", KEYLESS, args.keyless),
    )
    if peer_bin() is None:
        print("the Go drainer is not measured: PEER_BIN names no folder with its binaries")
    for case in cases:
        if not case.txns:
            continue
        with_original = case.with_original and not args.no_original and peer_bin() is not None
        with (
            backlog_of(case, with_original) as (backlog, mariadb),
            PlainLoader(mariadb, case.rows, table=case.table) as loader,
        ):
            measure(backlog, mariadb, case, args, loader)


if __name__ == "__main__":
    main()
