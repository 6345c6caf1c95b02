"""Reads partitions with confluent-kafka, and writes and reads the topics of pumps, which have one partition."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from binlog.cluster.tso import physical_ms
from binlog.topic.message import Outgoing, TopicError

ANSWER_S = 5.0
STORED_S = 30.0  # how long brokers may take to store what was sent
MESSAGES_MAX = 64  # that one read returns
AHEAD_KBYTES = 8192  # that the client fetches ahead of a reader

# When its queue is full the client waits before it fetches again, by default a second.
_AHEAD = {"queued.max.messages.kbytes": AHEAD_KBYTES, "fetch.queue.backoff.ms": 10}
_READING = {"fetch.wait.max.ms": 100}
# A message that is refused or too late must not be passed over by later ones: what lies behind it would count as all.
_GAPLESS = {"enable.gapless.guarantee": True, "message.timeout.ms": 0}
_WRITING = {"enable.idempotence": True, "acks": "all", **_GAPLESS, "linger.ms": 5}


def _text(error: BaseException | KafkaError) -> str:
    found = error.args[0] if isinstance(error, KafkaException) else error
    return f"{found.name()}: {found.str()}" if isinstance(found, KafkaError) else str(found)


class KafkaPartition(NamedTuple):
    """One partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


class Record(NamedTuple):
    topic_partition: KafkaPartition
    offset: int
    key: bytes | None
    value: bytes | None


_record = partial(tuple.__new__, Record)  # half the time of Record(...)


