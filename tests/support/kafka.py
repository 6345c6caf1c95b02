"""A real Kafka broker (KRaft, one node) for tests, and a reader that reads a topic to its end.

A broker takes seconds to start, so tests of one process share it: `broker.topic(...)` makes a topic of a new name. What
kills the broker starts it again on the same data and port.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from demo.kafka.servers import broker_settings, new_cluster_id, properties_text
from scripts.maven_files import entries, folder_of
from tests.support.servers import ROOT, Server, answers, free_port, missing, wait_until

KAFKA_JARS = ROOT / "scripts" / "jars" / "kafka-4.4.0.txt"
_JVM = ["-Xms96m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
DEADLINE_S = 240
ANSWER_S: Final = 10.0
SETTLED_S: Final = 90.0

T = TypeVar("T")


def answered(ask: Callable[[], T], what: str, *, deadline_s: float = DEADLINE_S) -> T:
    """What `ask` returns, which waits ANSWER_S at most and is asked again until it answers, so it must do no harm by
    that: the client library leaves a question with the broker that it has chosen, also when that one is killed, and
    chooses anew for the next question."""
    end_s = time.monotonic() + deadline_s
    while True:
        try:
            return ask()
        except (KafkaException, TimeoutError) as error:
            assert time.monotonic() < end_s, f"not within {deadline_s} s: {what} ({error!r})"
            time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class Record:
    """One record as it lies in its partition."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


