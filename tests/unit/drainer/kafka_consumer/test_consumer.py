"""The library's consumer over records in memory: what is given before an error, what is held, where it goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from typing import Any

import pytest

from drainer.batch.work import Kind
from drainer.kafka_consumer.consumer import Consumer, resume_of
from drainer.kafka_consumer.core import ConsumeError, Resume
from drainer.kafka_reading.records import KafkaPartition, ReadError, ReadStopped, Record
from drainer.protocol.encoder import Message
from drainer.protocol.event import Event, ResolvedEvent, RowEvent
from drainer.protocol.registry import ProtocolOptions, make_encoder
from tests.support.encoded import encoded_rows, framed_rows
from tests.support.row_changes import make_changes
from tests.unit.drainer.kafka_check.test_command import ENCODER, TABLE, rows

P0, P1 = KafkaPartition("topic", 0), KafkaPartition("topic", 1)
BAD = Message(b"no key", b"no value", 0, 0)


class Memory:
    """As TopicReader: gives `at_once` records of one partition after another, in turn."""

    def __init__(self, partitions: Mapping[KafkaPartition, Iterable[Message]], at_once: int = 100) -> None:
        self._records = {
            one: [Record(one, offset, message.key, message.value) for offset, message in enumerate(messages)]
            for one, messages in partitions.items()
        }
        self._at_once = at_once
        self._at: dict[KafkaPartition, int] = {}
        self._held: set[KafkaPartition] = set()
        self.known: set[KafkaPartition] = set()
        self.partitions = {"topic": len(partitions)}
        self.closed = 0

    def topic_partitions(self) -> list[KafkaPartition]:
        return list(self._records)

    def begin(self, offsets: Mapping[KafkaPartition, int | None]) -> None:
        self._at = {one: offset or 0 for one, offset in offsets.items()}
        self.known, self._held = set(offsets), set()

    def ends(self, of: KafkaPartition) -> tuple[int, int]:
        return 0, len(self._records[of])

    def poll(self, _: float) -> list[Record]:
        found: list[Record] = []
        for one in self.known - self._held:
            at = self._at[one]
            found += self._records[one][at : at + self._at_once]
            self._at[one] = at + len(self._records[one][at : at + self._at_once])
        return found

    def at_end(self, held: Set[KafkaPartition]) -> bool:
        return all(self._at[one] >= len(self._records[one]) for one in self.known - held)

    def hold(self, those: Iterable[KafkaPartition]) -> None:
        self._held |= set(those)

    def release(self, those: Iterable[KafkaPartition]) -> None:
        self._held -= set(those)

    def added(self) -> list[KafkaPartition]:
        return []

    def close(self) -> None:
        self.closed += 1


class OfMemory(Consumer):
    def __init__(self, memory: Any, position: str = "", *, uri: str = "", **options: Any) -> None:
        super().__init__(uri or "kafka://unused/topic?protocol=open-protocol", position, once=True, **options)
        self._memory = memory

    def _open_reader(self, is_stopped: Callable[[], bool]) -> Any:
        return self._memory(is_stopped) if callable(self._memory) else self._memory


def shown(events: Iterable[Event]) -> list[tuple[str, int]]:
    found = []
    for event in events:
        assert isinstance(event, RowEvent | ResolvedEvent)
        found.append(("row" if isinstance(event, RowEvent) else "resolved", event.commit_ts))
    return found


def resolved(commit_ts: int) -> list[Message]:
    return list(ENCODER.resolved(commit_ts))


def test_events_before_refused_message_are_given_before_error() -> None:
    memory = Memory({P0: [*rows((1, 4)), *resolved(5), *rows((2, 8)), *resolved(9), BAD]})
    consumer = OfMemory(memory)
    given: list[tuple[str, int]] = []
    with pytest.raises(ConsumeError, match=r"topic\[0\] offset 4: "):
        for event in consumer:
            given += shown([event])
    assert given == [("row", 4), ("resolved", 5), ("row", 8), ("resolved", 9)]
    assert memory.closed == 1
    assert resume_of(consumer.position).applied_ts == 9


@pytest.mark.parametrize("rows_waiting_max", [10, 60, 1000])
def test_partition_that_was_held_is_read_when_others_wait_for_it(rows_waiting_max: int) -> None:
    """One is ahead, is held, and is behind when the other one has overtaken it in one read."""

    def many(begin: int, count: int) -> list[Message]:
        return [one for ts in range(begin, begin + count) for one in (*rows((ts, ts)), *resolved(ts))]

    first = [*many(100, 200), *resolved(2000)]
    second = [*(resolved(60) * 160), *many(400, 39), *resolved(2000)]
    consumer = OfMemory(Memory({P0: first, P1: second}, at_once=80), rows_waiting_max=rows_waiting_max)
    assert sum(isinstance(event, RowEvent) for event in consumer) == 239


def test_from_end_is_forgotten_after_the_first_part() -> None:
    """Also for a second iteration, which would otherwise leave out what came between."""
    messages = {P0: [*rows((1, 4)), *resolved(5)]}
    consumer = OfMemory(Memory(messages), from_end=True)
    assert consumer.position == ""
    assert shown(consumer) == []
    begun = consumer.position
    messages[P0] += [*rows((2, 6)), *resolved(7)]
    consumer._memory = Memory(messages)
    assert shown(consumer) == [("row", 6), ("resolved", 7)]
    assert shown(OfMemory(Memory(messages), begun, from_end=True)) == [("row", 6), ("resolved", 7)]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[" * 100_000,
        '{"applied_ts": 1e999, "reads": [], "ddls": []}',
        '{"applied_ts": 1, "reads": [["t", 0, "x", 1]], "ddls": []}',
        '{"applied_ts": 1, "reads": [["t", 0, null, 1]], "ddls": []}',
        '{"applied_ts": 1, "reads": [["t", 0]], "ddls": []}',
        '{"applied_ts": 1, "reads": [["t", 0, 1, 1, 1, 1]], "ddls": []}',
        '{"applied_ts": 1, "reads": [], "ddls": [["a", 1, "q", 0]]}',
    ],
)
def test_damaged_position_is_refused(text: str) -> None:
    with pytest.raises(ConsumeError, match="the stored position is damaged"):
        OfMemory(Memory({}), text)


def simple(kind: Kind, key: int, commit_ts: int) -> list[Message]:
    encoder = make_encoder(ProtocolOptions("simple"))
    images: dict[str, Any] = {"new": [[key, 0]]} if kind is Kind.INSERT else {"old": [[key, 0]]}
    return list(
        framed_rows(
            encoder, encoded_rows(encoder.table(TABLE), make_changes(TABLE, kind, commit_ts=commit_ts, **images))
        )
    )


def test_rows_of_simple_wait_for_the_schema_after_them() -> None:
    """A start in the middle of a topic comes behind the schema's first message."""
    encoder, uri = make_encoder(ProtocolOptions("simple")), "kafka://unused/topic?protocol=simple"
    waiting = [*simple(Kind.INSERT, 1, 4), *encoder.resolved(5), *simple(Kind.INSERT, 2, 6), *encoder.resolved(7)]
    later = [*encoder.bootstrap(TABLE, 8), *simple(Kind.DELETE, 1, 9), *encoder.resolved(10)]
    for at_once in (1, 100):
        memory = Memory({P0: [*waiting, *later]}, at_once)
        assert shown_rows(OfMemory(memory, uri=uri)) == [(4, 1), (6, 2), (9, 1)]
    with pytest.raises(ConsumeError, match=r"topic\[0\] offset 0: .* has schema version"):
        list(OfMemory(Memory({P0: waiting}), uri=uri))
    consumer = OfMemory(Memory({P0: waiting}), uri=uri)
    with suppress(ConsumeError):
        list(consumer)
    assert consumer.resume == Resume()


def shown_rows(events: Iterable[Event]) -> list[tuple[int, object]]:
    found = (event for event in events if isinstance(event, RowEvent))
    return [(event.commit_ts, (event.new or event.old or {})["id"].value) for event in found]


def test_canceled_iteration_ends_though_brokers_do_not_answer() -> None:
    asked, stopped = threading.Event(), threading.Event()

    def unreachable(is_stopped: Callable[[], bool]) -> None:
        asked.set()
        while not is_stopped():
            if stopped.wait(0.01):
                raise ReadError("never stopped")
        raise ReadStopped("stopped")

    async def canceled() -> None:
        waiting = asyncio.ensure_future(anext(aiter(OfMemory(unreachable))))
        await asyncio.to_thread(asked.wait)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    timer = threading.Timer(60, stopped.set)
    timer.start()
    try:
        asyncio.run(canceled())
        assert not stopped.is_set()
    finally:
        timer.cancel()
