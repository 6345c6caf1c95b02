"""Measure the consumer library: rows/s of `for event in Consumer(…)` from a topic of a real broker, for each protocol.

    python -m bench.consumer [--rows 100000] [--protocol canal-json] [--profile]

The topic has three partitions and a resolved event after each thousand rows. Rows are pumpload's (4 columns), each in a
message of its own, and are also read by Kafka's client alone, and by the client with json.loads of each value, which is
what a reader in Python does at least. Every reader is one process, and reads everything; the best of two runs counts.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
from collections.abc import Callable
from dataclasses import replace

import confluent_kafka
import numpy as np

from bench.protocol import changes_of
from bench.report import Report, timed
from bench.rowcodec import SBTEST, sbtest_row
from drainer.batch.work import Kind
from drainer.kafka_consumer.consumer import Consumer
from drainer.protocol.encoder import Message
from drainer.protocol.event import RowEvent
from drainer.protocol.registry import ProtocolOptions, make_encoder
from tests.support.kafka import Broker, running_kafka

PROTOCOLS = ("open-protocol", "canal-json", "simple", "debezium")
PARTITIONS = 3
RESOLVED_EVERY = 1000


def fill(broker: Broker, topic: str, protocol: str, rows: int, **more: int) -> int:
    """Write inserts into the table bench.sbtest to a topic, and return the number of messages. `more`: further options
    of the protocol."""
    encoder = make_encoder(ProtocolOptions(protocol, enable_tidb_extension=True, **more))
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    changes = changes_of(replace(SBTEST, name="sbtest"), sbtest_row, rows, Kind.INSERT, "bench")
    compiled, count = encoder.table(changes.table, topic), 0

    def send(messages: list[Message], partition: int) -> None:
        nonlocal count
        for message in messages:
            producer.produce(topic, message.value, message.key, partition=partition)
        producer.poll(0)
        count += len(messages)

    for partition in range(PARTITIONS):
        send(list(encoder.bootstrap(changes.table, int(changes.commit_ts[0]))), partition)
    parts = compiled.encode_columns(changes)
    for begin in range(0, rows, RESOLVED_EVERY):
        chosen = np.arange(begin, min(begin + RESOLVED_EVERY, rows))
        send(list(encoder.frame_columns(parts, chosen)), begin // RESOLVED_EVERY % PARTITIONS)
        for partition in range(PARTITIONS):
            send(list(encoder.resolved(int(changes.commit_ts[chosen[-1]]))), partition)
    for partition in range(PARTITIONS):  # a drainer waits for what may still come at the ts of a resolved event
        send(list(encoder.resolved(int(changes.commit_ts[-1]) + 1)), partition)
    assert producer.flush(60) == 0
    return count


def read_alone(broker: Broker, topic: str, messages: int, each: Callable[[bytes], object]) -> None:
    client = confluent_kafka.Consumer({"bootstrap.servers": broker.address, "group.id": "unused"})
    client.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    while messages:
        found = client.consume(min(1000, messages), 1.0)
        for message in found:
            each(message.value() or b"")
        messages -= len(found)
    client.close()


def parse(value: bytes) -> None:
    text = value if value.startswith(b"{") else value[8:]  # Open Protocol: after the length
    if text:
        json.loads(text)


def consume(broker: Broker, topic: str, protocol: str, rows: int) -> None:
    more = "&enable-tidb-extension=true" if protocol in ("canal-json", "debezium") else ""
    uri = f"kafka://{broker.address}/{topic}?protocol={protocol}{more}"
    found = sum(isinstance(event, RowEvent) for event in Consumer(uri, once=True))
    assert found == rows, f"{found} rows of {rows}"


def best_per_s(rows: int, run: Callable[[], None]) -> float:
    seconds = []
    for _ in range(2):
        with timed() as watch:
            run()
        seconds.append(watch.seconds)
    return rows / min(seconds)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=100_000)
    options.add_argument("--protocol", action="append", choices=PROTOCOLS)
    options.add_argument("--profile", action="store_true")
    given = options.parse_args()
    rows, report = given.rows, Report(f"one process reads {given.rows:,} rows")
    with running_kafka() as broker:
        for protocol in given.protocol or PROTOCOLS:
            topic = broker.topic(PARTITIONS)
            messages = fill(broker, topic, protocol, rows, max_batch_size=1)
            client = f"{protocol}, the client alone"
            loads = f"{protocol}, with json.loads"
            report.add(client, best_per_s(rows, lambda t=topic, m=messages: read_alone(broker, t, m, len)), "rows/s")  # type: ignore[misc]
            report.add(loads, best_per_s(rows, lambda t=topic, m=messages: read_alone(broker, t, m, parse)), "rows/s")  # type: ignore[misc]
            report.add(protocol, best_per_s(rows, lambda t=topic, p=protocol: consume(broker, t, p, rows)), "rows/s")  # type: ignore[misc]
            report.ratio(protocol, client)
            report.ratio(protocol, loads)
            if given.profile:
                with cProfile.Profile() as found:
                    consume(broker, topic, protocol, rows)
                pstats.Stats(found).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
