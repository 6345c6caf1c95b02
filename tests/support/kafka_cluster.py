"""Two real Kafka brokers, of which the second may die: see tests/support/kafka.py."""

from __future__ import annotations

import contextlib
import shutil
import socket
import struct
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import ElectionType, KafkaError, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic

from demo.kafka.servers import new_cluster_id, properties_text
from tests.support.kafka import (
    ANSWER_S,
    DEADLINE_S,
    Broker,
    answered,
    formatted,
    properties_of,
    require_kafka,
)
from tests.support.servers import free_port, wait_until


@dataclass
class Cluster(Broker):
    """Two brokers: this one, number 1, which is the controller, too, and must stay; and `second`, number 2."""

    second: Broker

    def both(self) -> Cluster:
        """Starts the second where it is away; returns when every partition has all its replicas in sync."""
        if not self.second.server.alive:
            self.second.start()
        wait_until(self._whole, deadline_s=DEADLINE_S, what=f"all replicas in sync\n{self.second.server.tail()}")
        return self

    def _whole(self) -> bool:
        found = self.metadata()
        every = [one for topic in found.topics.values() for one in topic.partitions.values()]
        return sorted(found.brokers) == [1, 2] and all(len(one.isrs) == len(one.replicas) for one in every)

    def replicated(self, partitions: int = 1, **config: str) -> str:
        """A new topic with a replica on each; the second one is its preferred leader."""
        made = f"r-{uuid.uuid4().hex[:10]}"
        settings = {setting.replace("_", "."): value for setting, value in config.items()}
        new = NewTopic(made, num_partitions=partitions, replica_assignment=[[2, 1]] * partitions, config=settings)
        self.order(self.admin.create_topics, [new], done=KafkaError.TOPIC_ALREADY_EXISTS)
        wait_until(lambda: self.leaders(made) == [2] * partitions, what=f"topic {made} is shown")
        return made

    def alone(self, partitions: int = 1, **config: str) -> str:
        """A new topic that the second broker alone has."""
        return self.placed(*[[2]] * partitions, **config)

    def placed(self, *brokers: list[int], **config: str) -> str:
        """A new topic; of each partition the brokers that have it, the first of which leads."""
        made = f"a-{uuid.uuid4().hex[:10]}"
        settings = {setting.replace("_", "."): value for setting, value in config.items()}
        new = NewTopic(made, num_partitions=len(brokers), replica_assignment=list(brokers), config=settings)
        self.order(self.admin.create_topics, [new], done=KafkaError.TOPIC_ALREADY_EXISTS)
        wait_until(lambda: self.leaders(made) == [of[0] for of in brokers], what=f"topic {made} is shown")
        return made

    def leaders(self, topic: str) -> list[int]:
        """Of each partition the broker; -1: it has none. Nothing of a topic that is not shown yet."""
        found = self.metadata().topics
        partitions = found[topic].partitions if topic in found else {}
        return [partitions[number].leader for number in sorted(partitions)]

    def in_sync(self, topic: str) -> list[list[int]]:
        """Of each partition the brokers."""
        found = self.metadata().topics[topic].partitions
        return [sorted(found[number].isrs) for number in sorted(found)]

    def elect_preferred(self, topic: str) -> None:
        """Leaders become those that were wanted when the topic was made."""
        places = [TopicPartition(topic, number) for number in range(self.topics()[topic])]

        def elect() -> Mapping[TopicPartition, KafkaError | None]:
            asked = self.admin.elect_leaders(ElectionType.PREFERRED, places)  # it takes no timeouts
            found: Mapping[TopicPartition, KafkaError | None] = asked.result(2 * ANSWER_S)
            return found

        for place, error in answered(elect, f"leaders of {topic} are elected").items():
            assert error is None or error.code() == KafkaError.ELECTION_NOT_NEEDED, (place, error)

    def reassign(self, topic: str, *brokers: list[int]) -> None:
        """Moves partitions to these brokers, of which the first is to lead, as kafka-reassign-partitions does. Returns
        when the order is taken; `moved` says when it is done."""

        def order() -> None:
            answer = _answer(self.address, reassignment(topic, brokers))
            # Throttle time, error code.
            assert struct.unpack_from(">ih", answer) == (0, 0), answer

        wait_until(lambda: _went_well(order), deadline_s=DEADLINE_S, what=f"partitions of {topic} are ordered to move")

    def moved(self, topic: str, *brokers: list[int]) -> bool:
        found = self.metadata().topics[topic].partitions
        return [
            (found[number].replicas, found[number].isrs, found[number].leader) for number in range(len(brokers))
        ] == [(of, of, of[0]) for of in brokers]

    def abort_open(self, topic: str, partition: int) -> None:
        """Ends the first transaction that is open in a partition of the second broker, as kafka-transactions.sh abort
        does: it asks for the partition's producers, and writes the marker."""
        answer = _answer(self.second.address, describe_producers(topic, partition))
        # Throttle time, one topic and its name, one partition: number, no error, no text, producers.
        begin = 4 + 1 + 1 + len(topic) + 1 + 4 + 2 + 1
        producers = [struct.unpack_from(">qiiqiqB", answer, begin + 1 + 37 * n) for n in range(answer[begin] - 1)]
        _, id_, epoch, coordinator = min((of[5], of[0], of[1], of[4]) for of in producers if of[5] >= 0)
        marker = abort_marker(topic, partition, id_, epoch, max(coordinator, 0))
        answer = _answer(self.second.address, marker)
        # One marker and its producer, one topic and its name, one partition: number, error.
        assert struct.unpack_from(">h", answer, 1 + 8 + 1 + 1 + len(topic) + 1 + 4) == (0,), answer

    def grow_on(self, topic: str, *brokers: list[int]) -> None:
        """More partitions, of which these brokers have each."""
        partitions = self.topics()[topic] + len(brokers)
        given = [NewPartitions(topic, partitions, replica_assignment=list(brokers))]
        self.order(self.admin.create_partitions, given, done=KafkaError.INVALID_PARTITIONS)
        wait_until(lambda: self.topics().get(topic) == partitions, what=f"topic {topic} has {partitions} partitions")


