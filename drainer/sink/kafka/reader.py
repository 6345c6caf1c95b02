"""Read a few partitions from their beginning to their end."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from binlog.topic.kafka import KafkaPartition, PartitionReader, Record
from confluent_kafka import KafkaError, KafkaException, TopicPartition

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


class Reader:
    """Read partitions of one topic. Not safe for use by several threads."""

    def __init__(self, settings: Mapping[str, str], topic: str) -> None:
        self._topic = topic
        self._address = settings.get("bootstrap.servers", "")
        # The end of a partition is reported only after this wait.
        self._conf = {**settings, "fetch.wait.max.ms": 20}
        self._group = f"drainer-{uuid.uuid4().hex}"
        # For end offsets only: a consumer that has read one partition takes up to a second before it reads another.
        self._of_ends = {committed: self._made(committed=committed) for committed in (False, True)}

    def _made(self, *, committed: bool) -> PartitionReader:
        return PartitionReader(self._conf, self._group, committed=committed)

    def committed(self, partition: int, deadline: RetryDeadline) -> list[Record]:
        """Return all committed records. Waits until no transaction is open there."""
        end = self.settled_end(partition, deadline)
        return self._read(partition, 0, end, deadline, committed=True)

    def settled_end(self, partition: int, deadline: RetryDeadline) -> int:
        """Wait until no transaction is open in a partition; return the end offset, after the last marker."""
        while True:
            end = self.end(partition, deadline)
            stable = self.end(partition, deadline, committed=True)
            if stable == end:
                return end
            if stable < end:
                text = open_transactions_text({(self._topic, partition): stable}, self._address)
                deadline.failed(DestinationDown(text))
            # Otherwise the marker was written between the two queries, at offset `end`: query again.

    def everything(
        self, partition: int, deadline: RetryDeadline, *, begin: int = 0, records_max: int = 0
    ) -> list[Record]:
        """Return every record from offset `begin` on, at most `records_max`, 0: all, including those of aborted and
        open transactions."""
        end = self.end(partition, deadline)
        return self._read(partition, begin, end, deadline, committed=False, records_max=records_max)

    def end(self, partition: int, deadline: RetryDeadline, *, committed: bool = False) -> int:
        """Return the offset after everything that was ever written; with `committed` after what no open transaction
        precedes."""
        of = TopicPartition(self._topic, partition)
        while True:
            try:
                _, end = self._of_ends[committed].client.get_watermark_offsets(of, timeout=_ANSWER_S)
                return int(end)
            except KafkaException as error:
                found = meaning(error.args[0], f"topic {self._topic}", "Read")
                if isinstance(found, DestinationRefused):
                    raise found from error
                # After a leader's death a consumer may answer "unknown partition" for ever, so a new one replaces it.
                self._of_ends[committed].close()
                self._of_ends[committed] = self._made(committed=committed)
                deadline.failed(found)

    def _read(
        self, partition: int, begin: int, end: int, deadline: RetryDeadline, *, committed: bool, records_max: int = 0
    ) -> list[Record]:
        """Return the records at offsets from `begin` to below `end`, at most `records_max` of them; 0: all. An offset
        may have no record."""
        if begin >= end:
            return []
        place, found = KafkaPartition(self._topic, partition), list[Record]()
        with contextlib.closing(self._made(committed=committed)) as reader:
            if not begin:
                # The leader is asked where a partition begins. A library that does not know the leader yet asks again
                # only half a second later.
                with contextlib.suppress(KafkaException):
                    reader.client.list_topics(self._topic, timeout=_STEP_S)
            reader.begin({place: begin or None})
            while True:
                try:
                    records = reader.poll(_STEP_S, 1)  # of several, an error would lose those before it
                except KafkaException as error:
                    why = meaning(error.args[0], f"topic {self._topic}", "Read")
                    if error.args[0].code() not in _GOES_BY:
                        raise why from error
                    deadline.failed(why)
                    continue
                found += [record for record in records if record.offset < end]
                at = reader.ended.pop(place, None) if not records else records[0].offset + 1
                if at is None:
                    deadline.failed(DestinationDown(f"{self._topic}-{partition} is not read: {reader.last_error}"))
                elif at >= end or 0 < records_max <= len(found):
                    return found

    def close(self) -> None:
        for consumer in self._of_ends.values():
            consumer.close()


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
