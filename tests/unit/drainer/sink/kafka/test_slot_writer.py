"""How a slot's writer begins with a new producer, on brokers that are made here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from binlog.topic.kafka import KafkaPartition, Record

from drainer.changes import ChangeSegment
from drainer.protocol.encoder import Message
from drainer.protocol.errors import EncodeError, SchemaIdMissing
from drainer.sink.base import Identity, Intent
from drainer.sink.errors import DestinationDown, Fenced
from drainer.sink.kafka import slot_writer
from drainer.sink.kafka.producer import ProducerLost
from drainer.sink.kafka.publication import Outgoing
from drainer.sink.kafka.settings.section import KafkaSection
from drainer.sink.kafka.slot_writer import KafkaSlotWriter
from drainer.sink.kafka.transactions.control_records import claim_key, claim_value
from drainer.sink.retry import RetryDeadline
from tests.support.kept_producers import forget_producers

CLAIM_ID = "ours"
CONFIG = KafkaSection(addresses=("k1:9092",), control_topic="control")
INTENT = Intent(10, 60, 2, 100, 1, "")
NO_CHANGES = ChangeSegment(10, 60, (), 0, 0)


class Sending:
    """A producer; `log` has what every one did."""

    tells_flushes = False
    lost = False  # every producer loses its transaction

    def __init__(self, log: list[tuple[str, Any]]) -> None:
        self.name = "control-0"
        self._log = log

    def init(self, topic: str, deadline: RetryDeadline) -> None: ...

    def begin(self) -> None:
        self._log.append(("begin", None))

    def send(self, topic: str, partition: int, messages: Iterable[Message], deadline: RetryDeadline) -> int:
        self._log.append(("send", (topic, partition)))
        return len(list(messages))

    def flush(self, deadline: RetryDeadline) -> None:
        if Sending.lost:
            raise ProducerLost("refused")
        if self.tells_flushes:
            self._log.append(("flush", None))

    def commit(self, deadline: RetryDeadline) -> None:
        self._log.append(("commit", None))

    def abort(self, deadline: RetryDeadline) -> None:
        self._log.append(("abort", None))

    def drop(self) -> None: ...


class Unchanged:
    """Takes the place of Reader: nothing was written since the driver began the range."""

    made: list[Unchanged]

    def __init__(self, *_: object) -> None:
        self.closed = False
        Unchanged.made.append(self)

    def end(self, partition: int, deadline: RetryDeadline) -> int:
        assert not self.closed
        return 7

    def everything(self, partition: int, deadline: RetryDeadline, *, begin: int, records_max: int) -> list[Record]:
        return [
            Record(
                KafkaPartition("control", 0),
                begin,
                claim_key((7, "main")),
                claim_value(Identity(7, "main", "d"), CLAIM_ID),
            )
        ]

    def close(self) -> None:
        self.closed = True


class Rows:
    """A publication of one topic. `refused`: raised behind the first row."""

    batch_bytes = 0

    def __init__(self, refused: Exception | None = None) -> None:
        self._refused = refused

    def rows_of_slot(self, *_: object) -> Iterator[Any]:
        yield Outgoing("t", 0, [Message(b"k", b"v", 1, 0)])
        if self._refused:
            raise self._refused

    def tables_in(self, segment: ChangeSegment) -> list[Any]:
        return []

    def required_schemas(self, tables: list[Any]) -> list[Any]:
        return []


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, Any]]]:
    done: list[tuple[str, Any]] = []
    Unchanged.made, Sending.lost = [], False
    monkeypatch.setattr(slot_writer, "Reader", Unchanged)
    monkeypatch.setattr(slot_writer, "new_producer", lambda *_: Sending(done))
    forget_producers()
    yield done
    forget_producers()


def test_a_slot_gives_up_after_the_time_that_it_was_given(log: list[tuple[str, Any]]) -> None:
    """A later attempt writes the slot with a new producer."""
    Sending.lost = True
    with pytest.raises(DestinationDown, match=r"slot 0: gave up after 0 s: refused"):
        writer().write(0, NO_CHANGES, 0.01)
    Sending.lost = False
    assert writer().write(0, NO_CHANGES, 0.01).chunks == 1
    assert log[-1][0] == "commit"


def test_slot_whose_rows_are_refused_behind_sent_ones_leaves_no_open_transaction(log: list[tuple[str, Any]]) -> None:
    """It would hold up readers until transaction-timeout is over."""
    with pytest.raises(EncodeError, match="no such value"):
        writer(refused=EncodeError("no such value")).write(0, NO_CHANGES)
    ended = [("begin", None), ("send", ("t", 0)), ("abort", None)]
    assert log == ended
    assert writer(refused=SchemaIdMissing("t")).write(0, NO_CHANGES).chunks == 0
    assert log == ended * 2


def writer(epoch: int = 3, refused: Exception | None = None) -> KafkaSlotWriter:
    publication: Any = Rows(refused)
    return KafkaSlotWriter(CONFIG, publication, epoch, INTENT, "x", (7, 7, 7), claim_id=CLAIM_ID)


def test_slot_writer_is_fenced_by_recreated_topic_with_equal_end(log: list[tuple[str, Any]]) -> None:
    with pytest.raises(Fenced, match="the control topic was created again"):
        replace(writer(), claim_id="former").write(0, NO_CHANGES)
    assert log == []


def test_mark_without_transactions_is_sent_after_rows_are_acknowledged(
    log: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sending, "tells_flushes", True)
    replace(writer(), config=CONFIG.model_copy(update={"exactly_once": False})).write(0, NO_CHANGES)
    assert [what for what in log if what[0] in ("send", "flush")] == [
        ("send", ("t", 0)), ("flush", None), ("send", ("control", 1)), ("flush", None),
    ]  # fmt: skip


def test_all_slots_of_a_process_share_one_reader(log: list[tuple[str, Any]]) -> None:
    """Each reader has threads and connections of its own, which last until the garbage collector finds them."""
    for slot in range(2):
        writer().write(slot, NO_CHANGES)
    writer(epoch=4).write(0, NO_CHANGES)
    assert len(Unchanged.made) == 1
    forget_producers()
    assert Unchanged.made[0].closed
    writer().write(0, NO_CHANGES)
    assert len(Unchanged.made) == 2
