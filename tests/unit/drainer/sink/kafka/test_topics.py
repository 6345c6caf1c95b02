"""What brokers' answers about topics are taken for, with clients that are made here."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import PartitionMetadata, TopicMetadata

from drainer.sink.errors import DestinationDown, DestinationRefused
from drainer.sink.kafka.producer import missing_replicas
from drainer.sink.kafka.topics.admin import Topics

PLACES = [("t", 0), ("t", 1), ("gone", 0)]


class Ends:
    """A consumer. `unknown`: partitions that the broker does not know, at each of the next questions; the last one
    stays."""

    def __init__(self, *unknown: set[tuple[str, int]]) -> None:
        self.unknown = list(unknown)
        self.asked: list[int] = []

    def poll(self, timeout: float) -> None:
        """Nothing to tell."""

    def offsets_for_times(self, asked: Sequence[TopicPartition], timeout: float) -> list[Any]:
        unknown = self.unknown.pop(0) if len(self.unknown) > 1 else self.unknown[0]
        self.asked.append(len(asked))
        if unknown.issuperset((one.topic, one.partition) for one in asked):
            raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE))
        error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return [
            SimpleNamespace(
                topic=one.topic,
                partition=one.partition,
                offset=7,
                error=error if (one.topic, one.partition) in unknown else None,
            )
            for one in asked
        ]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Topics:
    """Brokers list topic t, which has two partitions, and one whose partition lacks a replica in sync."""
    topics = Topics({"bootstrap.servers": "127.0.0.1:1"}, "127.0.0.1:1", 0.0, threading.Event())
    whole = SimpleNamespace(leader=1, isrs=[1, 2], replicas=[1, 2], error=None)
    alone = SimpleNamespace(leader=1, isrs=[1], replicas=[1, 2], error=None)
    partitions = {"t": {0: whole, 1: whole}, "lacking": {0: alone}}
    listed = SimpleNamespace(topics={name: SimpleNamespace(partitions=of) for name, of in partitions.items()})
    monkeypatch.setattr(
        topics, "_admin", SimpleNamespace(list_topics=lambda timeout: listed, poll=lambda timeout: None)
    )
    return topics


def answers(monkeypatch: pytest.MonkeyPatch, topics: Topics, ends: Ends) -> None:
    monkeypatch.setattr(topics, "_made", lambda *, committed: ends)
    monkeypatch.setattr(topics, "_of_ends", {})
    monkeypatch.setattr(topics, "_renew", lambda: None)


def test_ends_omit_partitions_that_no_longer_exist(monkeypatch: pytest.MonkeyPatch, made: Topics) -> None:
    answers(monkeypatch, made, Ends({("gone", 0)}))
    assert made.ends(PLACES, committed=False) == {("t", 0): 7, ("t", 1): 7}


def test_ends_ask_again_for_partition_unknown_to_one_broker(monkeypatch: pytest.MonkeyPatch, made: Topics) -> None:
    """A transaction that is open there would count as ended."""
    answers(monkeypatch, made, Ends({("t", 1), ("gone", 0)}))
    with pytest.raises(DestinationDown, match="asking where partitions end"):
        made.ends(PLACES, committed=False)
    made._retry_for_s = 60.0
    answers(monkeypatch, made, Ends({("t", 1), ("gone", 0)}, {("gone", 0)}))
    assert made.ends(PLACES, committed=False) == {("t", 0): 7, ("t", 1): 7}


def test_ends_name_partition_with_too_few_replicas_in_sync(monkeypatch: pytest.MonkeyPatch, made: Topics) -> None:
    """Whether it alone or all partitions of a question are refused."""
    answers(monkeypatch, made, Ends({("lacking", 0)}))
    for places in ([("t", 0), ("lacking", 0)], [("lacking", 0)]):
        text = r"partition 0 of topic lacking has 1 of 2 replicas in sync, .*broker 2"
        with pytest.raises(DestinationDown, match=text):
            made.ends(places, committed=False)


@pytest.mark.parametrize(("partitions", "asked"), [(0, []), (3, [3]), (1000, [256, 256, 256, 232])])
def test_ends_of_many_partitions_are_asked_in_batches(
    monkeypatch: pytest.MonkeyPatch, made: Topics, partitions: int, asked: list[int]
) -> None:
    """A driver asks for all of them twice when it starts."""
    ends = Ends(set())
    answers(monkeypatch, made, ends)
    places = [("t", partition) for partition in range(partitions)]
    assert made.settled(places, 10.0) == (dict.fromkeys(places, 7), {})
    assert ends.asked == asked * 2


class Deaf:
    """An admin client that gets no answer. `said`: what its library tells of brokers once it is polled."""

    def __init__(self, topics: Topics, *said: tuple[int, str]) -> None:
        self._topics = topics
        self._said = list(said)

    def list_topics(self, timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "Failed to get metadata"))

    def poll(self, timeout: float) -> None:
        while self._said:
            self._topics._note_error(KafkaError(*self._said.pop(0)))


DOWN = (KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
REFUSED = (KafkaError._TRANSPORT, "b:1/bootstrap: Connect to b:1 failed: Connection refused")


@pytest.mark.parametrize("said", [[REFUSED], [REFUSED, DOWN], [DOWN, REFUSED]])
def test_unreachable_brokers_are_reported_with_reason(
    monkeypatch: pytest.MonkeyPatch, made: Topics, said: list[tuple[int, str]]
) -> None:
    monkeypatch.setattr(made, "_admin", Deaf(made, *said))
    with pytest.raises(
        DestinationDown, match=r"127\.0\.0\.1:1: asking for topics: .*Connect to b:1 failed: Connection"
    ):
        made.counts()


@pytest.mark.parametrize("said", [[], [DOWN]])
def test_port_that_closes_connections_is_reported_as_no_kafka_broker(
    monkeypatch: pytest.MonkeyPatch, made: Topics, said: list[tuple[int, str]]
) -> None:
    """As one of etcd does, or one that wants TLS: the library has no word of it."""
    monkeypatch.setattr(made, "_admin", Deaf(made, *said))
    with pytest.raises(DestinationDown, match=r"no Kafka broker answers at 127\.0\.0\.1:1: .* TLS or a user"):
        made.counts()


def test_an_error_that_a_broker_answered_is_not_taken_for_brokers_that_are_away(
    monkeypatch: pytest.MonkeyPatch, made: Topics
) -> None:
    """Such as that of a broker that has just handed a partition over."""

    def refuse(timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))

    monkeypatch.setattr(made, "_admin", SimpleNamespace(list_topics=refuse, poll=lambda timeout: None))
    with pytest.raises(DestinationDown, match=r"(?i)asking for topics: .*not leader for partition$"):
        made.counts()


def test_authentication_failure_is_refused_without_retry(monkeypatch: pytest.MonkeyPatch, made: Topics) -> None:
    made._retry_for_s = 600.0
    wrong = (KafkaError._AUTHENTICATION, "b:1: Authentication failed: Invalid username or password")
    monkeypatch.setattr(made, "_admin", Deaf(made, wrong, DOWN))
    with pytest.raises(DestinationRefused, match=r"Invalid username or password.*: user, password or sasl-mechanism"):
        made.counts()


def test_reason_of_earlier_failure_is_not_reported_again(monkeypatch: pytest.MonkeyPatch, made: Topics) -> None:
    monkeypatch.setattr(made, "_renew", lambda: None)
    monkeypatch.setattr(made, "_admin", Deaf(made, REFUSED))
    for text in ("Connection refused", "no Kafka broker answers"):
        with pytest.raises(DestinationDown, match=text):
            made.counts()


# Words for partitions that cannot be written.


def partition(leader: int, replicas: list[int], in_sync: list[int], error: int | None = None) -> PartitionMetadata:
    made = PartitionMetadata()
    made.leader, made.replicas, made.isrs = leader, replicas, in_sync
    made.error = KafkaError(error) if error is not None else None
    return made


def topic(*partitions: PartitionMetadata) -> TopicMetadata:
    made = TopicMetadata()
    made.partitions = dict(enumerate(partitions))
    return made


def test_missing_replicas_are_named_with_brokers_error() -> None:
    found = {
        "a": topic(
            partition(1, [1, 2, 3], [3, 1, 2]),
            partition(-1, [2, 3], [2], KafkaError.LEADER_NOT_AVAILABLE),
            partition(1, [1, 2, 3], [1]),
        ),
        "other": topic(partition(-1, [1], [])),
    }
    assert missing_replicas(found, [("a", 2), ("a", 1), ("a", 0)]) == [
        "partition 1 of topic a has no leader (Broker: Leader not available)",
        "partition 2 of topic a has 1 of 3 replicas in sync, not that of broker 2, 3, and needs min.insync.replicas "
        "of them",
    ]


def test_missing_replicas_skips_topics_and_partitions_without_metadata() -> None:
    assert missing_replicas({"a": topic(partition(1, [1], [1]))}, [("a", 1), ("b", 0)]) == []
