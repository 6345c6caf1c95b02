"""Measure what several processes publish concurrently: the producer library alone, and slot writers with rows in
memory.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from confluent_kafka import Producer as Client

from bench.files import decoded
from bench.rowcodec import SBTEST, binlogs, sbtest_row
from drainer.changes import ChangeSegment
from drainer.changes.decode import Changes
from drainer.dispatch.dispatcher import PartitionSlotting
from drainer.protocol.encoder import Message, merged
from drainer.sink.kafka.producer import library_batch_bytes, new_producer
from drainer.sink.kafka.publication import Publication
from drainer.sink.kafka.settings.section import KafkaSection
from drainer.sink.retry import RetryDeadline

SECONDS: Final = 3.0
CHUNK: Final = 1000
HELD_MAX: Final = 50_000
SEGMENT_ROWS: Final = 12_000
TOPIC_BYTES: Final = 1_048_588  # default max.message.bytes of a topic
_SEGMENTS: Final = 8  # the number that bench.files makes
_DEADLINE_S: Final = 600.0


def ceiling_per_s(address: str, topic: str, partitions: int, messages: Sequence[Message], producers: int) -> float:
    """Return the messages a second that `producers` processes get acknowledged by all replicas, idempotent, with the
    batch settings of the drainer's own producers. The messages are in memory before the clock starts. Each process has
    partitions of its own, as slots have. Nothing is encoded, no transaction is opened, and nothing else runs."""
    pairs = [(message.key, message.value) for message in messages]
    own = [[*range(number, partitions, producers)] for number in range(producers)]
    return _at_once(_produce, [(address, topic, of, pairs) for of in own])


def writers_per_s(address: str, topic: str, partitions: int, protocol: str, writers: int) -> float:
    """Return the rows a second that `writers` processes publish as slot writers do, from segments of about SEGMENT_ROWS
    rows in memory: dispatched, encoded, framed, and produced in a transaction for each segment. Each process has a
    slot, and therefore partitions of its own."""
    return _at_once(_publish, [(address, topic, partitions, protocol, number, writers) for number in range(writers)])


def _at_once(target: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> float:
    """Run the processes concurrently. Return the sum of their counts for each second from the first begin to the last
    end.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(arguments))
    results: Any = context.Queue()
    started = [context.Process(target=target, args=(*given, barrier, results), daemon=True) for given in arguments]
    for process in started:
        process.start()
    try:
        told = [results.get(timeout=_DEADLINE_S) for _ in started]
    finally:
        for process in started:
            process.join(10)
            process.kill()
    counts, begins, ends = zip(*told, strict=True)
    return float(sum(counts) / (max(ends) - min(begins)))


def _produce(
    address: str,
    topic: str,
    partitions: Sequence[int],
    pairs: Sequence[tuple[bytes | None, bytes | None]],
    barrier: Any,
    results: Any,
) -> None:
    client = Client(
        {
            "bootstrap.servers": address,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.size": library_batch_bytes(TOPIC_BYTES),
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": (1 << 31) - 1,
            "delivery.report.only.error": True,
            "log_level": 0,
            "on_delivery": _refuse,
        }
    )
    given = [{"key": key, "value": value} for key, value in pairs]
    chunks = [given[at : at + CHUNK] for at in range(0, len(given), CHUNK)]
    for partition in partitions:  # connected, and the producer id is known
        client.produce(topic, value=b"first", partition=partition)
    client.flush(_DEADLINE_S)
    barrier.wait(_DEADLINE_S)
    begin = time.perf_counter()
    count = turn = 0
    while time.perf_counter() - begin < SECONDS:
        chunk = chunks[turn % len(chunks)]
        queued = client.produce_batch(topic, chunk, partition=partitions[turn % len(partitions)])
        assert queued == len(chunk), next(one["_error"] for one in chunk if "_error" in one)
        count += queued
        turn += 1
        client.poll(0)
        while len(client) > HELD_MAX:
            client.poll(0.005)
    left = client.flush(_DEADLINE_S)
    assert not left, f"{left} messages are not acknowledged"
    results.put((count, begin, time.perf_counter()))


def _refuse(error: object, _: object) -> None:
    """Print errors only."""
    raise AssertionError(f"a message is lost: {error}")


def publication_of(address: str, topic: str, partitions: int, protocol: str) -> tuple[KafkaSection, Publication]:
    """Return the publication as an executor gets it, rows dispatched by their key. The schema ids are made up."""
    given = {
        "addresses": [address],
        "topic": topic,
        "control-topic": f"{topic}-control",
        "protocol": protocol,
        "schema-registry": "http://registry",
        "dispatchers": [{"matcher": ["*.*"], "partition": "index-value"}],
    }
    section = KafkaSection.model_validate(given, by_alias=True, by_name=False)
    return section, Publication(section.options(), section.router(), {topic: partitions}, {topic: TOPIC_BYTES})


def segments(publication: Publication, slot: int, slots: int) -> list[ChangeSegment]:
    """Return segments of a slot's rows."""
    slotting = PartitionSlotting(publication.dispatcher, slots)

    def mine(changes: Changes) -> Changes:
        return changes.take(np.any([of == slot for of in slotting.slots_of(changes, slots)], axis=0))

    whole = decoded(SBTEST, binlogs(SBTEST, sbtest_row, SEGMENT_ROWS * _SEGMENTS * slots))
    found = [replace(segment, changes=tuple(map(mine, segment.changes))) for segment in whole]
    return [replace(segment, change_count=sum(map(len, segment.changes))) for segment in found]


def with_ids(publication: Publication, made: Sequence[ChangeSegment]) -> Publication:
    needed = publication.required_schemas(table for segment in made for table in publication.tables_in(segment))
    return replace(publication, ids=merged({}, [(schema, 1) for schema in needed]))


def _publish(
    address: str, topic: str, partitions: int, protocol: str, number: int, slots: int, barrier: Any, results: Any
) -> None:
    section, publication = publication_of(address, topic, partitions, protocol)
    made = segments(publication, number, slots)
    publication = with_ids(publication, made)
    deadline = RetryDeadline(f"writer {number}", _DEADLINE_S)
    producer = new_producer(section, f"{topic}-{number}", publication.batch_bytes)
    producer.init(topic, deadline)
    count = turn = 0

    def publish(segment: ChangeSegment) -> int:
        producer.begin()
        for outgoing in publication.rows_of_slot(segment, number, slots):
            producer.send(outgoing.topic, outgoing.partition, outgoing.messages, deadline)
        producer.flush(deadline)
        producer.commit(deadline)
        return segment.change_count

    publish(made[0])
    barrier.wait(_DEADLINE_S)
    begin = time.perf_counter()
    while time.perf_counter() - begin < SECONDS:
        count += publish(made[turn % len(made)])
        turn += 1
    results.put((count, begin, time.perf_counter()))
