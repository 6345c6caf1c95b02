"""How a slot's writer begins with a new producer, on brokers that are made here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from drainer.changes.change_segment import ChangeSegment
from drainer.protocol.encoder import Message
from drainer.sink.base import Identity, Intent
from drainer.sink.errors import Fenced
from drainer.sink.kafka import slot_writer
from drainer.sink.kafka.config import KafkaConfig
from drainer.sink.kafka.publication import Outgoing
from drainer.sink.kafka.reader import Record
from drainer.sink.kafka.slot_writer import KafkaSlotWriter
from drainer.sink.kafka.transactions.control_records import CLAIM_KEY, Place, claim_value
from drainer.sink.retry import Patience

CLAIM_ID = "ours"
CONFIG = KafkaConfig({}, "k1:9092", "control")
INTENT = Intent(10, 60, 2, 100, 1, "")
NO_CHANGES = ChangeSegment(10, 60, (), 0, 0)


class Sending:
    """A producer; `log` has what every one did."""

    tells_flushes = False

    def __init__(self, log: list[tuple[str, Any]]) -> None:
        self.name = "control-0"
        self._log = log

    def init(self, topic: str, patience: Patience) -> None: ...

    def begin(self) -> None:
        self._log.append(("begin", None))

    def send(self, topic: str, partition: int, messages: Iterable[Message], patience: Patience) -> int:
        self._log.append(("send", (topic, partition)))
        return len(list(messages))

    def flush(self, patience: Patience) -> None:
        if self.tells_flushes:
            self._log.append(("flush", None))

    def commit(self, patience: Patience) -> None:
        self._log.append(("commit", None))

    def abort(self, patience: Patience) -> None:
        self._log.append(("abort", None))

    def drop(self) -> None: ...


class Brokers:
    """Takes the place of Topics: partitions in `open_at` have an open transaction the first time they are asked for."""

    open_at: dict[Place, int]
    made: list[Brokers]

    def __init__(self, *_: object) -> None:
        self.closed = False
        Brokers.made.append(self)

    def settled(self, places: Sequence[Place], grace_s: float) -> tuple[dict[Place, int], dict[Place, int]]:
        assert not self.closed
        found = {place: Brokers.open_at.pop(place) for place in places if place in Brokers.open_at}
        return dict.fromkeys(places, 50), found

    def close(self) -> None:
        self.closed = True


class Unchanged:
    """Takes the place of Reader: nothing was written since the driver began the range."""

    def __init__(self, *_: object) -> None: ...

    def end(self, partition: int, patience: Patience) -> int:
        return 7

    def first(self, partition: int, begin: int, patience: Patience) -> list[Record]:
        return [Record(begin, CLAIM_KEY, claim_value(Identity(7, "main", "d"), CLAIM_ID))]

    def close(self) -> None: ...


class Rows:
    """A publication of one topic: slot n writes partition n."""

    batch_bytes = 0

    def slot_places(self, slots: int) -> dict[Place, int]:
        return {("t", slot): slot for slot in range(slots)}

    def rows_of_slot(self, *_: object) -> Iterator[Any]:
        return iter([Outgoing("t", 0, [Message(b"k", b"v", 1, 0)])])


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, Any]]]:
    done: list[tuple[str, Any]] = []
    Brokers.open_at, Brokers.made = {}, []
    monkeypatch.setattr(slot_writer, "Topics", Brokers)
    monkeypatch.setattr(slot_writer, "Reader", Unchanged)
    monkeypatch.setattr(slot_writer, "new_producer", lambda *_: Sending(done))
    slot_writer.forget_producers()
    yield done
    slot_writer.forget_producers()


def writer(epoch: int = 3) -> KafkaSlotWriter:
    publication: Any = Rows()
    return KafkaSlotWriter(CONFIG, publication, epoch, INTENT, "x", (7, 7, 7), claim_id=CLAIM_ID)


def test_a_topic_that_was_created_again_and_ends_alike_fences_the_writer_off(log: list[tuple[str, Any]]) -> None:
    with pytest.raises(Fenced, match="the control topic was created again"):
        replace(writer(), claim_id="former").write(0, NO_CHANGES)
    assert log == []


def test_without_transactions_rows_are_acknowledged_before_their_mark_is_sent(
    log: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sending, "tells_flushes", True)
    replace(writer(), config=replace(CONFIG, exactly_once=False)).write(0, NO_CHANGES)
    assert [what for what in log if what[0] in ("send", "flush")] == [
        ("send", ("t", 0)), ("flush", None), ("send", ("control", 1)), ("flush", None),
    ]  # fmt: skip


def test_an_attempt_that_brokers_left_open_is_aborted_before_the_slot_is_written(log: list[tuple[str, Any]]) -> None:
    """Of the slot's own partitions alone, and an operator is told which."""
    Brokers.open_at = {("t", 0): 12, ("t", 1): 25}
    with capture_logs() as lines:
        writer().write(0, NO_CHANGES)
    begin, sent, abort, *rest = log
    assert (begin[0], sent, abort[0]) == ("begin", ("send", ("t", 0)), "abort")
    assert rest == [("begin", None), ("send", ("t", 0)), ("send", ("control", 1)), ("commit", None)]
    told = [line for line in lines if line["log_level"] == "warning"]
    assert [(line["slot"], line["transactional_id"], line["open_at"]) for line in told] == [
        (0, "control-0", ["t-0 offset 12"])
    ]


def test_all_slots_of_a_process_ask_by_the_same_clients(log: list[tuple[str, Any]]) -> None:
    """Each client has threads and connections of its own, which last until the garbage collector finds them."""
    for slot in range(2):
        writer().write(slot, NO_CHANGES)
    writer(epoch=4).write(0, NO_CHANGES)
    assert len(Brokers.made) == 1
    slot_writer.forget_producers()
    assert Brokers.made[0].closed
    writer().write(0, NO_CHANGES)
    assert len(Brokers.made) == 2
