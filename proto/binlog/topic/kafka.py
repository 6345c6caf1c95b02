"""The door to Kafka for the pumps' topics: writes and reads a topic of one partition with confluent-kafka."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from binlog.cluster.tso import physical_ms
from binlog.topic.message import Outgoing, TopicError

ANSWER_S = 5.0
STORED_S = 30.0  # how long brokers may take to store what was sent
MESSAGES_MAX = 64  # that one read returns
AHEAD_KBYTES = 8192  # that the client fetches ahead of a reader


def _text(error: BaseException | KafkaError) -> str:
    found = error.args[0] if isinstance(error, KafkaException) else error
    return f"{found.name()}: {found.str()}" if isinstance(found, KafkaError) else str(found)


class _Client:
    """What a writer and a reader share: the settings, and the client library's last complaint."""

    def __init__(self, settings: Mapping[str, str], topic: str) -> None:
        self.trouble = ""
        self._topic = topic
        self._conf: dict[str, Any] = {**settings, "log_level": 0, "error_cb": self._note}

    def _note(self, error: KafkaError) -> None:
        self.trouble = _text(error)

    def _failed(self, what: str, error: BaseException | KafkaError) -> TopicError:
        return TopicError(f"topic {self._topic}: {what}: {_text(error)}")


class KafkaReader(_Client):
    """A TopicReader. Belongs to no consumer group."""

    def __init__(self, settings: Mapping[str, str], topic: str) -> None:
        super().__init__(settings, topic)
        self.at_end = False
        self._consumer: Any = None

    def open(self, after_ts: int) -> None:
        self._make()
        of = TopicPartition(self._topic, 0)
        try:
            # The end is read first: a message that arrives in between must not be passed over.
            low, high = self._consumer.get_watermark_offsets(of, timeout=ANSWER_S, cached=False)
            begin = low
            if after_ts > 0:
                wanted = TopicPartition(self._topic, 0, physical_ms(after_ts))
                (found,) = self._consumer.offsets_for_times([wanted], timeout=ANSWER_S)
                if found.error is not None:
                    raise self._failed("cannot be searched", found.error)
                begin = found.offset if found.offset >= 0 else high
            self._consumer.assign([TopicPartition(self._topic, 0, begin)])
        except KafkaException as error:
            raise self._failed("cannot be read", error) from error

    def last(self) -> bytes | None:
        """Return the last message of the topic, or None. Raises TopicError."""
        self._make()
        of, end_s = TopicPartition(self._topic, 0), time.monotonic() + STORED_S
        try:
            low, high = self._consumer.get_watermark_offsets(of, timeout=ANSWER_S, cached=False)
            self._consumer.assign([TopicPartition(self._topic, 0, max(low, high - 1))])
        except KafkaException as error:
            raise self._failed("cannot be read", error) from error
        found: list[tuple[int, bytes]] = []
        while low < high and not (found and self.at_end):
            found += self.read(0.5)
            if time.monotonic() > end_s:
                raise TopicError(f"topic {self._topic}: its last message cannot be read: {self.trouble}")
        return found[-1][1] if found else None

    def read(self, timeout_s: float) -> list[tuple[int, bytes]]:
        found = []
        for message in self._consumer.consume(MESSAGES_MAX, timeout=timeout_s):
            error = message.error()
            if error is None:
                self.at_end = False
                found.append((message.offset(), message.value() or b""))
            elif error.code() == KafkaError._PARTITION_EOF:
                self.at_end = True
            elif not error.retriable():
                raise self._failed("cannot be read", error)
        return found

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _make(self) -> None:
        self.close()
        self.at_end = False
        conf = {
            **self._conf,
            "group.id": "tidb-binlog",  # required by the library; no offset is committed
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": AHEAD_KBYTES,
        }
        try:
            self._consumer = Consumer(conf)
        except KafkaException as error:
            raise self._failed("the client refuses its settings", error) from error


class KafkaWriter(_Client):
    """A TopicWriter. After an error, open it again."""

    def __init__(self, settings: Mapping[str, str], topic: str, message_bytes_max: int) -> None:
        super().__init__(settings, topic)
        self._reader = KafkaReader(settings, topic)
        self._bytes_max = message_bytes_max
        self._producer: Any = None

    def open(self) -> bytes | None:
        self.close()
        try:
            self._create()
            self._producer = Producer(
                {
                    **self._conf,
                    "enable.idempotence": True,
                    "acks": "all",
                    "message.max.bytes": self._bytes_max,
                    "message.timeout.ms": int(STORED_S * 1000),
                    "linger.ms": 5,
                }
            )
        except KafkaException as error:
            raise self._failed("cannot be created", error) from error
        try:
            return self._reader.last()
        finally:
            self._reader.close()

    def _create(self) -> None:
        admin = AdminClient(self._conf)
        found = admin.list_topics(timeout=ANSWER_S).topics.get(self._topic)
        if found is not None and found.error is None:
            if len(found.partitions) != 1:
                raise TopicError(f"topic {self._topic} has {len(found.partitions)} partitions, and must have one")
            return
        config = {"cleanup.policy": "delete", "message.timestamp.type": "CreateTime"}
        new = NewTopic(self._topic, num_partitions=1, replication_factor=-1, config=config)
        made = admin.create_topics([new], operation_timeout=ANSWER_S, request_timeout=ANSWER_S)
        try:
            made[self._topic].result(2 * ANSWER_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def send(self, messages: Sequence[Outgoing]) -> None:
        producer = self._producer  # another thread may close it meanwhile
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failures.append(error)

        try:
            for ts, value in messages:
                stamp = physical_ms(ts)
                producer.produce(self._topic, value, partition=0, timestamp=stamp, on_delivery=delivered)
            left = producer.flush(STORED_S + ANSWER_S)
        except (KafkaException, BufferError) as error:
            raise self._failed("a message was not accepted", error) from error
        if failures:
            raise self._failed(f"a message was not stored ({self.trouble})", failures[0])
        if left:
            raise TopicError(f"topic {self._topic}: messages are not stored: {self.trouble}")

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            with contextlib.suppress(KafkaException):
                producer.flush(1)