@dataclass
class Broker:
    """One real broker. `address` is its bootstrap address."""

    server: Server
    address: str
    directory: Path

    @functools.cached_property
    def admin(self) -> AdminClient:
        """Kept: what it promises is void when it is gone."""
        quick = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200}  # to a broker that is started again
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0, "log.connection.close": False, **quick})

    def start(self) -> Broker:
        self.server.start()
        wait_until(self._answers, deadline_s=DEADLINE_S, what=f"Kafka answers\n{self.server.tail()}")
        return self

    def _answers(self) -> bool:
        assert self.server.alive, self.server.tail()
        if not answers(int(self.address.rpartition(":")[2])):
            return False
        try:
            return bool(self.admin.list_topics(timeout=5).brokers)
        except KafkaException:
            return False

    def kill(self) -> None:
        """SIGKILL; `start` goes on with the same data on the same port."""
        self.server.kill()

    def metadata(self) -> ClusterMetadata:
        """Of all topics and brokers."""
        return answered(lambda: self.admin.list_topics(timeout=ANSWER_S), "metadata")

    def order(self, order: Callable[..., dict[Any, Future[Any]]], *given: Any, done: int = 0) -> None:
        """Has the admin client's `order` carried out. `done`: the error that says that it was before, when an answer
        was lost."""

        def ask() -> None:
            for made in order(*given, operation_timeout=ANSWER_S, request_timeout=ANSWER_S).values():
                try:
                    made.result(2 * ANSWER_S)
                except KafkaException as error:
                    if error.args[0].code() != done:
                        raise

        answered(ask, f"{order.__name__} {given}")

    def topic(self, partitions: int = 1, *, name: str = "t", **config: str) -> str:
        """A new topic, named `name` with something behind it; settings with _ for the dot."""
        made = f"{name}-{uuid.uuid4().hex[:10]}"
        settings = {setting.replace("_", "."): value for setting, value in config.items()}
        new = NewTopic(made, num_partitions=partitions, replication_factor=1, config=settings)
        self.order(self.admin.create_topics, [new], done=KafkaError.TOPIC_ALREADY_EXISTS)
        wait_until(lambda: self.topics().get(made) == partitions, what=f"topic {made} is shown")
        return made

    def make_again(self, topic: str, partitions: int) -> None:
        """Delete it, and make another one of its name."""
        self.delete(topic)
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1)
        self.order(self.admin.create_topics, [new], done=KafkaError.TOPIC_ALREADY_EXISTS)
        wait_until(lambda: self.topics().get(topic) == partitions, what=f"topic {topic} is shown again")

    def grow(self, topic: str, partitions: int) -> None:
        given = [NewPartitions(topic, partitions)]
        self.order(self.admin.create_partitions, given, done=KafkaError.INVALID_PARTITIONS)
        wait_until(lambda: self.topics().get(topic) == partitions, what=f"topic {topic} has {partitions} partitions")

    def delete(self, *topics: str) -> None:
        self.order(self.admin.delete_topics, list(topics), done=KafkaError.UNKNOWN_TOPIC_OR_PART)
        wait_until(lambda: not self.topics().keys() & set(topics), what=f"{topics} are not shown any more")

    def set_topic(self, topic: str, **config: str) -> None:
        settings = {setting.replace("_", "."): value for setting, value in config.items()}
        entries = [
            ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
            for setting, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)

        def alter() -> None:
            altered = self.admin.incremental_alter_configs([resource], request_timeout=ANSWER_S)
            altered[resource].result(2 * ANSWER_S)

        answered(alter, f"topic {topic}: {settings}")
        wait_until(lambda: self._has(topic, settings), what=f"topic {topic} has {settings}")

    def _has(self, topic: str, settings: Mapping[str, str]) -> bool:
        asked = ConfigResource(ResourceType.TOPIC, topic)

        def ask() -> Mapping[str, Any]:
            found: Mapping[str, Any] = self.admin.describe_configs([asked], request_timeout=ANSWER_S)[asked].result(
                2 * ANSWER_S
            )
            return found

        found = answered(ask, f"settings of {topic}")
        return all(found[setting].value == value for setting, value in settings.items())

    def topics(self) -> dict[str, int]:
        """Every topic and how many partitions it has."""
        return {name: len(one.partitions) for name, one in self.metadata().topics.items()}

    def read(self, topic: str, *, committed: bool = True, settled: bool = True) -> list[list[Record]]:
        """What each partition holds, from its beginning to its end: `committed`, what a read-committed consumer is
        given, which ends before the first transaction that is open; else everything that was ever written, aborted
        transactions too. A commit is acknowledged before its markers are written, so transactions are given SETTLED_S
        to end, unless they need not be `settled`."""
        if committed and settled:
            self.settle(topic)
        partitions = self.topics()[topic]
        found: list[list[Record]] = [[] for _ in range(partitions)]
        settings = {
            "bootstrap.servers": self.address,
            "group.id": f"reader-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end of a partition is told only behind this wait
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "log_level": 0,
        }
        consumer = Consumer(settings)
        try:
            consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
            ended: set[int] = set()
            while len(ended) < partitions:
                messages = consumer.consume(10_000, timeout=0.02)
                for message in messages:
                    error = message.error()
                    if error is None:
                        number = message.partition()
                        ended.discard(number)
                        found[number].append(Record(number, message.offset(), message.key(), message.value()))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        ended.add(message.partition())
                    elif not error.retriable():
                        raise KafkaException(error)
        finally:
            consumer.close()
        return found

    def settle(self, topic: str) -> bool:
        """Wait until every transaction that has written to the topic so far is ended there, SETTLED_S at most. Whether
        they are."""
        wanted = self._ends(topic, "read_uncommitted")
        end_s, pause_s = time.monotonic() + SETTLED_S, 0.005
        while True:
            found = self._ends(topic, "read_committed")
            if all(now >= then for now, then in zip(found, wanted, strict=False)):
                return True
            if time.monotonic() > end_s:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.25)

    def open_partitions(self, topic: str) -> list[int]:
        """Those in which a transaction is open, past which read-committed consumers cannot read. One whose commit has
        been acknowledged is among them until the broker has written its marker."""
        ends = (self._ends(topic, level) for level in ("read_committed", "read_uncommitted"))
        return [number for number, (committed, written) in enumerate(zip(*ends, strict=True)) if committed < written]

    def _ends(self, topic: str, level: str) -> list[int]:
        """Where each partition ends for readers of that isolation level."""
        settings = {"bootstrap.servers": self.address, "group.id": "ends", "isolation.level": level, "log_level": 0}

        def ask() -> list[int]:
            consumer = Consumer(settings)
            try:
                places = [TopicPartition(topic, number) for number in range(self.topics()[topic])]
                return [consumer.get_watermark_offsets(of, timeout=ANSWER_S, cached=False)[1] for of in places]
            finally:
                consumer.close()

        return answered(ask, f"the ends of {topic}")

    def values(self, topic: str, *, committed: bool = True) -> list[list[bytes | None]]:
        """Of each partition the values alone."""
        return [[record.value for record in of] for of in self.read(topic, committed=committed)]


