"""The driver's side of Kafka: take the changefeed over with a claim, and move its position in transactions.

    start:    read the claims ─► append a claim, whose offset is the epoch ─► init_transactions of every transactional
              id, which ends open transactions ─► read the position ─► write it again under the epoch
    transact: begin ─► the messages that the body sends, and its changes of the position ─► flush ─► commit
    lost:     a new producer: init_transactions ─► is the newest claim ours? if not: Fenced ─► read the position again

A start waits until no transaction is open any more in the control topic and in the topics for rows (rule 29).

A producer is initialised *before* the newest claim is read. So either the next driver, which claims before it
initialises, fences this producer off, or this driver sees that driver's claim. Without transactions nothing fences off
an older driver. Then the driver looks for claims before each record of the position; a driver that is late by less than
that repeats rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Final

from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger

from drainer.protocol.encoder import Message
from drainer.sink.base import Identity
from drainer.sink.document_position import Document, DocumentPositionStore, label_of
from drainer.sink.errors import DestinationDown, DestinationRefused, PositionMoved
from drainer.sink.kafka.producer import Producer, ProducerLost, library_batch_bytes, new_producer
from drainer.sink.kafka.publication import Publication
from drainer.sink.kafka.reader import Reader, open_transactions_text
from drainer.sink.kafka.settings.section import KafkaSection
from drainer.sink.kafka.topics.admin import CONTROL_TOPIC, Topics, check_existing, check_new
from drainer.sink.kafka.transactions.control_records import (
    POSITION_PARTITION,
    Claims,
    KafkaPartition,
    Owner,
    changed,
    document_of,
    taken,
)
from drainer.sink.position import Stored
from drainer.sink.retry import RetryDeadline

_INIT_AT_ONCE: Final = 8
# A transaction that stays open for longer after its end was ordered is reported. Brokers that have just started write
# markers some seconds late.
_GRACE_S: Final = 10.0

_log = get_logger(__name__)


@dataclass(eq=False)
class Transaction:
    """Send the messages of one transaction and hold its changed state in `store`. `sent`: how many messages were sent;
    `last`: those that are sent after everything else."""

    store: DocumentPositionStore
    producer: Producer
    deadline: RetryDeadline
    sent: int = 0
    last: list[tuple[str, int, Sequence[Message]]] = field(default_factory=list)

    def send(self, topic: str, partition: int, messages: Iterable[Message]) -> None:
        """Send messages in this order."""
        self.sent += self.producer.send(topic, partition, messages, self.deadline)

    def resolve(self, publication: Publication, commit_ts: int) -> None:
        """Send a resolved event to every partition, after everything else. Without transactions: after the position,
        because rows must not be repeated after these messages."""
        messages = publication.encoder.resolved(commit_ts)
        for topic, partition in publication.partitions() if messages else ():
            self.last.append((topic, partition, messages))

    def send_the_last(self) -> None:
        for topic, partition, messages in self.last:
            self.send(topic, partition, messages)


Body = Callable[[Transaction], None]
Done = Callable[[Stored], bool]


class Driver:
    """Hold the changefeed's claim and the driver's producer. Unusable until `start`, which sets `epoch` and `slots`.
    `batch_bytes`: see Producer; the next new producer uses it."""

    def __init__(self, config: KafkaSection, topics: Topics, identity: Identity, stop: threading.Event) -> None:
        self._config = config
        self._topics = topics
        self._identity = identity
        self._stop = stop
        self.label = label_of(identity, f"topic {config.control_topic} of {config.brokers}")
        self._reader = Reader(config.client_settings(), config.control_topic)
        self._producer: Producer | None = None
        self.document = Document()  # the committed state; callers must not change it
        self._claims = Claims(config, identity, self._reader, self.label)
        self.epoch = -1
        # The end offset of the position's partition if no other driver has written there; -1: not known.
        self._position_end = -1
        self.slots = 0
        self.batch_bytes = 0

    @property
    def claimed(self) -> tuple[Owner, str]:
        """Return the changefeed and the id of this driver's claim."""
        return self._claims.owner, self._claims.id

    def deadline(self, what: str) -> RetryDeadline:
        return RetryDeadline(f"{self.label}: {what}", self._config.retry_for.total_seconds(), self._stop)

    def start(self, create: Callable[[], Document]) -> bool:
        """Take the changefeed over. Return True if no position existed; `create` then returns the first one.

        Raises DestinationRefused, Fenced if another driver takes over meanwhile, DestinationDown."""
        self.slots = self._control_slots()
        deadline = self.deadline("taking over")
        self.epoch = self._claims.take(deadline)
        crash_point("kafka.claimed")
        if self._config.exactly_once:
            self._settle_slots()
        self.session(deadline)
        if self._config.exactly_once:
            self.wait_until_ended(self._control())
        fresh = self.document.stored is None
        document = taken(create() if fresh else self.document, self.epoch, self._identity.node_id)

        def put(transaction: Transaction) -> None:  # the complete state under the new epoch
            vars(transaction.store.document).update(vars(document))

        self.transact("taking over", put, lambda stored: stored.epoch == self.epoch)
        deadline.over()
        return fresh

    def _control_slots(self) -> int:
        name = self._config.control_topic
        partitions = self._topics.counts().get(name, 0)
        if not partitions:
            check_new(self._topics, name, self._config)
            replicas = self._config.replication_factor
            partitions = self._topics.create(name, 1 + self._config.slots, replicas, CONTROL_TOPIC)
        if partitions < 2:
            raise DestinationRefused(
                f"{self.label}: the control topic has one partition and needs one more for each slot: delete it, and "
                f"the drainer creates it again"
            )
        check_existing(self._topics, [name], self._config)
        policy = self._topics.settings([name], "cleanup.policy")[name]
        if policy != "compact":
            raise DestinationRefused(
                f"{self.label}: the control topic has cleanup.policy={policy}, which deletes the position after a "
                f"time: set cleanup.policy=compact"
            )
        return partitions - 1

    def _settle_slots(self) -> None:
        """End transactions that writers of slots left open, and fence those writers off. Each transactional id is
        initialised by a producer of its own."""

        def settle(slot: int) -> None:
            deadline = self.deadline(f"settling slot {slot}")

            def init() -> None:
                producer = new_producer(self._config, self._config.slot_id(slot))
                try:
                    producer.init(self._config.control_topic, deadline)
                finally:
                    producer.drop()

            deadline.repeat(init, (ProducerLost,))

        with ThreadPoolExecutor(_INIT_AT_ONCE) as pool:
            list(pool.map(settle, range(self.slots)))

    def wait_until_ended(self, topic_partitions: Sequence[KafkaPartition]) -> dict[KafkaPartition, int]:
        """Wait until no transaction is open in these partitions, and return their end offsets. Transactions of writers
        that were killed are ended before, by initialising their transactional ids. Raises DestinationDown with the
        command that ends the transaction if it stays open for retry-for."""
        deadline = self.deadline("waiting for the end of an open transaction")
        while True:
            ends, open_at = self._topics.settled(topic_partitions, _GRACE_S)
            if not open_at:
                deadline.over()
                return ends
            deadline.failed(DestinationDown(open_transactions_text(open_at, self._config.brokers)))

    def _control(self) -> list[KafkaPartition]:
        return [(self._config.control_topic, partition) for partition in range(1 + self.slots)]

    def session(self, deadline: RetryDeadline) -> Producer:
        """Return the producer. If the former one was lost, create a new one and read the position again, as long as the
        newest claim is still ours. Raises ProducerLost, Fenced, PositionMoved."""
        if self._producer is None:
            self._position_end = -1
            producer = new_producer(self._config, f"{self._config.control_topic}-driver", self.batch_bytes)
            try:
                producer.init(self._config.control_topic, deadline)
                crash_point("kafka.initialised")
                end = self._reader.settled_end(POSITION_PARTITION, deadline)
                records = self._reader.committed(POSITION_PARTITION, deadline)
                self._claims.check(records)
                self.document = self._not_older(document_of(records, self.label))
            except BaseException:
                producer.drop()
                raise
            self._producer = producer
            if self._config.exactly_once:  # otherwise every transaction looks for claims
                self._position_end = end
        return self._producer

    def _not_older(self, read: Document) -> Document:
        """Return the position `read`. Raises PositionMoved if it is older than the acknowledged one: brokers may have
        lost records that they acknowledged."""
        before, now = self.document.stored, read.stored
        if before is not None and (now is None or now.commit_ts < before.commit_ts):
            raise PositionMoved(
                f"{self.label}: brokers acknowledged the position {before.commit_ts}, and the stored position is "
                f"{now.commit_ts if now is not None else 'missing'} now: the drainer must start again from there"
            )
        return read

    def ends(self) -> tuple[int, ...]:
        """Return the end offset of each partition of the control topic. While these offsets stay the same, nothing was
        written there and no other driver has taken over. Raises Fenced if another driver has: its earlier records would
        otherwise pass for this driver's."""
        deadline = self.deadline("asking where the control topic ends")
        control = self._control()
        while gone := set(control) - (found := self.wait_until_ended(control)).keys():
            topic, partition = min(gone)
            deadline.failed(DestinationDown(f"partition {partition} of topic {topic} was not found"))
        end = found[control[POSITION_PARTITION]]
        if end != self._position_end:
            self._claims.poll(deadline)
            if self._config.exactly_once:
                self._position_end = end
        deadline.over()
        return tuple(found[topic_partition] for topic_partition in control)

    def transact(self, what: str, body: Body, done: Done) -> None:
        """Run `body` in a transaction, repeatedly until one is committed. `done` decides from the position whether an
        attempt whose answer was lost is committed. Raises what `body` raises: then nothing is committed."""
        deadline = self.deadline(what)
        uncertain = False
        while True:
            try:
                producer = self.session(deadline)
                if uncertain and self.document.stored is not None and done(self.document.stored):
                    deadline.over()
                    return
                uncertain = False
                store = DocumentPositionStore(deepcopy(self.document), self.label)
                producer.begin()
                try:
                    transaction = Transaction(store, producer, deadline)
                    body(transaction)
                    uncertain = True
                    self._finish(producer, transaction, deadline)
                except ProducerLost:
                    raise
                except BaseException:
                    self._given_up(producer, deadline)
                    raise
                deadline.over()
                return
            except ProducerLost as error:
                _log.info("the driver's transaction failed and is tried again", what=what, why=str(error))
                self.lose()
                deadline.failed(error)

    def _finish(self, producer: Producer, transaction: Transaction, deadline: RetryDeadline) -> None:
        """Send the held-back messages and the position, and commit. Without transactions: all messages are acknowledged
        before the position is written, and the position before the held-back messages are sent."""
        once, after = self._config.exactly_once, transaction.store.document
        if once:
            transaction.send_the_last()
        else:
            producer.flush(deadline)
            if transaction.sent:
                crash_point("kafka.rows_acknowledged")
            self._claims.poll(deadline)
        pairs = [Message(key, value, 0, 0) for key, value in changed(self.document, after)]
        producer.send(self._config.control_topic, POSITION_PARTITION, pairs, deadline)
        producer.flush(deadline)
        crash_point("sink.before_commit")
        producer.commit(deadline)
        if pairs and self._position_end >= 0:
            self._position_end += len(pairs) + 1  # the commit marker
        self.document = after
        crash_point("sink.after_commit")
        if not once:
            transaction.send_the_last()
            producer.flush(deadline)

    def _given_up(self, producer: Producer, deadline: RetryDeadline) -> None:
        """Abort what the body has sent. If that fails, the next producer aborts it."""
        self._position_end = -1
        try:
            producer.abort(deadline)
        except BaseException as error:  # noqa: BLE001  the first error is the one to report
            _log.info("the driver's transaction could not be aborted; the next producer aborts it", why=str(error))
            self.lose()

    def use_batches(self, topic_bytes: int) -> bool:
        """Note the largest batch that the topics accept, in bytes. Return True if the present producer makes larger
        batches and must be replaced."""
        smaller = library_batch_bytes(topic_bytes) < library_batch_bytes(self.batch_bytes)
        self.batch_bytes = topic_bytes
        return smaller and self._producer is not None

    def lose(self) -> None:
        if self._producer is not None:
            self._producer.drop()
            self._producer = None

    def close(self) -> None:
        self.lose()
        self._reader.close()
