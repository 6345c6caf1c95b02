"""End hanging transactions (outcomes.py). The driver looks for them when it starts, before each of its transactions,
and before its first write to a topic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from binlog.runtime.log import get_logger

from drainer.failures import FAILURES, TRIES_REPORTED
from drainer.protocol.encoder import Message
from drainer.sink.document_position import Document
from drainer.sink.errors import DestinationDown, DestinationRefused
from drainer.sink.kafka.config import KafkaConfig
from drainer.sink.kafka.producer import Producer, ProducerLost
from drainer.sink.kafka.producers import new_producer
from drainer.sink.kafka.reader import Reader, Record
from drainer.sink.kafka.topics.admin import GRACE_S, Topics
from drainer.sink.kafka.transactions.control_records import COUNTS_NOTE, POSITION_PARTITION, Place, document_of, nothing
from drainer.sink.kafka.transactions.outcomes import Basis, Outcomes, outcomes
from drainer.sink.kafka.transactions.row_witness import RowWitness, told
from drainer.sink.retry import Patience

_log = get_logger(__name__)

Filler = Callable[[int], Sequence[Message]]


class Hanging:
    """End the hanging transactions of one changefeed, and report those that stay open. `filler`: returns, for a
    commit_ts, the messages which say that every row up to it was sent; none if the protocol has no such message."""

    def __init__(self, config: KafkaConfig, topics: Topics, reader: Reader, label: str, filler: Filler) -> None:
        self._config = config
        self._topics = topics
        self._reader = reader
        self._label = label
        self._filler = filler
        self._met: dict[str, int] = {}  # topics that no position may name yet, with their numbers of partitions
        self._told: dict[Place, int] = {}
        self._told_s = 0.0

    def end(
        self,
        own: Producer,
        partitions: Iterable[int],
        slots: int,
        basis: Basis,
        check: Callable[[], None],
        patience: Patience,
    ) -> dict[Place, int]:
        """End this changefeed's hanging transactions in `partitions` of the control topic and in the partitions of the
        topics that the position names. Return the end offset of each of these partitions afterwards. `own`: the
        driver's producer, initialised and without a transaction; `basis`: its `before` is the position as it was read
        last; `check`: raises if another driver has taken over. Raises ProducerLost, DestinationRefused."""
        control = [(self._config.control_topic, partition) for partition in partitions]
        places = [*control, *self._rows_of(basis.before)]
        ends, open_at = self._topics.settled(places, GRACE_S, self._told)
        if open_at:
            check()
            self._end(own, slots, basis, open_at, check, patience)
            ends = self._topics.ends(places, committed=False)
        elif self._told and time.monotonic() - self._told_s > GRACE_S:
            self._tell_again()
        check_there(control, ends, self._label)
        return ends

    def meet(self, topic: str) -> dict[Place, int]:
        """The end offset of each partition of a topic, before the driver's transaction first writes there. Raises
        ProducerLost where an earlier attempt is still open in one: this transaction's commit would commit it, too. The
        topic is known from then on, so that `end` ends that attempt."""
        places = [(topic, partition) for partition in range(self._topics.counts().get(topic, 0))]
        ends, open_at = self._topics.settled(places, GRACE_S, self._told)
        self._met[topic] = len(places)
        if open_at:
            raise ProducerLost(f"{self._label}: {told(open_at, self._config.address)}")
        return ends

    def _end(
        self,
        own: Producer,
        slots: int,
        basis: Basis,
        open_at: Mapping[Place, int],
        check: Callable[[], None],
        patience: Patience,
    ) -> None:
        control = [(self._config.control_topic, partition) for partition in range(1 + slots)]
        tails = {
            partition: self._reader.everything(partition, patience, begin=offset)
            for (_, partition), offset in self._topics.settled(control, 0)[1].items()
        }
        before = document_of(self._reader.before_open(POSITION_PARTITION, patience), self._label)
        there, open_rows = self._topics.settled(self._rows_of(before, *tails.values()), 0)
        with RowWitness(self._config, self._label, there, open_rows, patience) as witness:
            found = outcomes(
                tails,
                open_rows,
                [self._reader.everything(1 + slot, patience) for slot in range(slots)],
                {slot: self._reader.before_open(1 + slot, patience) for slot in range(slots) if 1 + slot not in tails},
                basis.on(before),
                self._label,
                witness.is_committed,
                witness.is_settled_behind,
            )
        self._log(found, open_rows)
        commit_ts = found.document.stored.commit_ts if found.document.stored is not None else 0
        for commit in (True, False):
            messages = self._filler(commit_ts) if commit else [nothing()]
            rows = sorted(place for place, outcome in found.driver.items() if outcome == commit and messages)
            partitions = [POSITION_PARTITION] if found.control.get(POSITION_PARTITION) == commit else []
            if rows or partitions:
                self._end_with(own, partitions, rows, messages, commit=commit, patience=patience)
        for slot in sorted({*found.slots, *(partition - 1 for partition in found.control if partition)}):
            partitions = [1 + slot] if 1 + slot in found.control else []
            places = found.slots.get(slot, {})
            commit = found.control[1 + slot] if partitions else any(places.values())
            messages = self._filler(commit_ts) if commit else [nothing()]
            rows = sorted(places) if messages else []
            if rows or partitions:
                self._end_slot(slot, partitions, rows, messages, check, commit=commit, patience=patience)
        for partition in sorted(partition for partition, commit in found.control.items() if commit):
            self._check_committed(partition, tails[partition], patience)
        self.tell([*open_at, *open_rows])
        if not self._filler(commit_ts):
            self._check_left(found)

    def _check_left(self, found: Outcomes) -> None:
        """Raise ProducerLost if a committed transaction stays open because the protocol has no message that could end
        it: the next transaction of its id could undo it."""
        decided = [*found.driver.items(), *(of for places in found.slots.values() for of in places.items())]
        left = {place: self._told.pop(place) for place, commit in decided if commit and place in self._told}
        if left:
            raise ProducerLost(
                f"{self._label}: {told(left, self._config.address)}. It was committed, and only a resolved event "
                f"could end it, but this protocol has no resolved events: start once with them (enable-tidb-extension, "
                f"avro-enable-watermark or another protocol), or start again with new topics"
            )

    def _log(self, found: Outcomes, open_rows: Iterable[Place]) -> None:
        decided = {(self._config.control_topic, partition): commit for partition, commit in found.control.items()}
        for places in (found.driver, *found.slots.values()):
            decided.update(places)
        _log.warning(
            "brokers have left transactions open that were committed or aborted before: read-committed consumers "
            "cannot read past them; they are committed and aborted again in these partitions, before anything else is "
            "written",
            control_topic=self._config.control_topic,
            committed=_names(place for place, commit in decided.items() if commit),
            aborted=_names(place for place, commit in decided.items() if not commit),
            left_open=_names(place for place in open_rows if place not in decided),
        )

    def _end_slot(
        self,
        slot: int,
        partitions: Sequence[int],
        rows: Sequence[Place],
        messages: Sequence[Message],
        check: Callable[[], None],
        *,
        commit: bool,
        patience: Patience,
    ) -> None:
        while True:
            producer = new_producer(self._config, self._config.slot_id(slot))
            try:
                producer.init(self._config.control_topic, patience)
                check()
                self._end_with(producer, partitions, rows, messages, commit=commit, patience=patience)
                return
            except ProducerLost as error:
                patience.failed(error)
            finally:
                producer.drop()

    def _end_with(
        self,
        producer: Producer,
        partitions: Sequence[int],
        rows: Sequence[Place],
        messages: Sequence[Message],
        *,
        commit: bool,
        patience: Patience,
    ) -> None:
        """Run one transaction in every partition where the former one may be open. Its end also ends the former one."""
        producer.begin()
        for place in rows:
            producer.send(*place, messages, patience)
        for partition in partitions:
            producer.send(self._config.control_topic, partition, [nothing()], patience)
        producer.flush(patience)
        if commit:
            producer.commit(patience)
        else:
            producer.abort(patience)

    def _check_committed(self, partition: int, tail: Sequence[Record], patience: Patience) -> None:
        """Raise DestinationRefused if the former transaction was not committed: if the one that was to end it failed
        before its commit, brokers aborted both."""
        if tail[-1].offset not in {record.offset for record in self._reader.committed(partition, patience)}:
            raise DestinationRefused(
                f"{self._label}: brokers aborted a transaction whose commit they had acknowledged, at offset "
                f"{tail[0].offset} of partition {partition}: start the drainer again from an earlier commit_ts, with "
                f"new topics"
            )

    def _rows_of(self, before: Document, *tails: Sequence[Record]) -> list[Place]:
        """Return all partitions of the topics that these positions name, and of those that were used since."""
        counts = dict(self._met)
        for document in (before, *(document_of(tail, self._label) for tail in tails)):
            for topic, count in document.notes.get(COUNTS_NOTE, {}).items():
                counts[str(topic)] = max(int(count), counts.get(str(topic), 0))
        return [(topic, partition) for topic, count in counts.items() for partition in range(count)]

    def tell(self, places: Sequence[Place]) -> None:
        """Report, in the log and in the status, which of these partitions have a transaction that stays open. It may
        belong to another producer, which may be at work."""
        self._tell(self._topics.settled(places, GRACE_S)[1])

    def _tell_again(self) -> None:
        """Report the transactions that are still open at the same offset, without another grace period."""
        _, open_at = self._topics.settled(list(self._told), 0)
        self._tell({place: at for place, at in open_at.items() if self._told[place] == at})

    def _tell(self, open_at: dict[Place, int]) -> None:
        what = f"{self._label}: open transactions"
        self._told, self._told_s = open_at, time.monotonic()
        if open_at:
            text = told(open_at, self._config.address)
            _log.warning("read-committed consumers cannot read past an open transaction", why=text)
            FAILURES.failed(what, DestinationDown(text), tries=TRIES_REPORTED)
        else:
            FAILURES.clear(what)


def _names(places: Iterable[Place]) -> list[str]:
    return [f"{topic}-{partition}" for topic, partition in sorted(places)]


def check_there(control: Iterable[Place], ends: Mapping[Place, int], label: str) -> None:
    """Raise ProducerLost if a partition of the control topic was not found."""
    gone = [place for place in control if place not in ends]
    if gone:
        raise ProducerLost(f"{label}: partition {gone[0][1]} of {gone[0][0]} was not found")