class PartitionReader:
    """Reads partitions. Belongs to no consumer group, and commits no offset. `last_error`: what the client library
    reported last; `ended`: the offset after the end of each partition that was read to its end."""

    def __init__(
        self, settings: Mapping[str, Any], group: str, *, committed: bool = True, logger: logging.Logger | None = None
    ) -> None:
        """`group`: required by the library; `committed`: skip messages of transactions that are not committed;
        `logger`: gets what the client library says, which is not logged otherwise. Raises KafkaException for settings
        that the client library refuses."""
        self.last_error = ""
        self.ended: dict[KafkaPartition, int] = {}
        self._places: dict[object, KafkaPartition] = {}  # made once, and not with each message
        silent = {"log_level": 0, "error_cb": self._note} if logger is None else {}
        fixed = {
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",  # deleted records are an error, and not skipped
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
        more = {} if logger is None else {"logger": logger}
        self.client = Consumer({**silent, **_AHEAD, **settings, **fixed}, **more)

    def _note(self, error: KafkaError) -> None:
        self.last_error = _text(error)

    def begin(self, offsets: Mapping[KafkaPartition, int | None]) -> None:
        """Also read these partitions, from these offsets; None: from the first record that is there. An offset whose
        record was deleted is an error of `poll`."""
        places = sorted(offsets.items())
        self.client.incremental_assign(
            [TopicPartition(*of, OFFSET_BEGINNING if offset is None else offset) for of, offset in places]
        )

    def poll(self, timeout_s: float, records_max: int = 1000) -> list[Record]:
        """Return the next records, of several partitions mixed: those that have come when the first one has, or none
        after the timeout. Raises what `refused` returns for an error after which the library does not go on."""
        found, first = [], self.client.poll(timeout_s)  # `consume` alone waits until all `records_max` have come
        more = [] if first is None else self.client.consume(records_max - 1, timeout=0)
        for message in more if first is None else [first, *more]:
            error, place = message.error(), (message.topic(), message.partition())
            topic_partition = self._places.get(place)
            if topic_partition is None:
                topic, number = place
                topic_partition = self._places[place] = KafkaPartition(topic or "", -1 if number is None else number)
            if error is None:
                if self.ended:
                    self.ended.pop(topic_partition, None)
                found.append(_record((topic_partition, message.offset(), message.key(), message.value())))
            elif error.code() == KafkaError._PARTITION_EOF:
                self.ended[topic_partition] = message.offset() or 0
            elif not error.retriable():
                raise self.refused(topic_partition, error)
        return found

    def refused(self, topic_partition: KafkaPartition, error: KafkaError) -> Exception:
        """Return the error to raise."""
        found: Exception = KafkaException(error)
        return found

    def close(self) -> None:
        self.client.close()


class _Client:
    """What a writer and a reader share: the settings, and the last error that the client library reported."""

    def __init__(self, settings: Mapping[str, str], topic: str) -> None:
        self.last_error = ""
        self._topic = topic
        self._conf: dict[str, Any] = {**settings, "log_level": 0, "error_cb": self._note}

    def _note(self, error: KafkaError) -> None:
        self.last_error = _text(error)

    def _failed(self, what: str, error: BaseException | KafkaError, client: Any = None) -> TopicError:
        """`client`: one that may not have reported yet why it has no connection, as with a wrong password."""
        if client is not None:
            client.poll(0)
        why = f" ({self.last_error})" if self.last_error else ""
        return TopicError(f"topic {self._topic}: {what}: {_text(error)}{why}")


class KafkaReader(_Client):
    """Reads a topic. `at_end`: everything that was there has been read. Belongs to no consumer group."""

    def __init__(self, settings: Mapping[str, str], topic: str) -> None:
        super().__init__(settings, topic)
        self.at_end = False
        self._place = KafkaPartition(topic, 0)
        self._reader: Any = None

    def open(self, after_ts: int) -> None:
        """Begin before the first message that may complete something above `after_ts`. Raises TopicError."""
        self._begin_at(lambda low, high: self._first(after_ts, low, high) if after_ts > 0 else low)

    def last(self) -> bytes | None:
        """Return the last message of the topic, or None. Raises TopicError."""
        end_s = time.monotonic() + STORED_S
        self._begin_at(lambda low, high: max(low, high - 1))
        found: list[tuple[int, bytes]] = []
        while not self.at_end:
            found += self.read(0.5)
            if time.monotonic() > end_s:
                raise TopicError(f"topic {self._topic}: its last message cannot be read: {self.last_error}")
        return found[-1][1] if found else None

    def read(self, timeout_s: float) -> list[tuple[int, bytes]]:
        """Return offset and value of the next messages, none if none arrive in time. Raises TopicError."""
        try:
            found = self._reader.poll(timeout_s, MESSAGES_MAX)
        except KafkaException as error:
            raise self._failed("cannot be read", error) from error
        self.at_end = bool(self._reader.ended)
        return [(record.offset, record.value or b"") for record in found]

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _begin_at(self, begin: Callable[[int, int], int]) -> None:
        """Read from the offset that `begin` returns for the topic's first offset and its end."""
        self.close()
        self.at_end = False
        try:
            reader = self._reader = PartitionReader({**self._conf, **_READING}, "tidb-binlog")
            # The end is read first: a message that arrives meanwhile must not be passed over.
            low, end = reader.client.get_watermark_offsets(TopicPartition(*self._place), timeout=ANSWER_S)
            reader.begin({self._place: begin(low, end)})
        except KafkaException as error:
            missing = error.args[0].code() in (KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)
            what = "cannot be read" if not missing else "does not exist, its pump has not published (see [kafka] there)"
            raise self._failed(what, error, self._reader and self._reader.client) from error

    def _first(self, after_ts: int, low: int, end: int) -> int:
        """Return the offset of the first message that is not older than `after_ts`. An empty topic may have had some:
        raises TopicError."""
        if low == end:
            raise TopicError(
                f"topic {self._topic} is empty: its pump has not published, or the brokers removed everything "
                f"(retention.ms), perhaps also binlogs above ts {after_ts}"
            )
        wanted = TopicPartition(*self._place, physical_ms(after_ts))
        (found,) = self._reader.client.offsets_for_times([wanted], timeout=ANSWER_S)
        if found.error is not None:
            raise KafkaException(found.error)
        return int(found.offset) if found.offset >= 0 else end


class KafkaWriter(_Client):
    """Writes a topic, from one thread at a time. After an error, open it again."""

    def __init__(self, settings: Mapping[str, str], topic: str, message_bytes_max: int) -> None:
        super().__init__(settings, topic)
        self._reader = KafkaReader(settings, topic)
        self._bytes_max = message_bytes_max
        self._producer: Any = None

    def open(self) -> bytes | None:
        """Create the topic if it is missing; return its last message, or None. Raises TopicError."""
        self.close()
        admin = None
        try:
            admin = AdminClient(self._conf)
            self._create(admin)
            self._producer = Producer({**self._conf, **_WRITING, "message.max.bytes": self._bytes_max})
        except KafkaException as error:
            raise self._failed("cannot be created", error, admin) from error
        try:
            return self._reader.last()
        finally:
            self._reader.close()

    def _create(self, admin: Any) -> None:
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
        """Append messages and wait until the brokers have stored all. Raises TopicError: some may be stored."""
        producer = self._producer  # another thread may close it meanwhile
        failures: list[KafkaError] = []
        end_s = time.monotonic() + STORED_S

        def delivered(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failures.append(error)

        try:
            for ts, value in messages:
                stamp = physical_ms(ts)
                producer.produce(self._topic, value, partition=0, timestamp=stamp, on_delivery=delivered)
            while len(producer) and not failures and time.monotonic() < end_s:
                producer.poll(0.1)  # flush would go on after a fatal error
        except (KafkaException, BufferError) as error:
            raise self._failed("a message was not accepted", error) from error
        if failures:
            raise self._failed("a message was not stored", failures[0])
        if len(producer):
            raise TopicError(f"topic {self._topic}: messages are not stored: {self.last_error}")

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            with contextlib.suppress(KafkaException):
                producer.poll(0)