def reassignment(topic: str, brokers: Sequence[Sequence[int]]) -> bytes:
    """An AlterPartitionReassignments request, version 0, which the client library does not have: every length is one
    more than it is, and every structure ends with its number of tags."""
    partitions = b"".join(
        struct.pack(f">iB{len(of)}iB", number, 1 + len(of), *of, 0) for number, of in enumerate(brokers)
    )
    name = topic.encode()
    body = struct.pack(">iBB", 30_000, 1 + 1, 1 + len(name)) + name
    return _header(45, 0) + body + struct.pack(">B", 1 + len(brokers)) + partitions + b"\0\0"


def _header(api: int, version: int) -> bytes:
    """Of a request: correlation id 1, no client id, no tags."""
    return struct.pack(">hhihB", api, version, 1, -1, 0)


def _one_partition(topic: str, partition: int) -> bytes:
    """An array of one topic with one partition."""
    return struct.pack(">BB", 2, 1 + len(topic)) + topic.encode() + struct.pack(">BiB", 2, partition, 0)


def describe_producers(topic: str, partition: int) -> bytes:
    """A DescribeProducers request, version 0."""
    return _header(61, 0) + _one_partition(topic, partition) + b"\0"


def abort_marker(topic: str, partition: int, producer: int, epoch: int, coordinator: int) -> bytes:
    """A WriteTxnMarkers request, version 1, of one marker that aborts."""
    begin = struct.pack(">Bqh?", 2, producer, epoch, False)
    return _header(27, 1) + begin + _one_partition(topic, partition) + struct.pack(">iBB", coordinator, 0, 0)


def _answer(address: str, request: bytes) -> bytes:
    """The body of a broker's answer."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=ANSWER_S) as line:
        line.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _exactly(line, 4))
        answer = _exactly(line, size)
    assert struct.unpack_from(">iB", answer) == (1, 0), answer  # correlation id, no tags
    return answer[5:]


def _exactly(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = line.recv(size - len(found))
        if not more:
            raise ConnectionError("the broker has closed the connection")
        found += more
    return found


def _went_well(order: Callable[[], None]) -> bool:
    try:
        order()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Leaders move when a broker is gone for three seconds, and back when they are told to."""
    require_kafka()
    directory = Path(tempfile.mkdtemp(prefix="kafka-"))
    first, controller, second = free_port(), free_port(), free_port()
    common = {
        "offsets.topic.replication.factor": "2",
        "transaction.state.log.replication.factor": "2",
        "auto.leader.rebalance.enable": "false",
    }
    follower = {
        "process.roles": "broker",
        "node.id": "2",
        "listeners": f"PLAINTEXT://127.0.0.1:{second}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{second}",
        "log.dirs": str(directory / "data-2"),
    }
    settings = properties_of(directory, first, controller, {}) + properties_text(common)
    cluster_id = new_cluster_id()
    one = formatted(directory, "server", settings, first, cluster_id, "--standalone")
    two = formatted(directory, "server-2", settings + properties_text(follower), second, cluster_id)
    cluster = Cluster(one.server, one.address, directory, two)
    try:
        cluster.start()
        yield cluster.both()
    finally:
        two.kill()
        cluster.kill()
        shutil.rmtree(directory, ignore_errors=True)
