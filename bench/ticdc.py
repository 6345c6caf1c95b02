"""Measure a drainer that reads TiCDC's topics: rows/s into MariaDB, for each protocol, against the same number of rows
from pumps in the same run.

    python -m bench.ticdc [--rows 200000] [--protocol canal-json] [--batch 16] [--profile]
    python -m bench.ticdc --lag-s 30 [--rate 5000] [--resolved-every 1.0]

The topic has three partitions and a resolved event after each thousand rows; the rows are inserts into
sysbench's table, each of them a transaction of its own. In Open Protocol a message has 16 rows, TiCDC's default, or
those of `--batch`; in the other protocols one. The clock runs from "drainer is running" to the last row.

With `--lag-s` rows are updated at a steady rate for so long, and the lag of every tenth of a second is the time from
its commit until all its rows are downstream. It includes the wait for the next resolved event, which TiCDC writes every
second.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import threading
import time
from dataclasses import replace

import confluent_kafka
import numpy as np
from binlog.cluster import tso

from bench.consumer import PARTITIONS
from bench.consumer import fill as fill_topic
from bench.drainer import (
    MARIADB_OPTIONS,
    RUNNING,
    Case,
    Drained,
    OwnBacklog,
    Watch,
    drain,
    fill,
    make_archive,
    tell_profile,
)
from bench.protocol import changes_of
from bench.report import Report
from bench.rowcodec import SBTEST as SBTEST_INFO
from bench.rowcodec import sbtest_row
from bench.sbtest import SBTEST
from bench.stack import running_stack
from drainer.batch.work import Kind
from drainer.protocol.registry import ProtocolOptions, make_encoder
from tests.support.kafka import Broker, running_kafka
from tests.support.servers import MariaDB, wait_until

PROTOCOLS = ("open-protocol", "canal-json", "simple")
TICK_S = 0.1


def drained(backlog: OwnBacklog, mariadb: MariaDB, rows: int, top: str = "") -> Drained:
    mariadb.reset()
    server = backlog.ours(mariadb, "", top)
    watch = Watch(server, mariadb, rows)
    found = drain(watch, backlog, from_running=True)
    watch.close()
    server.stop(deadline_s=120)
    return found


def ticks(broker: Broker, topic: str, rows: int, seconds: float, resolved_every: float) -> list[float]:
    """Update `rows` rows every TICK_S with their number in `k`. Return the time of each commit."""
    encoder = make_encoder(ProtocolOptions("canal-json", enable_tidb_extension=True))
    changes = changes_of(replace(SBTEST_INFO, name="sbtest"), sbtest_row, rows, Kind.UPDATE, "bench")
    parts = encoder.table(changes.table, topic).encode_columns(changes)
    values = [message.value or b"" for message in encoder.frame_columns(parts, np.arange(rows))]
    stamps = [str(ts).encode() for ts in changes.commit_ts.tolist()]
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, "linger.ms": 5})
    begin, at_s, resolved_s = time.time(), [], 0.0
    for tick in range(1, int(seconds / TICK_S)):
        time.sleep(max(0.0, begin + tick * TICK_S - time.time()))
        at_s.append(time.time())
        ts = tso.compose(int(at_s[-1] * 1000))
        for number, (value, stamp) in enumerate(zip(values, stamps, strict=True)):
            made = re.sub(rb'"k":"[0-9]+"', b'"k":"%d"' % tick, value).replace(stamp, b"%d" % (ts + number))
            producer.produce(topic, made, partition=number % PARTITIONS)
        if at_s[-1] - resolved_s >= resolved_every or tick + 1 >= int(seconds / TICK_S):
            resolved_s = at_s[-1]
            for partition in range(PARTITIONS):
                for message in encoder.resolved(ts + rows):
                    producer.produce(topic, message.value, partition=partition)
        producer.poll(0)
    assert producer.flush(60) == 0
    return at_s


def lags(backlog: OwnBacklog, mariadb: MariaDB, broker: Broker, given: argparse.Namespace, report: Report) -> None:
    mariadb.reset()
    topic, rows = broker.topic(PARTITIONS), int(given.rate * TICK_S)
    uri = f"kafka://{broker.address}/{topic}?protocol=canal-json&enable-tidb-extension=true"
    top = 'log-level = "debug"\n' if given.debug else ""
    server = backlog.ours(mariadb, "", f'{top}source = "ticdc"\n[ticdc-source]\nuri = "{uri}"')
    server.wait_for_output(RUNNING, deadline_s=120)
    seen: dict[int, float] = {}
    ended = threading.Event()

    def watch() -> None:
        with contextlib.closing(mariadb.connect()) as connection, connection.cursor() as cursor:
            while not ended.wait(0.02):
                cursor.execute("SELECT MIN(k), COUNT(*) FROM bench.sbtest")
                least, count = cursor.fetchone()
                for tick in range(max(seen, default=0) + 1, (least or 0) + 1 if count == rows else 0):
                    seen[tick] = time.time()

    watching = threading.Thread(target=watch)
    watching.start()
    at_s = ticks(broker, topic, rows, given.lag_s, given.resolved_every)
    wait_until(lambda: len(at_s) in seen, deadline_s=120, what="the last rows are downstream")
    ended.set()
    watching.join()
    server.stop(deadline_s=120)
    if given.debug:
        print("\n".join(line for line in server.text().splitlines() if "DEBUG" in line.upper()))
    found = sorted(seen[tick] - sent for tick, sent in enumerate(at_s, 1))
    for name, place in (("median", 0.5), ("99 %", 0.99), ("worst", 1.0)):
        report.add(
            f"lag at {given.rate:,} rows/s, {name}", found[min(int(len(found) * place), len(found) - 1)], "s", digits=2
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=200_000)
    options.add_argument("--protocol", action="append", choices=PROTOCOLS)
    options.add_argument("--batch", type=int, default=16, help="rows in a message of Open Protocol")
    options.add_argument("--lag-s", type=float, default=0.0, help="measure the lag for so long, and nothing else")
    options.add_argument("--rate", type=int, default=5000, help="rows/s of --lag-s")
    options.add_argument("--resolved-every", type=float, default=1.0, help="seconds between resolved events of --lag-s")
    options.add_argument("--debug", action="store_true", help="print the drainer's log of its batches of --lag-s")
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

        if given.lag_s:
            lags(backlog, mariadb, broker, given, report)
            return
        fill(backlog, Case("", SBTEST, given.rows))
        measure("pumps")
        for protocol in given.protocol or PROTOCOLS:
            topic = broker.topic(PARTITIONS)
            fill_topic(broker, topic, protocol, given.rows, max_batch_size=given.batch)
            uri = f"kafka://{broker.address}/{topic}?protocol={protocol}"
            uri += "&enable-tidb-extension=true" * (protocol == "canal-json")
            measure(protocol, f'source = "ticdc"\n[ticdc-source]\nuri = "{uri}"')
            report.ratio(protocol, "pumps")


if __name__ == "__main__":
    main()