def properties_of(directory: Path, port: int, controller: int, listeners: Mapping[str, tuple[str, int]]) -> str:
    """The demo's settings, and what a broker needs that is killed and started again."""
    more = {
        "num.network.threads": "2",
        "num.io.threads": "4",
        "num.recovery.threads.per.data.dir": "1",
        # One that is started again must wait until the controller has forgotten its former life.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        # A producer that dies in the middle leaves a transaction; how soon the broker looks for those that are too old.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    }
    return properties_text(broker_settings(directory / "data", port, controller, listeners) | more)


def log_settings(directory: Path) -> str:
    """The option of a JVM that logs warnings to its output."""
    file = directory / "log4j2.properties"
    file.write_text(
        "status=error\nappender.out.type=Console\nappender.out.name=out\nappender.out.layout.type=PatternLayout\n"
        "appender.out.layout.pattern=%d{ABSOLUTE} %p %c{1} %m%n\n"
        "rootLogger.level=warn\nrootLogger.appenderRef.out.ref=out\n"
    )
    return f"-Dlog4j2.configurationFile={file}"


def _java(directory: Path, *arguments: str) -> list[str]:
    jars = folder_of(KAFKA_JARS)
    return ["java", *_JVM, log_settings(directory), "-cp", f"{jars}/*", *arguments]


def require_kafka() -> None:
    if shutil.which("java") is None:
        missing("Java 17 is not installed (Debian: apt-get install openjdk-17-jre-headless)")
    jars = folder_of(KAFKA_JARS)
    if not jars.is_dir() or len(list(jars.glob("*.jar"))) != len(entries(KAFKA_JARS)):
        missing("Kafka's jars are not there: scripts/need.sh kafka")


@contextlib.contextmanager
def running_kafka(
    extra: Sequence[str] = (), listeners: Mapping[str, tuple[str, int]] | None = None
) -> Iterator[Broker]:
    """`extra`: further lines of its properties, which come last and so win; `listeners`: beside that of `address`, name
    → security protocol and port."""
    require_kafka()
    directory = Path(tempfile.mkdtemp(prefix="kafka-"))
    port, controller = free_port(), free_port()
    settings = properties_of(directory, port, controller, listeners or {}) + "".join(f"{line}\n" for line in extra)
    broker = formatted(directory, "server", settings, port, new_cluster_id(), "--standalone")
    try:
        yield broker.start()
    finally:
        broker.kill()
        shutil.rmtree(directory, ignore_errors=True)


def formatted(directory: Path, name: str, settings: str, port: int, cluster: str, *options: str) -> Broker:
    """A broker that was never started, of these properties."""
    properties = directory / f"{name}.properties"
    properties.write_text(settings)
    format_data = ["kafka.tools.StorageTool", "format", *options, "-t", cluster, "-c", str(properties)]
    made = subprocess.run(_java(directory, *format_data), capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    server = Server(_java(directory, "kafka.Kafka", str(properties)), directory / f"{name}.log")
    return Broker(server, f"127.0.0.1:{port}", directory)
