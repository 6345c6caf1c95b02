"""The one door to reading: a few partitions from their beginning to their end."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from drainer.sink.errors import DestinationDown
from drainer.sink.kafka.producer import meaning
from drainer.sink.retry import Patience

_STEP_S: Final = 1.0
_ANSWER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Record:
    """One record; `value` None: the key is deleted."""

    offset: int
    key: bytes
    value: bytes | None


class Reader:
    """Reads partitions of one topic. Not for several threads."""

    def __init__(self, settings: Mapping[str, str], topic: str) -> None:
        self._topic = topic
        self._reason = ""
        common: dict[str, Any] = {**settings, "log_level": 0, "error_cb": self._note_error}
        self._admin = AdminClient(common)
        self._conf = {
            **common,
            "group.id": f"drainer-{uuid.uuid4().hex}",  # of no use: nothing is committed
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,  # for the end of a partition, which is told only then
        }

    def _note_error(self, error: KafkaError) -> None:
        self._reason = f"{error.name()}: {error.str()}"

    def committed(self, partition: int, patience: Patience) -> list[Record]:
        """All that is committed, when no transaction is open there: who asks has settled those there may be. An end
        that readers of committed messages do not reach yet is waited for."""
        while True:
            end, stable = self._end(partition, committed=False, patience=patience), -1
            stable = self._end(partition, committed=True, patience=patience)
            if stable >= end:
                return self._read(partition, 0, end, committed=True, patience=patience)
            patience.failed(DestinationDown(f"{self._topic}-{partition}: a transaction is open at offset {stable}"))

    def everything(self, partition: int, patience: Patience, *, begin: int = 0) -> list[Record]:
        """What was ever written from offset `begin` on, aborted transactions too."""
        end = self._end(partition, committed=False, patience=patience)
        return self._read(partition, begin, end, committed=False, patience=patience)

    def _end(self, partition: int, *, committed: bool, patience: Patience) -> int:
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        of = TopicPartition(self._topic, partition)
        while True:
            asked = self._admin.list_offsets(
                {of: OffsetSpec.latest()}, isolation_level=level, request_timeout=_ANSWER_S
            )
            try:
                return int(asked[of].result(_ANSWER_S + 5).offset)
            except KafkaException as error:
                self._waited(error.args[0], patience)
            except TimeoutError:
                patience.failed(DestinationDown(f"{self._topic}-{partition}: its end is not told: {self._reason}"))

    def _waited(self, error: KafkaError, patience: Patience) -> None:
        found = meaning(error, f"topic {self._topic}")
        if not error.retriable() and error.code() not in _GOES_BY:
            raise found
        patience.failed(found)

    def _read(self, partition: int, begin: int, end: int, *, committed: bool, patience: Patience) -> list[Record]:
        """Offsets from `begin` to below `end`, which need not be those of records."""
        if begin >= end:
            return []
        with self._consumer(committed=committed) as consumer:
            consumer.assign([TopicPartition(self._topic, partition, begin or _BEGINNING)])
            found: list[Record] = []
            while True:
                messages = consumer.consume(1000, _STEP_S)
                for message in messages:
                    error = message.error()
                    if error is None:
                        found.append(Record(message.offset(), message.key() or b"", message.value()))
                        if message.offset() + 1 >= end:
                            return found
                    elif error.code() == KafkaError._PARTITION_EOF:
                        if message.offset() >= end:
                            return found
                    else:
                        self._waited(error, patience)
                if not messages:
                    patience.failed(DestinationDown(f"{self._topic}-{partition} is not read: {self._reason}"))

    @contextlib.contextmanager
    def _consumer(self, *, committed: bool) -> Iterator[Consumer]:
        consumer = Consumer({**self._conf, "isolation.level": "read_committed" if committed else "read_uncommitted"})
        try:
            yield consumer
        finally:
            consumer.close()


_BEGINNING: Final = -2  # logical offset
_GOES_BY: Final[Sequence[int]] = (
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
)
