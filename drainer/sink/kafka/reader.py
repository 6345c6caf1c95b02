"""Read a few partitions from their beginning to their end."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from drainer.sink.errors import DestinationDown, DestinationRefused
from drainer.sink.kafka.producer import meaning
from drainer.sink.retry import RetryDeadline

# The text for an operator about transactions that stay open, so that read-committed consumers cannot read past them.
# Pure.
#
# A broker acknowledges a commit or an abort before it writes the markers. Brokers up to 4.4 take a partition that has
# no leader at that moment for a deleted one, and never write its marker (KAFKA-20734): the transaction stays open
# there. This happens if a broker is killed whose partitions have no other replica. No client can learn what was
# decided, so the drainer ends no such transaction itself: it looks for them when it starts, and waits.


def open_transactions_text(open_at: Mapping[tuple[str, int], int], address: str) -> str:
    """Return where the first open transaction begins, the command that names its producer, and the one that ends it.
    `open_at`: topic and partition → the offset at which the transaction begins; `address`: the brokers."""
    (topic, partition), offset = min(open_at.items())
    more = f", and others in {len(open_at) - 1} more partitions" if len(open_at) > 1 else ""
    tool = f"kafka-transactions.sh --bootstrap-server {address}"
    options = f"--topic {topic} --partition {partition}"
    return (
        f"a transaction is open at offset {offset} of {topic}-{partition}{more}. "
        f"`{tool} describe-producers {options}` shows its producer id. If that producer is not running, "
        f"`{tool} abort {options} --start-offset {offset}` ends the transaction, and its messages are lost"
    )


_STEP_S: Final = 1.0
_ANSWER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Record:
    """One record; `value` None deletes the key."""

    offset: int
    key: bytes
    value: bytes | None


class Reader:
    """Read partitions of one topic. Not safe for use by several threads."""

    def __init__(self, settings: Mapping[str, str], topic: str) -> None:
        self._topic = topic
        self._address = settings.get("bootstrap.servers", "")
        self._reason = ""
        self._conf: dict[str, Any] = {
            **settings,
            "log_level": 0,
            "error_cb": self._note_error,
            "group.id": f"drainer-{uuid.uuid4().hex}",  # required by the library; no offset is committed
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,  # the end of a partition is reported only after this wait
        }
        # For end offsets only: a consumer that has read one partition takes up to a second before it reads another.
        self._of_ends = {committed: self._made(committed=committed) for committed in (False, True)}

    def _made(self, *, committed: bool) -> Consumer:
        return Consumer({**self._conf, "isolation.level": "read_committed" if committed else "read_uncommitted"})

    def _note_error(self, error: KafkaError) -> None:
        self._reason = f"{error.name()}: {error.str()}"

    def committed(self, partition: int, deadline: RetryDeadline) -> list[Record]:
        """Return all committed records. Waits until no transaction is open there."""
        end = self.settled_end(partition, deadline)
        return self._read(partition, 0, end, committed=True, deadline=deadline)

    def settled_end(self, partition: int, deadline: RetryDeadline) -> int:
        """Wait until no transaction is open in a partition; return the end offset, after the last marker."""
        while True:
            end = self.end(partition, deadline)
            stable = self._end(partition, committed=True, deadline=deadline)
            if stable == end:
                return end
            if stable < end:
                text = open_transactions_text({(self._topic, partition): stable}, self._address)
                deadline.failed(DestinationDown(text))
            # Otherwise the marker was written between the two queries, at offset `end`: query again.

    def end(self, partition: int, deadline: RetryDeadline) -> int:
        """Return the offset after everything that was ever written."""
        return self._end(partition, committed=False, deadline=deadline)

    def everything(self, partition: int, deadline: RetryDeadline, *, begin: int = 0) -> list[Record]:
        """Return every record from offset `begin` on, including those of aborted and open transactions."""
        end = self.end(partition, deadline)
        return self._read(partition, begin, end, committed=False, deadline=deadline)

    def first(self, partition: int, begin: int, deadline: RetryDeadline) -> list[Record]:
        """Return the first record from offset `begin` on, whatever became of its transaction; none at the end."""
        end = self.end(partition, deadline)
        return self._read(partition, begin, end, committed=False, deadline=deadline, records_max=1)

    def _end(self, partition: int, *, committed: bool, deadline: RetryDeadline) -> int:
        of = TopicPartition(self._topic, partition)
        while True:
            try:
                _, end = self._of_ends[committed].get_watermark_offsets(of, timeout=_ANSWER_S, cached=False)
                return int(end)
            except KafkaException as error:
                found = meaning(error.args[0], f"topic {self._topic}", "Read")
                if isinstance(found, DestinationRefused):
                    raise found from error
                # After a leader's death a consumer may answer "unknown partition" for ever, so a new one replaces it.
                self._of_ends[committed].close()
                self._of_ends[committed] = self._made(committed=committed)
                deadline.failed(found)

    def _waited(self, error: KafkaError, deadline: RetryDeadline) -> None:
        found = meaning(error, f"topic {self._topic}", "Read")
        if not error.retriable() and error.code() not in _GOES_BY:
            raise found
        deadline.failed(found)

    def _read(
        self,
        partition: int,
        begin: int,
        end: int,
        *,
        committed: bool,
        deadline: RetryDeadline,
        records_max: int | None = None,
    ) -> list[Record]:
        """Return the records at offsets from `begin` to below `end`. There need not be a record at either offset."""
        if begin >= end:
            return []
        with contextlib.closing(self._made(committed=committed)) as consumer:
            if not begin:
                # The leader is asked where a partition begins. A library that does not know the leader yet asks again
                # only half a second later.
                with contextlib.suppress(KafkaException):
                    consumer.list_topics(self._topic, timeout=_STEP_S)
            consumer.assign([TopicPartition(self._topic, partition, begin or _BEGINNING)])
            found: list[Record] = []
            while True:
                message = consumer.poll(_STEP_S)
                error = message.error() if message is not None else None
                if message is None:
                    deadline.failed(DestinationDown(f"{self._topic}-{partition} is not read: {self._reason}"))
                elif error is None:
                    if message.offset() < end:
                        found.append(Record(message.offset(), message.key() or b"", message.value()))
                    if message.offset() + 1 >= end or len(found) == records_max:
                        return found
                elif error.code() == KafkaError._PARTITION_EOF:
                    if message.offset() >= end:
                        return found
                else:
                    self._waited(error, deadline)

    def close(self) -> None:
        for consumer in self._of_ends.values():
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
    # While a leader moves, and from a broker that does not know a newly created topic yet.
    KafkaError._DESTROY_BROKER,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)
