"""Measure a drainer that reads TiCDC's topics: rows/s into MariaDB, for each protocol, against the same number of rows
from pumps in the same run.

    python -m bench.ticdc [--rows 200000] [--protocol canal-json] [--profile]

The topic has three partitions and a resolved event after each thousand rows; the rows are inserts into
sysbench's table, each of them a transaction and a message of its own. The clock runs from "drainer is running" to the
last row.
"""

from __future__ import annotations

import argparse

from bench.consumer import PARTITIONS
from bench.consumer import fill as fill_topic
from bench.drainer import MARIADB_OPTIONS, Case, Drained, OwnBacklog, Watch, drain, fill, make_archive, tell_profile
from bench.report import Report
from bench.sbtest import SBTEST
from bench.stack import running_stack
from tests.support.kafka import running_kafka
from tests.support.servers import MariaDB

PROTOCOLS = ("open-protocol", "canal-json", "simple")


def drained(backlog: OwnBacklog, mariadb: MariaDB, rows: int, top: str = "") -> Drained:
    mariadb.reset()
    server = backlog.ours(mariadb, "", top)
    watch = Watch(server, mariadb, rows)
    found = drain(watch, backlog, from_running=True)
    watch.close()
    server.stop(deadline_s=120)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=200_000)
    options.add_argument("--protocol", action="append", choices=PROTOCOLS)
    options.add_argument("--profile", action="store_true", help="print each program's CPU for a row")
    given = options.parse_args()
    make_archive()
    report = Report(f"{given.rows:,} transactions of one row, to MariaDB")
    with running_stack(pumps=2, mariadb_options=MARIADB_OPTIONS) as (stack, mariadb), running_kafka() as broker:
        backlog = OwnBacklog(stack, SBTEST)

        def measure(name: str, top: str = "") -> None:
            found = drained(backlog, mariadb, given.rows, top)
            report.add(name, found.rate, "rows/s")
            if given.profile:
                tell_profile(report, name, found, given.rows)

        fill(backlog, Case("", SBTEST, given.rows))
        measure("pumps")
        for protocol in given.protocol or PROTOCOLS:
            topic = broker.topic(PARTITIONS)
            fill_topic(broker, topic, protocol, given.rows)
            uri = f"kafka://{broker.address}/{topic}?protocol={protocol}"
            uri += "&enable-tidb-extension=true" * (protocol == "canal-json")
            measure(protocol, f'source = "ticdc"\n[ticdc-source]\nuri = "{uri}"')
            report.ratio(protocol, "pumps")


if __name__ == "__main__":
    main()
