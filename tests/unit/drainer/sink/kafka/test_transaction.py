"""What is noted of a transaction, with a producer that is made here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from drainer.protocol.encoder import Message
from drainer.sink.document_position import Document, DocumentPositionStore
from drainer.sink.kafka.transactions.control_records import Place, slots_of, wrote_of
from drainer.sink.kafka.transactions.driver_transaction import Transaction
from drainer.sink.position import Stored
from drainer.sink.retry import Patience

ROW = Message(b"k", b"v", 1, 0)


class Sending:
    def __init__(self) -> None:
        self.flushed = 0

    def send(self, topic: str, partition: int, messages: Iterable[Message], patience: Patience) -> int:
        return len(list(messages))

    def flush(self, patience: Patience) -> None:
        self.flushed += 1


def made(producer: Any) -> Transaction:
    """Each partition ends ten behind the one before, and one further each time it is asked."""
    asked: list[int] = []

    def ends(topic: str, partition: int) -> int:
        asked.append(partition)
        return 10 * partition + len(asked)

    store = DocumentPositionStore(Document(Stored(100, 5, 0, "n"), notes={"topics": {"t": 3}}), "x")
    return Transaction(store, producer, Patience("x", 0), ends)


def test_it_is_noted_where_partitions_ended_before_the_first_message() -> None:
    transaction = made(Sending())
    transaction.send("t", 1, [ROW])
    transaction.send("t", 1, [ROW, ROW])
    transaction.send_last("t", 2, [ROW])
    transaction.send_the_last()
    transaction.note_places({}, dict.fromkeys)  # type: ignore[arg-type]
    assert wrote_of(transaction.store.document) == {("t", 1): 11, ("t", 2): 22}
    assert transaction.store.document.notes["topics"] == {"t": 3}


def test_a_partition_that_gets_no_message_is_not_noted() -> None:
    """Protocols without events for it have none to send: what hangs there later is another transaction's, and would be
    taken for this one's."""
    transaction = made(Sending())
    assert transaction.send("t", 0, []) == 0
    transaction.send("t", 1, [])
    transaction.send("t", 1, [ROW])
    transaction.note_places({}, dict.fromkeys)  # type: ignore[arg-type]
    assert wrote_of(transaction.store.document) == {("t", 1): 13}


def test_a_range_begins_behind_what_its_intent_sends() -> None:
    producer = Sending()
    transaction = made(producer)
    transaction.slots = {("t", 0): 1, ("t", 1): 0}
    transaction.send("t", 0, [ROW])
    transaction.note_places({}, lambda places: dict.fromkeys(places, 7 if producer.flushed else 0))
    assert slots_of(transaction.store.document) == {1: {("t", 0): 7}, 0: {("t", 1): 7}}
    transaction.note_no_places()
    assert (wrote_of(transaction.store.document), slots_of(transaction.store.document)) == (None, {})


def test_only_where_its_intent_has_changed_the_ends_of_a_range_s_partitions_is_it_asked_for_them() -> None:
    """Or where they are not known: of a topic that was met just now."""
    producer = Sending()
    transaction = made(producer)
    transaction.slots = {("t", 0): 1, ("t", 1): 0, ("new", 0): 0}
    transaction.send("t", 0, [ROW])
    asked: list[Place] = []

    def ends(places: Sequence[Place]) -> dict[Place, int]:
        assert producer.flushed
        asked.extend(places)
        return dict.fromkeys(places, 7)

    transaction.note_places({("t", 0): 5, ("t", 1): 6, ("other", 0): 9}, ends)
    assert sorted(asked) == [("new", 0), ("t", 0)]
    assert slots_of(transaction.store.document) == {1: {("t", 0): 7}, 0: {("t", 1): 6, ("new", 0): 7}}


def test_where_an_intent_writes_nothing_no_end_is_asked_for_again() -> None:
    producer = Sending()
    transaction = made(producer)
    transaction.slots = {("t", 0): 1}

    def ends(places: Sequence[Place]) -> dict[Place, int]:
        raise AssertionError(f"asked for {places}")

    transaction.note_places({("t", 0): 5}, ends)
    assert slots_of(transaction.store.document) == {1: {("t", 0): 5}}
    assert not producer.flushed
