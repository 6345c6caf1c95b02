"""A recording as the messages of one partition, without Kafka, and a consumer's core that applies them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drainer.changes import ChangeSegment
from drainer.dispatch.ddl_messages import ddl_messages
from drainer.dispatch.row_events import RowEvents
from drainer.dispatch.rules import Router
from drainer.kafka_consumer.__main__ import Destination
from drainer.kafka_consumer.core import ConsumerCore
from drainer.kafka_reading.records import KafkaPartition
from drainer.protocol.encoder import Encoder, Message
from drainer.protocol.registry import ProtocolOptions, make_decoder, make_encoder
from drainer.schema.job_policy import Policy
from drainer.schema.steps import Ddl
from tests.support.capture import CaptureSet
from tests.support.encoded import encoded_rows, framed_rows
from tests.support.file_case import record

PLACE = KafkaPartition("topic", 0)
Pairs = Sequence[tuple[bytes | None, bytes | None]]


class _Messages:
    """A destination of changes that keeps what would go to Kafka."""

    stored_generated = False

    def __init__(self, encoder: Encoder) -> None:
        self.pairs: list[tuple[bytes | None, bytes | None]] = []
        self.commit_ts = 0
        self._encoder = encoder
        self._done: set[int] = set()
        self._known: set[tuple[object, ...]] = set()

    def open(self, identity: object, begin_ts: int) -> None:
        self.commit_ts = begin_ts

    def job_done(self, job_id: int) -> bool:
        return job_id in self._done

    def apply(self, segment: ChangeSegment, version: int) -> None:
        found: list[tuple[int, Message]] = []
        for changes in RowEvents(raw=False).of(segment):
            if changes.table.key not in self._known:
                self._known.add(changes.table.key)
                self._add(self._encoder.bootstrap(changes.table, int(changes.commit_ts[0])))
            rows = encoded_rows(self._encoder.table(changes.table), changes)
            orders = changes.order.tolist()
            found += [(at, next(iter(framed_rows(self._encoder, [row])))) for at, row in zip(orders, rows, strict=True)]
        self._add([message for _, message in sorted(found, key=lambda one: one[0])])
        self.advance(segment.until_ts, version)

    def ddl(self, step: Ddl, *, may_exist: bool) -> None:
        self._done.add(step.job.id)
        self.commit_ts = step.commit_ts
        for one in ddl_messages(step, Router([], "topic", protocol=self._encoder.name)):
            self._add(self._encoder.ddl(one.ddl))

    def advance(self, until_ts: int, version: int) -> None:
        self.commit_ts = until_ts
        self._add(self._encoder.resolved(until_ts))

    def close(self, *, clean: bool) -> None:
        pass

    def _add(self, messages: Sequence[Message]) -> None:
        self.pairs += [(message.key, message.value) for message in messages]


def messages_of(capture: CaptureSet, options: ProtocolOptions, jobs: Path, policy: Policy) -> Pairs:
    """(key, value) of every message. `jobs`: a file to be made for the job history."""
    found = _Messages(make_encoder(options))
    to: Any = found
    record(capture, to, jobs, policy)
    return found.pairs


def consume(pairs: Pairs, options: ProtocolOptions, destination: Destination) -> None:
    """From where the destination stands."""
    try:
        resume = destination.open()
        core = ConsumerCore([PLACE], resume)
        begin = resume.reads[PLACE].offset if resume.reads else 0
        decoder = make_decoder(options)
        for offset, (key, value) in enumerate(pairs):
            events = decoder.decode(key, value)  # also those before: schemas of Simple stand there
            if offset >= begin:
                core.add(PLACE, offset, events)
                while (part := core.next()) is not None:
                    destination.apply(part)
    finally:
        destination.close()
