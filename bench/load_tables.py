"""Measure `drainer load` from a real TiDB into MariaDB against LOAD DATA LOCAL of the same rows from a file into the
same MariaDB, and the CPU of each program for a row.

    PEER_BIN=… python -m bench.load_tables [--rows 200000] [--tables 2]

The load is measured from its first log line to its last one: tables are created, divided, read and written.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from bench.cpu import between, process_s
from bench.report import Report, timed
from bench.sbtest import SBTEST, rows
from tests.peer.cluster import Peer, peer_bin, running_peer
from tests.support.servers import MariaDB, running_mariadb

BEGIN, END = "first load begins", "first load is complete"
AT_ONCE = 1000  # rows of an INSERT


def fill(peer: Peer, number: int, count: int, file: Path) -> None:
    """Write the rows of a table into TiDB and into a file."""
    lines = ["\t".join(map(str, row)) + "\n" for row in rows(count, number)]
    file.write_text("".join(lines))
    with peer.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE bench{number}")
        cursor.execute(SBTEST.create(f"bench{number}"))
        for begin in range(0, count, AT_ONCE):
            values = ("('" + line.strip().replace("\t", "','") + "')" for line in lines[begin : begin + AT_ONCE])
            cursor.execute(f"INSERT INTO bench{number}.sbtest VALUES {','.join(values)}")


def load_data(mariadb: MariaDB, file: Path) -> float:
    """Return the seconds of LOAD DATA LOCAL."""
    schema = f"plain_{file.stem}"
    mariadb.query(f"CREATE DATABASE {schema}")
    mariadb.query(SBTEST.create(schema))
    with mariadb.connect(local_infile=True) as connection, connection.cursor() as cursor, timed() as watch:
        cursor.execute(f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE {schema}.sbtest CHARACTER SET utf8mb4")
        connection.commit()
    return watch.seconds


def load(peer: Peer, mariadb: MariaDB) -> tuple[float, float, dict[str, float]]:
    """Return the seconds of `drainer load`, its rows a second once the tables are divided, and the CPU seconds of each
    program."""
    drainer = peer.our_drainer(mariadb, more=upstream_section(peer), command=("load",))
    programs = {Path(server.argv[0]).name: server for server in peer.servers if "-server" in server.argv[0]}
    programs |= {"unitikv": peer.servers[1], "MariaDB": mariadb.server, "drainer": drainer}

    def cpu() -> dict[str, float]:
        return {name: process_s(server.process.pid) for name, server in programs.items() if server.process}

    drainer.wait_for_output(BEGIN)
    before = cpu()
    drainer.wait_for_output(END, deadline_s=3600)
    spent = between(before, cpu())
    if drainer.wait() != 0:
        raise SystemExit(drainer.tail())
    lines = drainer.text().splitlines()
    begin, end = (next(line for line in lines if text in line) for text in (BEGIN, END))
    begin_at, end_at = at(begin), at(end)
    return (end_at - begin_at).total_seconds(), float(end.partition("rowsPerSecond=")[2].partition("]")[0]), spent


def upstream_section(peer: Peer) -> str:
    return f'[upstream]\nhost = "127.0.0.1"\nport = {peer.tidb_port}\n'


def at(line: str) -> datetime:
    """Return the time of a line of the log."""
    return datetime.strptime(line[1:31], "%Y/%m/%d %H:%M:%S.%f %z")


@contextmanager
def running_site() -> Iterator[tuple[Peer, MariaDB, Path]]:
    """A TiDB with a pump, a MariaDB, and a directory for files."""
    binaries = peer_bin()
    if binaries is None:
        raise SystemExit("it needs PEER_BIN, a folder that holds pd-server, unitikv, tidb-server and binlogctl")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        peer = stack.enter_context(running_peer(binaries, directory))
        mariadb = stack.enter_context(
            running_mariadb("--innodb-buffer-pool-size=512M", "--innodb-log-file-size=512M", "--local-infile=1")
        )
        peer.our_pump(peer.place("pump"))
        peer.start_tidb()
        yield peer, mariadb, directory


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.load_tables", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="of all tables")
    parser.add_argument("--tables", type=int, default=2)
    args = parser.parse_args()
    with running_site() as (peer, mariadb, directory):
        files = [directory / f"{number}.tsv" for number in range(args.tables)]
        for number, file in enumerate(files):
            fill(peer, number, args.rows // args.tables, file)
        report = Report(f"{args.rows:,} rows in {args.tables} tables from TiDB into MariaDB")
        assert mariadb.server.process is not None
        before_s = process_s(mariadb.server.process.pid)
        report.add("LOAD DATA", args.rows / sum(load_data(mariadb, file) for file in files), "rows/s")
        server_s = process_s(mariadb.server.process.pid) - before_s
        report.add("LOAD DATA: MariaDB", server_s / args.rows * 1e6, "µs of CPU a row")
        seconds, speed, spent = load(peer, mariadb)
        report.add("drainer load", args.rows / seconds, "rows/s")
        report.add("drainer load, once the tables are divided", speed, "rows/s")
        for name in ("drainer load", "drainer load, once the tables are divided"):
            report.ratio(name, "LOAD DATA")
        for name, cpu_s in spent.items():
            report.add(f"drainer load: {name}", cpu_s / args.rows * 1e6, "µs of CPU a row")


if __name__ == "__main__":
    main()
