"""The one door to reading: a few partitions from their beginning to their end."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from drainer.sink.errors import DestinationDown, DestinationRefused
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
        self._conf: dict[str, Any] = {
            **settings,
            "log_level": 0,
            "error_cb": self._note_error,
            "group.id": f"drainer-{uuid.uuid4().hex}",  # of no use: nothing is committed
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,  # for the end of a partition, which is told only then
        }
        # For ends alone: one that has read a partition takes up to a second until it reads another.
        self._of_ends = {committed: self._made(committed=committed) for committed in (False, True)}

    def _made(self, *, committed: bool) -> Consumer:
        return Consumer({**self._conf, "isolation.level": "read_committed" if committed else "read_uncommitted"})

    def _note_error(self, error: KafkaError) -> None:
        self._reason = f"{error.name()}: {error.str()}"

    def committed(self, partition: int, patience: Patience) -> list[Record]:
        """All that is committed. A transaction that is open there is waited for: who asks has settled those there may
        be."""
        end = self.settled_end(partition, patience)
        return self._read(partition, 0, end, committed=True, patience=patience)

    def before_open(self, partition: int, patience: Patience) -> list[Record]:
        """All that is committed before the first transaction that is open there, which is not waited for."""
        end = self._end(partition, committed=True, patience=patience)
        return self._read(partition, 0, end, committed=True, patience=patience)

    def settled_end(self, partition: int, patience: Patience) -> int:
        """The end of a partition, once no transaction is open there; behind the marker that ended the last one."""
        while True:
            end = self.end(partition, patience)
            stable = self._end(partition, committed=True, patience=patience)
            if stable == end:
                return end
            if stable < end:
                patience.failed(DestinationDown(f"{self._topic}-{partition}: a transaction is open at offset {stable}"))
            # Else the marker came between the two questions: `end` is where it stands.

    def end(self, partition: int, patience: Patience) -> int:
        """Behind everything that was ever written."""
        return self._end(partition, committed=False, patience=patience)

    def everything(self, partition: int, patience: Patience, *, begin: int = 0) -> list[Record]:
        """What was ever written from offset `begin` on, aborted transactions too."""
        end = self.end(partition, patience)
        return self._read(partition, begin, end, committed=False, patience=patience)

    def shows(self, partition: int, begin: int, end: int | None, patience: Patience) -> bool | None:
        """Whether read-committed consumers find one from offset `begin` to below `end`, None: the first open
        transaction. None where messages from `begin` on have been deleted, so that nothing can be said."""
        first, stable = self._bounds(partition, committed=True, patience=patience)
        end = stable if end is None else min(end, stable)
        at_once = self._read(partition, max(begin, first), end, committed=True, patience=patience, records_max=1)
        return True if at_once else (None if first > begin else False)

    def _end(self, partition: int, *, committed: bool, patience: Patience) -> int:
        return self._bounds(partition, committed=committed, patience=patience)[1]

    def _bounds(self, partition: int, *, committed: bool, patience: Patience) -> tuple[int, int]:
        """The first offset that was not deleted, and the end."""
        of = TopicPartition(self._topic, partition)
        while True:
            try:
                first, end = self._of_ends[committed].get_watermark_offsets(of, timeout=_ANSWER_S, cached=False)
                return int(first), int(end)
            except KafkaException as error:
                found = meaning(error.args[0], f"topic {self._topic}", "Read")
                if isinstance(found, DestinationRefused):
                    raise found from error
                # One that met a leader's death says "unknown partition" for ever, so a new one takes its place.
                self._of_ends[committed].close()
                self._of_ends[committed] = self._made(committed=committed)
                patience.failed(found)

    def _waited(self, error: KafkaError, patience: Patience) -> None:
        found = meaning(error, f"topic {self._topic}", "Read")
        if not error.retriable() and error.code() not in _GOES_BY:
            raise found
        patience.failed(found)

    def _read(
        self,
        partition: int,
        begin: int,
        end: int,
        *,
        committed: bool,
        patience: Patience,
        records_max: int | None = None,
    ) -> list[Record]:
        """Offsets from `begin` to below `end`, which need not be those of records."""
        if begin >= end:
            return []
        with self._consumer(committed=committed) as consumer:
            consumer.assign([TopicPartition(self._topic, partition, begin or _BEGINNING)])
            found: list[Record] = []
            while True:
                message = consumer.poll(_STEP_S)
                error = message.error() if message is not None else None
                if message is None:
                    patience.failed(DestinationDown(f"{self._topic}-{partition} is not read: {self._reason}"))
                elif error is None:
                    if message.offset() < end:
                        found.append(Record(message.offset(), message.key() or b"", message.value()))
                    if message.offset() + 1 >= end or len(found) == records_max:
                        return found
                elif error.code() == KafkaError._PARTITION_EOF:
                    if message.offset() >= end:
                        return found
                else:
                    self._waited(error, patience)

    def close(self) -> None:
        for consumer in self._of_ends.values():
            consumer.close()

    @contextlib.contextmanager
    def _consumer(self, *, committed: bool) -> Iterator[Consumer]:
        consumer = self._made(committed=committed)
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
    # While a leader moves, and from a broker that does not know yet of a topic just made.
    KafkaError._DESTROY_BROKER,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)
