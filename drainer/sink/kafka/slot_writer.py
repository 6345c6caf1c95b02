"""Send one slot's messages from an executor, in one transaction with the slot's mark.

A process keeps its producers, because initialising one costs several requests. A kept producer need not read claims and
marks: a driver that took over, or another attempt at the slot, has initialised the same transactional id and so fenced
the kept producer off. A new producer is initialised first, and reads claims and marks then.
"""

from __future__ import annotations

import json
import math
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger
from binlog.topic.kafka import Record

from drainer.changes import ChangeSegment
from drainer.protocol.encoder import Message, RequiredSchema
from drainer.protocol.errors import SchemaIdMissing
from drainer.sink.base import Intent, Receipt
from drainer.sink.errors import DestinationError
from drainer.sink.kafka.producer import Producer, ProducerLost, new_producer
from drainer.sink.kafka.publication import Publication
from drainer.sink.kafka.reader import Reader
from drainer.sink.kafka.settings.section import KafkaSection
from drainer.sink.kafka.transactions.control_records import (
    MARK_KEY,
    POSITION_PARTITION,
    Owner,
    check_claims,
    is_marked,
    mark_value,
)
from drainer.sink.retry import RetryDeadline

_KEPT_MAX: Final = 32
_ABORT_S: Final = 10.0
_MARK_OFFSETS: Final = 2  # that a transaction takes in its slot's partition: the mark and the commit marker

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A producer that this process keeps. `marked`: the range that it committed last, or whose mark it read; `end`: the
    end offset of the slot's partition of the control topic after that mark if no other process writes there, -1: not
    known."""

    producer: Producer
    marked: Intent | None
    end: int = -1


_Key = tuple[str, str, int, int]  # brokers, control topic, epoch, slot
_kept: OrderedDict[_Key, _Kept] = OrderedDict()
_Where = tuple[str, str]  # brokers, control topic
_readers: dict[_Where, Reader] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class KafkaSlotWriter:
    """See base.SlotWriter. `label`: the changefeed and its destination, for errors; `ends`: the end offsets of the
    control topic's partitions just after the driver recorded the intent, () for an intent that was recorded earlier;
    `owner`: the changefeed whose claims count; `claim_id`: that of the driver's claim, at offset `epoch`."""

    config: KafkaSection
    publication: Publication
    epoch: int
    intent: Intent
    label: str
    ends: tuple[int, ...] = ()
    owner: Owner | None = None
    claim_id: str = ""

    def write(self, slot: int, segment: ChangeSegment, retry_for_s: float = math.inf) -> Receipt:
        deadline = RetryDeadline(f"{self.label}: slot {slot}", min(self.config.retry_for.total_seconds(), retry_for_s))
        while True:
            kept = self._taken(slot)
            if kept is not None and self._is_overtaken(kept, slot):
                kept.producer.drop()
                kept = None
            try:
                if kept is None:
                    kept = self._opened(slot, deadline)
                if kept.marked == self.intent:
                    receipt = Receipt(slot, segment.change_count, 1, 1)
                else:
                    receipt = self._write(kept.producer, slot, segment, deadline)
            except ProducerLost as error:
                # Also if fenced off: by another attempt, or by a new driver, whose claim the next producer sees.
                _log.info(
                    "a slot's transaction failed; the slot is written again with a new producer",
                    slot=slot,
                    transactional_id=self.config.slot_id(slot),
                    why=str(error),
                )
                if kept is not None:
                    kept.producer.drop()
                deadline.failed(error)
            except BaseException as error:
                if kept is not None:
                    self._abort(kept.producer)
                if not isinstance(error, SchemaIdMissing):
                    raise
                # A table version that the driver has not seen yet. Only the driver talks to the registry.
                required = self.publication.required_schemas(self.publication.tables_in(segment))
                return Receipt(slot, segment.change_count, 0, 0, json.dumps([list(one) for one in required]))
            else:
                deadline.over()
                self._keep(slot, replace(kept, marked=self.intent, end=self._end_behind(slot)))
                return receipt

    def _is_overtaken(self, kept: _Kept, slot: int) -> bool:
        """Return whether another process has written the slot's last mark, and so has fenced this producer off. Without
        this check the producer would find out only after it has sent the complete slot, as it still does in cases that
        are not seen here."""
        return bool(self.ends) and kept.end >= 0 and kept.marked != self.intent and kept.end != self.ends[1 + slot]

    def _end_behind(self, slot: int) -> int:
        """Return where the slot's partition ends after this attempt's mark and its commit marker; -1: not known."""
        return self.ends[1 + slot] + _MARK_OFFSETS if self.ends and self.config.exactly_once else -1

    def _abort(self, producer: Producer) -> None:
        """Abort the transaction and drop the producer. Otherwise read-committed consumers could not read past the
        transaction until transaction-timeout is over."""
        try:
            producer.abort(
                RetryDeadline(f"{self.label}: aborting", min(self.config.retry_for.total_seconds(), _ABORT_S))
            )
        except DestinationError as error:
            _log.info(
                "a slot's transaction could not be aborted; the next producer with its transactional_id aborts "
                "it, or brokers do when transaction-timeout is over",
                transactional_id=producer.name,
                why=str(error),
            )
        producer.drop()

    def _opened(self, slot: int, deadline: RetryDeadline) -> _Kept:
        producer = new_producer(self.config, self.config.slot_id(slot), self.publication.batch_bytes)
        try:
            producer.init(self.config.control_topic, deadline)
            crash_point("kafka.slot_initialised")
            reader = self._reader()
            if self._unchanged(reader, slot, deadline):
                return _Kept(producer, None)
            claims = reader.everything(POSITION_PARTITION, deadline, begin=self.epoch)
            self._check(claims)
            marks = reader.committed(1 + slot, deadline)
            return _Kept(producer, self.intent if is_marked(marks, self.intent, self.label) else None)
        except BaseException:
            producer.drop()
            raise

    def _unchanged(self, reader: Reader, slot: int, deadline: RetryDeadline) -> bool:
        """Return whether neither a claim nor a mark was written since the driver recorded the range. Raises Fenced if
        the control topic was created again and happens to end there, too."""
        if not self.ends or any(reader.end(at, deadline) != self.ends[at] for at in (POSITION_PARTITION, 1 + slot)):
            return False
        self._check(reader.everything(POSITION_PARTITION, deadline, begin=self.epoch, records_max=1))
        return True

    def _check(self, records: Iterable[Record]) -> None:
        check_claims(records, self.epoch, self.label, self.owner, self.claim_id)

    def _reader(self) -> Reader:
        """Return this process's reader of the control topic."""
        where = self.config.brokers, self.config.control_topic
        with _lock:
            if where not in _readers:
                _readers[where] = Reader(self.config.client_settings(), self.config.control_topic)
            return _readers[where]

    def _write(self, producer: Producer, slot: int, segment: ChangeSegment, deadline: RetryDeadline) -> Receipt:
        topic, once = self.config.control_topic, self.config.exactly_once
        producer.begin()
        for outgoing in self.publication.rows_of_slot(segment, slot, self.intent.slots):
            producer.send(outgoing.topic, outgoing.partition, outgoing.messages, deadline)
        crash_point("kafka.slot_sent")
        if not once:
            producer.flush(deadline)  # rows must be acknowledged before their mark is written
        producer.send(topic, 1 + slot, (Message(MARK_KEY, mark_value(self.intent), 0, 0),), deadline)
        producer.flush(deadline)
        crash_point("kafka.slot_flushed")
        producer.commit(deadline)
        crash_point("kafka.slot_committed")
        return Receipt(slot, segment.change_count, 1, 0)

    def _key(self, slot: int) -> _Key:
        return self.config.brokers, self.config.control_topic, self.epoch, slot

    def _taken(self, slot: int) -> _Kept | None:
        """Take the slot's kept producer out of the cache: a concurrent attempt in this process opens its own."""
        with _lock:
            return _kept.pop(self._key(slot), None)

    def _keep(self, slot: int, kept: _Kept) -> None:
        """Keep the producer for the slot's next range. Without transactions nothing would fence it off, so it is
        dropped, and every attempt reads claims and marks first."""
        if not self.config.exactly_once:
            kept.producer.drop()
            return
        with _lock:
            former = _kept.pop(self._key(slot), None)
            _kept[self._key(slot)] = kept
            dropped = [former] if former is not None else []
            while len(_kept) > _KEPT_MAX:
                dropped.append(_kept.popitem(last=False)[1])
        for one in dropped:
            one.producer.drop()


def required_of(text: str) -> list[RequiredSchema]:
    """Return the schemas that must be registered, from the text in which a receipt carries them."""
    return [RequiredSchema(subject, schema) for subject, schema in json.loads(text)]
