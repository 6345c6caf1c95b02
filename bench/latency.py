"""Measure the latency from the commit of one row until it is visible in MariaDB, with two otherwise idle pumps; also
for the first row after a DDL.

    python -m bench.latency [--rounds 30] [--ddls 10]
    PEER_BIN=… python -m bench.latency --tidb [--rounds 100]

The rows are written by the SDK, or by a real TiDB that is started from PEER_BIN. A row after a DDL is written as soon
as the ALTER has returned, and has a value in the new column.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.report import Report, spread
from bench.stack import Stack, running_stack
from pumpclient.sdk import BigInt, Column, Service, Table, VarChar
from tests.peer.cluster import Peer, peer_bin, running_peer
from tests.support.servers import MariaDB, running_mariadb, wait_until

POLL_S = 0.002
VISIBLE_S = 60
# Pauses between two rows, so that the rows do not synchronize with the drainer's trigger.
APART_S = 0.37


@dataclass
class Found:
    """Seconds from a commit's acknowledgement to the first SELECT that sees the row, polled every POLL_S."""

    rows: list[float] = field(default_factory=list)
    behind_ddls: list[float] = field(default_factory=list)


class Destination:
    """Looks for rows in bench.t."""

    def __init__(self, mariadb: MariaDB, tail: Callable[[], str]) -> None:
        self._connection = mariadb.connect()
        self._tail = tail

    def wait(self, number: int, begin_s: float, more: str = "") -> float:
        """Wait for a row. `more`: a further condition, which may name a column that does not exist yet."""
        while not self._sees(number, more):
            if time.perf_counter() - begin_s > VISIBLE_S:
                raise SystemExit(f"row {number} is not visible after {VISIBLE_S} s\n{self._tail()}")
            time.sleep(POLL_S)
        return time.perf_counter() - begin_s

    def _sees(self, number: int, more: str) -> bool:
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT * FROM bench.t WHERE id = %s", (number,))
            row: Any = cursor.fetchone()
            return row is not None and (not more or more in [column[0] for column in cursor.description])


def table_there(mariadb: MariaDB) -> None:
    wait_until(lambda: mariadb.query("SHOW TABLES FROM bench LIKE 't'"), deadline_s=60, what="table downstream")


async def measure_sdk(stack: Stack, mariadb: MariaDB, rounds: int, ddls: int) -> Found:
    found = Found()
    columns = [Column("id", BigInt(), primary_key=True), Column("name", VarChar(40))]
    async with await Service.connect(stack.endpoint) as service:
        await service.create_database("bench")
        table = await service.create_table("bench", Table("t", *columns))
        await asyncio.to_thread(table_there, mariadb)
        destination = Destination(mariadb, lambda: stack.drainer.tail() if stack.drainer else "")
        for number in range(rounds + ddls):
            column = f"c{number}" if number >= rounds else ""
            if column:
                table = await service.alter_table(table, add=[Column(column, BigInt(), default=0)])
            async with service.transaction() as txn:
                txn.insert(table, {"id": number, "name": f"row {number}"})
            seconds = await asyncio.to_thread(destination.wait, number, time.perf_counter(), column)
            (found.behind_ddls if column else found.rows).append(seconds)
            await asyncio.sleep(APART_S)
    return found


def measure_tidb(peer: Peer, mariadb: MariaDB, tail: Callable[[], str], rounds: int, ddls: int) -> Found:
    found = Found()
    with peer.connect() as upstream, upstream.cursor() as cursor:
        cursor.execute("CREATE DATABASE bench")
        cursor.execute("CREATE TABLE bench.t (id BIGINT PRIMARY KEY, name VARCHAR(40))")
        table_there(mariadb)
        destination = Destination(mariadb, tail)
        for number in range(rounds + ddls):
            column = f"c{number}" if number >= rounds else ""
            if column:
                cursor.execute(f"ALTER TABLE bench.t ADD COLUMN {column} INT NOT NULL DEFAULT 7")
            cursor.execute("INSERT INTO bench.t (id, name) VALUES (%s, %s)", (number, f"row {number}"))
            seconds = destination.wait(number, time.perf_counter(), column)
            (found.behind_ddls if column else found.rows).append(seconds)
            time.sleep(APART_S)
    return found


def with_sdk(rounds: int, ddls: int) -> Found:
    with running_stack(pumps=2) as (stack, mariadb):
        stack.start_drainer(stack.config(mariadb))
        return asyncio.run(measure_sdk(stack, mariadb, rounds, ddls))


def with_tidb(rounds: int, ddls: int, more: str) -> Found:
    binaries = peer_bin()
    if binaries is None:
        raise SystemExit("--tidb needs PEER_BIN, a folder that holds pd-server, unitikv, tidb-server and binlogctl")
    directory = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        with ExitStack() as stack:
            peer = stack.enter_context(running_peer(binaries, directory))
            mariadb = stack.enter_context(running_mariadb())
            for name in ("pump-a", "pump-b"):
                peer.our_pump(peer.place(name))
            peer.start_tidb()
            drainer = peer.our_drainer(mariadb, more=more)
            drainer.wait_for_output("drainer is running", deadline_s=120)
            found = measure_tidb(peer, mariadb, drainer.tail, rounds, ddls)
            if more:
                sys.stdout.write(drainer.text())
            return found
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def tell(report: Report, name: str, values: list[float], note: str) -> None:
    if not values:
        return
    ordered = sorted(values)
    report.add(f"{name}, median", ordered[len(ordered) // 2] * 1000, "ms")
    report.add(f"{name}, worst of {len(ordered)}", ordered[-1] * 1000, "ms")
    report.note(f"{spread(values)} s{note}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.latency", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--ddls", type=int, default=10)
    parser.add_argument("--tidb", action="store_true", help="write the rows with a real TiDB from PEER_BIN")
    parser.add_argument("--debug", action="store_true", help="with --tidb: print the drainer's log with its batches")
    args = parser.parse_args()
    if args.tidb:
        found = with_tidb(args.rounds, args.ddls, 'log-level = "debug"' if args.debug else "")
    else:
        found = with_sdk(args.rounds, args.ddls)
    report = Report(f"commit to visible, two idle pumps, written by {'TiDB' if args.tidb else 'the SDK'}")
    tell(report, "one row", found.rows, "; the original's with two pumps: 2.6 s median, 4.6 s worst")
    tell(report, "the row behind a DDL", found.behind_ddls, "")
    shutil.rmtree(Path("spark-warehouse"), ignore_errors=True)


if __name__ == "__main__":
    main()
