"""Measure rows written into MariaDB by LOAD DATA LOCAL and by multi-row REPLACE, through the sink's own writer, one
transaction after another: rows a second, and the CPU of the server and of the writer for each row."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from bench.pull import cpu_s
from bench.report import Report
from bench.sbtest import rows
from drainer.batch.work import Folded, Kind, Match, TableShape
from drainer.changes.net import NetColumns
from drainer.sink.mysql.config import ServerConfig, StatementLimits
from drainer.sink.mysql.connection import ServerSession, connect
from drainer.sink.mysql.rows.format import SQL_TEXT
from drainer.sink.mysql.rows.unique_keys import UniqueKeys
from drainer.sink.mysql.rows.writer import Writer
from tests.support.servers import MariaDB, running_mariadb


@dataclass(frozen=True)
class Table:
    """A table, and the texts of its rows' VALUES tuples, each followed by a comma."""

    create: str
    columns: tuple[str, ...]
    type_classes: tuple[str, ...]
    texts: Sequence[bytes]

    def shape(self, name: str) -> TableShape:
        match = (Match.PLAIN,) * len(self.columns)
        return TableShape(1, "bench", name, self.columns, (0,), (), match, type_classes=self.type_classes)


def sbtest(count: int) -> Table:
    return Table(
        "(id BIGINT PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL, KEY (k)) CHARSET=utf8mb4",
        ("id", "k", "c", "pad"),
        ("int", "int", "text", "text"),
        _shuffled(b"(%d,%d,'%b','%b')," % (i, k, c.encode(), pad.encode()) for i, k, c, pad in rows(count)),
    )


def binary(count: int) -> Table:
    """Make a table with fields that LOAD DATA must load through variables."""
    rng = random.Random(2)
    return Table(
        "(id BIGINT PRIMARY KEY, a VARBINARY(100), b DOUBLE, c ENUM('a','b','c'), d DATETIME, KEY (c))",
        ("id", "a", "b", "c", "d"),
        ("int", "bytes", "float", "enum", "datetime"),
        _shuffled(
            b"(%d,X'%b',%b,%d,'2026-01-02 03:04:05'),"
            % (i, rng.randbytes(60).hex().encode(), repr(rng.random()).encode(), 1 + i % 3)
            for i in range(count)
        ),
    )


def _shuffled(texts: Iterator[bytes]) -> Sequence[bytes]:
    """Shuffle the rows as in a slot, where the keys of a transaction lie all over the table."""
    found = list(texts)
    random.Random(3).shuffle(found)
    return found


def net(shape: TableShape, texts: Sequence[bytes]) -> Folded:
    identity = pa.array([b"%020d" % n for n in range(len(texts))], pa.binary())
    first = np.full(len(texts), int(Kind.INSERT), np.int64)
    return Folded(shape, NetColumns(SQL_TEXT, identity, first, pa.array(texts, pa.binary())))


def measure(
    report: Report, server: MariaDB, table: Table, title: str, rows_each: int, sessions: dict[str, ServerSession]
) -> None:
    """Measure both methods in turn, with a share of the rows at a time, so that noise on the machine affects both."""
    spent = {way: [0.0, 0.0, 0.0] for way in sessions}
    for way in sessions:
        server.query(f"CREATE OR REPLACE TABLE bench.{way} {table.create}")
    keys = {way: UniqueKeys() for way in sessions}
    for begin in range(0, len(table.texts), rows_each):
        for way, session in sessions.items():
            folded = net(table.shape(way), table.texts[begin : begin + rows_each])
            before = time.perf_counter(), cpu_s(server.server), time.process_time()
            session.begin()
            writer = Writer(session, StatementLimits(load_rows_min=1), until_ts=1, keys=keys[way])
            writer.folded(folded, thorough=False)
            session.commit()
            after = time.perf_counter(), cpu_s(server.server), time.process_time()
            spent[way] = [old + new - last for old, new, last in zip(spent[way], after, before, strict=True)]
    count = len(table.texts)
    for way, (wall_s, server_s, own_s) in spent.items():
        report.add(f"{title}, {rows_each} rows each: {way}", count / wall_s, "rows/s")
        report.add(f"{title}, {rows_each} rows each: {way}, server", server_s / count * 1e6, "µs of CPU a row")
        report.add(f"{title}, {rows_each} rows each: {way}, writer", own_s / count * 1e6, "µs of CPU a row")
    for what in ("", ", server"):
        report.ratio(f"{title}, {rows_each} rows each: load{what}", f"{title}, {rows_each} rows each: replace{what}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--each", type=int, nargs="+", default=[500, 1000, 5000])
    args = parser.parse_args()
    report = Report(f"{args.rows} rows into MariaDB: LOAD DATA LOCAL against REPLACE of 500 rows a statement")
    with running_mariadb("--innodb-buffer-pool-size=512M", "--innodb-log-file-size=512M") as server:
        server.query("CREATE DATABASE bench")
        config = ServerConfig(server.host, server.port, server.user, server.password)
        ways = {
            "load": config,
            "replace": ServerConfig(server.host, server.port, server.user, server.password, load_data="off"),
        }
        sessions = {way: connect(of, idle_s=3600, read_timeout_s=None) for way, of in ways.items()}
        for title, table in (("sbtest", sbtest(args.rows)), ("binary", binary(args.rows))):
            for rows_each in args.each:
                measure(report, server, table, title, rows_each, sessions)
        for session in sessions.values():
            session.close()


if __name__ == "__main__":
    main()
