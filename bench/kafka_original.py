"""Compare the Go drainer and this drainer, which publish a backlog in two pumps to Kafka: rows a second, and CPU for a
row.

    PEER_BIN=… python -m bench.kafka_original [--rows 300000]

Both publish the secondary binlog, the only protocol that the original has, from the same two pumps of this project to
the same broker: transactions of one row into sysbench's table, which a real TiDB has created. The original uses one
partition and no transactions. This drainer is measured with one partition, like the original, and with `--partitions`;
always with Kafka's transactions, exactly once.

The clock runs from the first row that a reader gets to the last; for this drainer also from "drainer is running". At
the end every message is read and decoded: the run fails unless every row occurs exactly once. A few rows of the
original may be missing, because its merger drops the second of two binlogs with the same commit_ts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import cpu
from bench.drainer import Case, fill, make_archive
from bench.kafka import Watch, last_poll, watched, write_config
from bench.original import PeerBacklog, peer_with_table
from bench.report import Report
from bench.sbtest import SBTEST
from tests.peer.cluster import peer_bin
from tests.support.kafka import Broker, running_kafka
from tests.support.servers import Server, python_module, wait_until

PROTOCOL = "secondary-binlog"
DROPPED_MAX = 50  # rows that may be missing from the original's output


@dataclass
class World:
    backlog: PeerBacklog
    broker: Broker
    rows: int

    def original(self, topic: str) -> Server:
        return self.backlog.peer.go_kafka_drainer(self.broker.address, topic)

    def ours(self, topic: str) -> Server:
        peer = self.backlog.peer
        file = peer.directory / f"{topic}.toml"
        schema = f'history-url = "{peer.history_url}"'
        write_config(file, peer.pd_url, self.broker, topic, PROTOCOL, schema=schema)
        server = python_module("drainer", "-config", str(file), output=file.with_suffix(".out")).start()
        peer.servers.append(server)
        return server

    def measure(self, report: Report, name: str, start: Callable[[str], Server], partitions: int, lacks: int) -> None:
        topic = self.broker.topic(partitions, name="rows")
        server = start(topic)
        watch = Watch(self.broker, topic, partitions, server, self.backlog.pump_pids())
        try:
            if not lacks:
                wait_until(lambda: "drainer is running" in server.text(), deadline_s=300, what=server.tail())
            counted = watched(watch, self.rows, PROTOCOL, "", lacks=lacks)
        finally:
            watch.close()
            server.stop(deadline_s=120)
        begin, end = watch.polls[0], last_poll(watch, counted)
        first = next(poll for poll in watch.polls if any(poll.ends))
        behind = sum(one.rows for one in counted if one.offset >= first.ends[one.partition])
        report.add(name, behind / (end.at - first.at), "rows/s")
        if not lacks:
            report.add(f"{name}, from its start", self.rows / (end.at - begin.at), "rows/s")
        since, of = (first, behind) if lacks else (begin, self.rows)
        for program, seconds in cpu.between(since.cpu, end.cpu).items():
            if seconds:
                report.add(f"  CPU of {program}", seconds / of * 1e6, "µs/row")
        self.broker.delete(topic)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.kafka_original", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=300_000, help="rows in the backlog, an even number")
    parser.add_argument("--partitions", type=int, default=16)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    binaries: Path | None = peer_bin()
    if binaries is None:
        raise SystemExit("PEER_BIN names no folder with the original's programs")
    make_archive()
    with running_kafka() as broker, peer_with_table(binaries, SBTEST.create("bench")) as (peer, table_id, pumps, ports):
        backlog = PeerBacklog(peer, table_id, pumps, ports)
        fill(backlog, Case("single rows", SBTEST, args.rows))
        world = World(backlog, broker, args.rows)
        report = Report(f"{args.rows:,} transactions of a row, in two pumps, to Kafka as the secondary binlog")
        world.measure(report, "the Go drainer", world.original, 1, DROPPED_MAX)
        for partitions in dict.fromkeys((1, args.partitions)):
            name = f"this drainer, {partitions} partition{'s' if partitions > 1 else ''}"
            world.measure(report, name, world.ours, partitions, 0)
            report.ratio(name, "the Go drainer")


if __name__ == "__main__":
    main()
