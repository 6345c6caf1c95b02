"""What the producer library alone can do: the same messages again and again, by several processes at once."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import Producer as Client

from drainer.protocol.encoder import Message
from drainer.sink.kafka.producer import library_batch_bytes

SECONDS: Final = 3.0
CHUNK: Final = 1000
HELD_MAX: Final = 50_000
_DEADLINE_S: Final = 120.0


def ceiling_per_s(address: str, topic: str, partitions: int, messages: Sequence[Message], producers: int) -> float:
    """Messages a second that `producers` processes get acknowledged by all replicas, idempotent, with the batches of
    the drainer's own producers; the messages are ready before the clock starts. Each has partitions of its own, as
    slots have. Nothing is encoded, no transaction is opened, and nothing else runs."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(producers)
    results: Any = context.Queue()
    pairs = [(message.key, message.value) for message in messages]
    started = [
        context.Process(
            target=_produce,
            args=(address, topic, [*range(number, partitions, producers)], pairs, barrier, results),
            daemon=True,
        )
        for number in range(producers)
    ]
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
            "batch.size": library_batch_bytes(0),
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": (1 << 31) - 1,
            "delivery.report.only.error": True,
            "log_level": 0,
        }
    )
    given = [{"key": key, "value": value} for key, value in pairs]
    chunks = [given[at : at + CHUNK] for at in range(0, len(given), CHUNK)]
    for partition in partitions:  # connected, and given its producer id
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
