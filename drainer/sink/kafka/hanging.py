"""Transactions that hang (outcomes.py): they are looked for when a producer is new, and when brokers were away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from binlog.runtime.log import get_logger

from drainer.failures import FAILURES, TRIES_REPORTED
from drainer.protocol.encoder import Message
from drainer.sink.document_position import Document
from drainer.sink.errors import DestinationDown, DestinationRefused
from drainer.sink.kafka.config import KafkaConfig
from drainer.sink.kafka.control_records import COUNTS_NOTE, POSITION_PARTITION, document_of, mark_of
from drainer.sink.kafka.outcomes import Basis, outcomes
from drainer.sink.kafka.producer import Producer, ProducerLost
from drainer.sink.kafka.producers import new_producer
from drainer.sink.kafka.reader import Reader, Record
from drainer.sink.kafka.topics import Place, Topics
from drainer.sink.retry import Patience

# Brokers that were just started write markers some seconds later.
GRACE_S: Final = 10.0
_END_KEY: Final = b"end"  # of records without a value, which nobody reads
_log = get_logger(__name__)

Filler = Callable[[int], Sequence[Message]]


class Hanging:
    """Of one changefeed. `filler`: for a commit_ts up to which everything is there, messages that say so."""

    def __init__(self, config: KafkaConfig, topics: Topics, reader: Reader, label: str, filler: Filler) -> None:
        self._config = config
        self._topics = topics
        self._reader = reader
        self._label = label
        self._filler = filler
        self._told: list[Place] = []
        self._told_s = 0.0

    def end(self, own: Producer, slots: int, basis: Basis, check: Callable[[], None], patience: Patience) -> None:
        """End what hangs of this changefeed's producers. `own`: the driver's, initialised and without a transaction;
        `basis`: without `before`; `check`: raises where another driver has taken over. Raises ProducerLost,
        DestinationRefused."""
        control = [(self._config.control_topic, partition) for partition in range(1 + slots)]
        _, open_at = self._topics.settled(control, GRACE_S)
        if open_at:
            check()
            self._end(own, slots, basis, open_at, check, patience)
        elif self._told and time.monotonic() - self._told_s > GRACE_S:
            self.tell(self._told)

    def _end(
        self,
        own: Producer,
        slots: int,
        basis: Basis,
        open_at: Mapping[Place, int],
        check: Callable[[], None],
        patience: Patience,
    ) -> None:
        tails = {
            partition: self._reader.everything(partition, patience, begin=offset)
            for (_, partition), offset in open_at.items()
        }
        basis = basis.on(document_of(self._reader.before_open(POSITION_PARTITION, patience), self._label))
        marks = [mark_of(self._reader.everything(1 + slot, patience), self._label) for slot in range(slots)]
        decided, commit_ts = outcomes(tails, marks, basis, self._label)
        _, open_rows = self._topics.settled(self._rows_of(basis.before, *tails.values()), 0)
        rows = sorted(open_rows)
        _log.warning(
            "brokers have left transactions open that they had decided; they are ended",
            topic=self._config.control_topic,
            committed=sorted(partition for partition, commit in decided.items() if commit),
            aborted=sorted(partition for partition, commit in decided.items() if not commit),
            partitions=[f"{topic}-{partition}" for topic, partition in rows],
        )
        for partition, commit in sorted(decided.items()):
            messages = self._filler(commit_ts) if commit else [_nothing()]
            if partition == POSITION_PARTITION:
                self._end_with(own, partition, rows, messages, commit=commit, patience=patience)
            else:
                self._end_slot(partition, rows, messages, check, commit=commit, patience=patience)
        for partition in sorted(partition for partition, commit in decided.items() if commit):
            self._check_committed(partition, tails[partition], patience)
        self.tell([*open_at, *rows])

    def _end_slot(
        self,
        partition: int,
        rows: Iterable[Place],
        messages: Sequence[Message],
        check: Callable[[], None],
        *,
        commit: bool,
        patience: Patience,
    ) -> None:
        while True:
            producer = new_producer(self._config, self._config.slot_id(partition - 1))
            try:
                producer.init(self._config.control_topic, patience)
                check()
                self._end_with(producer, partition, rows, messages, commit=commit, patience=patience)
                return
            except ProducerLost as error:
                patience.failed(error)
            finally:
                producer.drop()

    def _end_with(
        self,
        producer: Producer,
        partition: int,
        rows: Iterable[Place],
        messages: Sequence[Message],
        *,
        commit: bool,
        patience: Patience,
    ) -> None:
        """One transaction in every partition where the former one may be open."""
        producer.begin()
        for place in rows:
            producer.send(*place, messages, patience)
        producer.send(self._config.control_topic, partition, [_nothing()], patience)
        producer.flush(patience)
        if commit:
            producer.commit(patience)
        else:
            producer.abort(patience)

    def _check_committed(self, partition: int, tail: Sequence[Record], patience: Patience) -> None:
        """One that failed between its beginning and its commit has aborted the former one with it."""
        if tail[-1].offset not in {record.offset for record in self._reader.committed(partition, patience)}:
            raise DestinationRefused(
                f"{self._label}: brokers have taken back a transaction that they had acknowledged, at offset "
                f"{tail[0].offset} of partition {partition}: have the drainer begin again from an earlier commit_ts, "
                f"into new topics"
            )

    def _rows_of(self, before: Document, *tails: Sequence[Record]) -> list[Place]:
        """All partitions of the topics that were used."""
        counts: dict[str, int] = {}
        for document in (before, *(document_of(tail, self._label) for tail in tails)):
            counts.update({str(topic): int(count) for topic, count in document.notes.get(COUNTS_NOTE, {}).items()})
        return [(topic, partition) for topic, count in counts.items() for partition in range(count)]

    def tell(self, places: Sequence[Place]) -> None:
        """Where readers stand still, which may be at another producer's work: in the log and in the status."""
        what = f"{self._label}: readers"
        _, open_at = self._topics.settled(places, GRACE_S)
        self._told, self._told_s = list(open_at), time.monotonic()
        if open_at:
            text = told(open_at, self._config.address)
            _log.warning("readers of committed messages stand still", why=text)
            FAILURES.failed(what, DestinationDown(text), tries=TRIES_REPORTED)
        else:
            FAILURES.clear(what)


def _nothing() -> Message:
    return Message(_END_KEY, None, 0, 0)


def told(open_at: Mapping[Place, int], address: str) -> str:
    """For an operator: where readers stand still, and what names and ends that."""
    (topic, partition), offset = min(open_at.items())
    more = f", and in {len(open_at) - 1} partitions more" if len(open_at) > 1 else ""
    tool = f"kafka-transactions.sh --bootstrap-server {address}"
    place = f"--topic {topic} --partition {partition}"
    return (
        f"a transaction has no end at offset {offset} of {topic}-{partition}{more}. "
        f"`{tool} describe-producers {place}` names its producer. If that is not at work, "
        f"`{tool} abort {place} --start-offset {offset}` ends it, and takes its messages away"
    )
