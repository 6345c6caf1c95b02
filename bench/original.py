"""The Go drainer and this one on the same pumps, one after the other, in one run. Needs PEER_BIN.

    python -m bench.original [--txns 200000] [--rows 1]

A real TiDB creates `bench.sbtest`, so that both drainers know it as they would in production; pumpload fills two of our
pumps; then each drains the backlog into an empty MariaDB. As in bench.drainer the clock runs from the first row that
is visible.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from bench.drainer import drain, own_cluster_id
from bench.fill import fill_with_pumpload
from bench.report import Report
from bench.sbtest import CREATE, ceiling
from tests.peer.cluster import Peer, peer_bin, running_peer
from tests.support.servers import MariaDB, running_mariadb, wait_until

# pumpload's timestamps come from the local clock and may equal a fake's of the other pump; the original's merger drops
# the second of two equal commit_ts ("duplicate binlog"), so its last few rows may never come.
SLACK_ROWS = 50


def table_id(peer: Peer) -> int:
    """Create the table upstream; its id."""
    with peer.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE bench")
        cursor.execute(CREATE.format(schema="bench"))
        cursor.execute(
            "SELECT tidb_table_id FROM information_schema.tables WHERE table_schema='bench' AND table_name='sbtest'"
        )
        found = cursor.fetchone()
        assert found is not None
        return int(found[0])


def table_arrived(mariadb: MariaDB) -> bool:
    return bool(mariadb.query("SHOW TABLES FROM bench LIKE 'sbtest'"))


def measure(peer: Peer, mariadb: MariaDB, report: Report, txns: int, rows_each: int) -> None:
    expected = txns * rows_each
    plain = "plain REPLACE, 2 connections x 500 rows"
    report.add(plain, ceiling(mariadb, 100_000, connections=2, rows_a_statement=500), "rows/s")
    for name, start in (
        ("Go drainer", lambda: peer.go_drainer(mariadb, worker_count=16)),
        ("this drainer", lambda: peer.our_drainer(mariadb)),
    ):
        mariadb.reset()
        server = start()
        wait_until(lambda: table_arrived(mariadb), deadline_s=180, what=f"{name}: the table downstream")
        drained = drain(lambda running=server: running, mariadb, expected - SLACK_ROWS * rows_each)
        report.add(name, drained.steady, "rows/s")
        server.kill()
    report.ratio("this drainer", plain)
    report.ratio("this drainer", "Go drainer")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.original", description=__doc__)
    parser.add_argument("--txns", type=int, default=200_000)
    parser.add_argument("--rows", type=int, default=1, help="rows of one transaction")
    args = parser.parse_args()
    binaries = peer_bin()
    if binaries is None:
        print("the Go drainer was not measured: PEER_BIN names no folder with its binaries")
        return
    directory = Path(tempfile.mkdtemp(prefix="bench-peer-"))
    try:
        with running_mariadb("--innodb-log-file-size=512M") as mariadb, running_peer(binaries, directory) as peer:
            places = [peer.place(f"bench-{number}") for number in range(2)]
            for place in places:
                peer.our_pump(place)
            peer.start_tidb()
            table, cluster = table_id(peer), own_cluster_id(peer.pd_url)
            report = Report(f"{args.txns:,} transactions of {args.rows} row(s) in two pumps, both drainers to MariaDB")
            half = args.txns // 2
            for number, place in enumerate(places):
                first = 1 + number * half * args.rows
                report.note(
                    fill_with_pumpload(
                        place.port, cluster, txns=half, rows_each=args.rows, base=first, table_id=table, concurrency=256
                    )
                )
            measure(peer, mariadb, report, half * 2, args.rows)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
