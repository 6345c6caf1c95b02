"""Words for partitions that cannot be written."""

from __future__ import annotations

from confluent_kafka import KafkaError
from confluent_kafka.admin import PartitionMetadata, TopicMetadata

from drainer.sink.kafka.producer import missing_replicas


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
