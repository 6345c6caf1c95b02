"""Where a partition ends, told by a consumer whose answers are made here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from drainer.sink.errors import DestinationDown
from drainer.sink.kafka.reader import Reader, open_transactions_text
from drainer.sink.retry import RetryDeadline


class Ends:
    """A consumer that is asked for ends alone; its answers, one after another."""

    def __init__(self, answers: Sequence[int]) -> None:
        self.answers = list(answers)

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        return 0, self.answers.pop(0)

    def close(self) -> None:
        pass


def reader(
    monkeypatch: pytest.MonkeyPatch, *, written: Sequence[int], stable: Sequence[int], made: type[Ends] = Ends
) -> Reader:
    def consumer(conf: Mapping[str, str]) -> Ends:
        return made(stable if conf["isolation.level"] == "read_committed" else written)

    monkeypatch.setattr("binlog.topic.kafka.Consumer", consumer)
    return Reader({"bootstrap.servers": "k1:9092"}, "control")


def test_settled_end_is_behind_commit_marker_written_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker acknowledges a commit before its marker is there. Where the end without it was told, an executor would
    take the marker for something that another drainer wrote, and read the whole control topic for every slot."""
    found = reader(monkeypatch, written=[6, 7], stable=[7, 7])
    assert found.settled_end(0, RetryDeadline("ends", 0.0)) == 7


def test_settled_end_waits_for_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reader(monkeypatch, written=[6, 7], stable=[5, 7])
    assert found.settled_end(0, RetryDeadline("ends", 60.0)) == 7


def test_open_transaction_that_nobody_ends_named_with_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reader(monkeypatch, written=[6], stable=[5])
    command = "kafka-transactions.sh --bootstrap-server k1:9092 abort --topic control --partition 0 --start-offset 5"
    with pytest.raises(DestinationDown, match=f"a transaction is open at offset 5 of control-0.*{command}"):
        found.settled_end(0, RetryDeadline("ends", 0.0))


def test_leader_is_known_before_beginning_of_partition_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the library asks for it only half a second later."""
    asked: list[str] = []

    class Beginning(Ends):
        def list_topics(self, topic: str, timeout: float) -> None:
            asked.append(topic)
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))  # what it cannot answer is no failure

        def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
            asked.extend(str(place.offset) for place in places)

        def poll(self, timeout: float) -> object:
            said = {"topic": "control", "partition": 0, "error": None, "offset": 8, "key": b"k", "value": b"v"}
            return SimpleNamespace(**{name: lambda value=value: value for name, value in said.items()})

        def consume(self, count: int, timeout: float) -> list[object]:
            return []

    found = reader(monkeypatch, written=[9, 9], stable=[], made=Beginning)
    for begin in (0, 5):
        assert [one.offset for one in found.everything(0, RetryDeadline("read", 0.0), begin=begin)] == [8]
    assert asked == ["control", str(OFFSET_BEGINNING), "5"]


# What an operator is told of open transactions.


def test_first_open_transaction_named_with_commands() -> None:
    text = open_transactions_text({("shop", 3): 17, ("shop", 4): 2, ("zoo", 0): 5}, "k1:9092")
    assert text.startswith("a transaction is open at offset 17 of shop-3, and others in 2 more partitions. ")
    assert "kafka-transactions.sh --bootstrap-server k1:9092 describe-producers --topic shop --partition 3" in text
    assert "kafka-transactions.sh --bootstrap-server k1:9092 abort --topic shop --partition 3 --start-offset 17" in text
