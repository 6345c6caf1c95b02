"""Measure `drainer check` of a MariaDB against the checksums that both servers compute of the same rows, and the lag of
the stream while `drainer check -repair` mends a table in which `--repair` rows differ.

    PEER_BIN=… python -m bench.check [--rows 5000000] [--tables 10] [--repair 120000]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from bench.load_tables import at, fill, load, running_site, upstream_section
from bench.report import Report, timed
from tests.peer.cluster import Peer
from tests.support.servers import MariaDB, wait_until

ROWS_PER_S = 200
AT_ONCE = 10  # rows of a transaction
QUIET_S = 20.0  # for the lag without a repair
POLL_S = 0.01


def check(peer: Peer, mariadb: MariaDB, name: str, *arguments: str) -> float:
    """Return the seconds in which `drainer check` compares tables, and repairs them if it is asked to."""
    checking = peer.our_drainer(mariadb, *arguments, name=name, more=upstream_section(peer), command=("check",))
    if checking.wait(deadline_s=3600) != 0:
        raise SystemExit(checking.tail())
    lines = [line for line in checking.text().splitlines() if "check begins" in line or "table compared" in line]
    begin_at, end_at = (at(line) for line in (lines[0], lines[-1]))
    return (end_at - begin_at).total_seconds()


def checksums(peer: Peer, mariadb: MariaDB, tables: int) -> float:
    """Return the seconds in which both servers compute the checksums of all tables. TiDB's ADMIN CHECKSUM TABLE is
    not asked for: the TiKV in one process answers it without reading a row."""
    with peer.connect() as upstream, upstream.cursor() as cursor, timed() as watch:
        for number in range(tables):
            cursor.execute(f"SELECT BIT_XOR(CRC32(CONCAT_WS(',', id, k, c, pad))) FROM bench{number}.sbtest")
            mariadb.query(f"CHECKSUM TABLE bench{number}.sbtest")
    return watch.seconds


def lags(peer: Peer, mariadb: MariaDB, meanwhile: Callable[[], object]) -> list[float]:
    """Return, of each transaction that was written to bench0.ticks at ROWS_PER_S during the call, the seconds from its
    begin upstream until its rows are visible in MariaDB."""
    ended, begun = Event(), dict[int, float]()
    seen: dict[int, float] = {}

    def write() -> None:
        with peer.connect(database="bench0") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT COALESCE(MAX(id), 0) FROM ticks")
            (last,) = cursor.fetchone()
            while not ended.wait(AT_ONCE / ROWS_PER_S):
                begin, last = last + 1, last + AT_ONCE
                begun[last] = time.perf_counter()
                cursor.execute(f"INSERT INTO ticks VALUES {','.join(f'({id_})' for id_ in range(begin, last + 1))}")

    def watch() -> None:
        with mariadb.connect(database="bench0") as connection, connection.cursor() as cursor:
            while not ended.is_set() or len(seen) < len(begun):
                cursor.execute("SELECT COALESCE(MAX(id), 0) FROM ticks")
                (last,) = cursor.fetchone()
                now = time.perf_counter()
                seen.update((id_, now) for id_ in list(begun) if id_ <= last and id_ not in seen)
                time.sleep(POLL_S)

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(write), pool.submit(watch)]
        try:
            meanwhile()
        finally:
            ended.set()
        for one in running:
            one.result()
    return sorted(seen[id_] - begin_s for id_, begin_s in begun.items())


def repair(report: Report, peer: Peer, mariadb: MariaDB, rows: int) -> None:
    drainer = peer.our_drainer(mariadb, more=upstream_section(peer))
    drainer.wait_for_output("drainer is running", deadline_s=300)
    with peer.connect() as upstream, upstream.cursor() as cursor:
        cursor.execute("CREATE TABLE bench0.ticks (id BIGINT PRIMARY KEY)")
    wait_until(lambda: mariadb.query("SHOW TABLES FROM bench0 LIKE 'ticks'"), deadline_s=60, what="table downstream")
    quiet = lags(peer, mariadb, lambda: time.sleep(QUIET_S))
    mariadb.query(f"UPDATE bench0.sbtest SET k = k + 1 WHERE id <= {rows}")
    with timed() as watch:
        during = lags(peer, mariadb, lambda: check(peer, mariadb, "repair", "-repair", "-table=bench0.sbtest"))
    report.note(f"{rows:,} rows repaired in {watch.seconds:.0f} s, {ROWS_PER_S} rows a second written beside it")
    for name, found in (("without a repair", quiet), ("during the repair", during)):
        report.add(f"lag {name}, 99 % of {len(found)}", found[len(found) * 99 // 100] * 1000, "ms")
        report.add(f"lag {name}, worst", found[-1] * 1000, "ms")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.check", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000, help="of all tables")
    parser.add_argument("--tables", type=int, default=10)
    parser.add_argument("--repair", type=int, default=120_000, help="rows that differ; at most those of a table")
    args = parser.parse_args()
    with running_site() as (peer, mariadb, directory):
        for number in range(args.tables):
            fill(peer, number, args.rows // args.tables, directory / f"{number}.tsv")
        report = Report(f"{args.rows:,} rows in {args.tables} tables, TiDB and MariaDB")
        load(peer, mariadb)
        before_s = checksums(peer, mariadb, args.tables)
        report.add("drainer check", args.rows / check(peer, mariadb, "check"), "rows/s")
        sums_s = (before_s + checksums(peer, mariadb, args.tables)) / 2  # other programs may use the machine
        report.add("checksums of both servers", args.rows / sums_s, "rows/s")
        report.ratio("drainer check", "checksums of both servers")
        if args.repair:
            repair(report, peer, mariadb, min(args.repair, args.rows // args.tables))


if __name__ == "__main__":
    main()
