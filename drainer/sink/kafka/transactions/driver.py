"""The driver's side of Kafka: take the changefeed over with a claim, and move its position in transactions.

    start:    read the claims ─► append a claim, whose offset is the epoch ─► init_transactions of every transactional
              id, which ends open transactions ─► read the position ─► write it again under the epoch
    transact: begin ─► the messages that the body sends, and its changes of the position ─► flush ─► commit
    lost:     a new producer: init_transactions ─► is the newest claim ours? if not: Fenced ─► read the position again

A producer is initialised *before* the newest claim is read. So either the next driver, which claims before it
initialises, fences this producer off, or this driver sees that driver's claim. Without transactions nothing fences off
an older driver. Then the driver looks for claims before each record of the position; a driver that is late by less than
that repeats rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Final

from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger

from drainer.protocol.encoder import Message
from drainer.sink.base import Identity, Intent
from drainer.sink.document_position import Document, DocumentPositionStore, label_of
from drainer.sink.errors import DestinationDown, DestinationRefused, PositionMoved
from drainer.sink.kafka.config import KafkaConfig
from drainer.sink.kafka.producer import Producer, ProducerLost, library_batch_bytes
from drainer.sink.kafka.producers import new_producer
from drainer.sink.kafka.reader import Reader
from drainer.sink.kafka.topics.admin import GRACE_S, Topics
from drainer.sink.kafka.topics.replicas import check_existing, check_new
from drainer.sink.kafka.transactions.claims import Claims
from drainer.sink.kafka.transactions.control_records import (
    POSITION_PARTITION,
    Owner,
    Place,
    changed,
    document_of,
    taken,
)
from drainer.sink.kafka.transactions.driver_transaction import Transaction
from drainer.sink.kafka.transactions.hanging import Filler, Hanging, check_there
from drainer.sink.kafka.transactions.outcomes import Basis
from drainer.sink.kafka.transactions.row_witness import told
from drainer.sink.position import Stored
from drainer.sink.retry import Patience

_INIT_AT_ONCE: Final = 8

_log = get_logger(__name__)


Body = Callable[[Transaction], None]
Done = Callable[[Stored], bool]


class Driver:
    """Hold the changefeed's claim and the driver's producer. Unusable until `start`, which sets `epoch` and `slots`.
    `batch_bytes`: see Producer; the next new producer uses it."""

    def __init__(
        self, config: KafkaConfig, topics: Topics, identity: Identity, stop: threading.Event, filler: Filler
    ) -> None:
        """`filler`: see Hanging."""
        self._config = config
        self._topics = topics
        self._identity = identity
        self._stop = stop
        self.label = label_of(identity, f"topic {config.control_topic} of {config.address}")
        self._reader = Reader(config.client, config.control_topic)
        self.hanging = Hanging(config, topics, self._reader, self.label, filler)
        self._producer: Producer | None = None
        self._document = Document()
        self._claims = Claims(config, identity, self._reader, self.label)
        self.epoch = -1
        # The end offset of the position's partition before the transaction that is being written, and its end offset
        # after that transaction if no other driver writes there; -1: not known.
        self._end_before = self._end_behind = -1
        self._ends: Mapping[Place, int] = {}  # the end offset of every partition at that time
        self.slots = 0
        self.batch_bytes = 0

    @property
    def claimed(self) -> tuple[Owner, str]:
        """Return the changefeed and the id of this driver's claim."""
        return self._claims.owner, self._claims.id

    @property
    def document(self) -> Document:
        """Return the committed state. Callers must not change it."""
        return self._document

    def patience(self, what: str) -> Patience:
        return Patience(f"{self.label}: {what}", self._config.retry_for_s, self._stop)

    def start(self, create: Callable[[], Document]) -> bool:
        """Take the changefeed over. Return True if no position existed; `create` then returns the first one.

        Raises DestinationRefused, Fenced if another driver takes over meanwhile, DestinationDown."""
        self.slots = self._control_slots()
        patience = self.patience("taking over")
        self.epoch = self._claims.take(patience)
        crash_point("kafka.claimed")
        if self._config.exactly_once:
            self._settle_slots()
        self.session(patience)
        fresh = self._document.stored is None
        document = create() if fresh else self._document
        self._put(taken(document, self.epoch, self._identity.node_id), patience)
        patience.over()
        return fresh

    def _control_slots(self) -> int:
        name = self._config.control_topic
        partitions = self._topics.counts().get(name, 0)
        if not partitions:
            check_new(self._topics, name, self._config)
            partitions = self._topics.create_control(name, 1 + self._config.slots, self._config.replication_factor)
        if partitions < 2:
            raise DestinationRefused(
                f"{self.label}: the control topic has one partition and needs one more for each slot: delete it, and "
                f"the drainer creates it again"
            )
        check_existing(self._topics, name, self._config)
        policy = self._topics.cleanup_policy(name)
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
            patience = self.patience(f"settling slot {slot}")
            while True:
                producer = new_producer(self._config, self._config.slot_id(slot))
                try:
                    producer.init(self._config.control_topic, patience)
                    patience.over()
                    return
                except ProducerLost as error:
                    patience.failed(error)
                finally:
                    producer.drop()

        with ThreadPoolExecutor(_INIT_AT_ONCE) as pool:
            list(pool.map(settle, range(self.slots)))

    def session(self, patience: Patience, finished: Intent | None = None) -> Producer:
        """Return the producer, after hanging transactions are ended. If the former producer was lost, create a new one
        and read the position again, as long as the newest claim is still ours. `finished`: see Basis. Raises
        ProducerLost, Fenced, PositionMoved."""
        self._end_before = self._end_behind = -1
        if self._producer is not None and self._config.exactly_once:
            # If the last transaction of this id has no marker yet, the next one would end it with its own outcome.
            if finished is None:
                self._end_hanging(self._producer, [POSITION_PARTITION], None, patience)
                self._end_before = self._ends[self._config.control_topic, POSITION_PARTITION]
            else:
                self._end_hanging(self._producer, range(1 + self.slots), finished, patience)
        if self._producer is None:
            producer = new_producer(self._config, self._config.driver_id, self.batch_bytes)
            try:
                if self._config.exactly_once:
                    producer.init(self._config.control_topic, patience)
                    records = self._reader.before_open(POSITION_PARTITION, patience)
                    before = document_of(records, self.label)
                    self._end_hanging(producer, range(1 + self.slots), finished, patience, before)
                crash_point("kafka.initialised")
                records = self._reader.committed(POSITION_PARTITION, patience)
                self._claims.check(records)
                self._document = self._not_older(document_of(records, self.label))
            except BaseException:
                producer.drop()
                raise
            self._producer = producer
        return self._producer

    def _end_hanging(
        self,
        producer: Producer,
        partitions: Iterable[int],
        finished: Intent | None,
        patience: Patience,
        before: Document | None = None,
    ) -> None:
        """End transactions that brokers left open (hanging.py). `before`: the position that was read, if it may differ
        from the one whose commit was acknowledged to this driver."""

        def check() -> None:
            self._claims.check(self._reader.everything(POSITION_PARTITION, patience, begin=self.epoch))

        basis = Basis(self._document, finished, before if before is not None else self._document)
        self._ends = self.hanging.end(producer, partitions, self.slots, basis, check, patience)

    def _ended(self, topic: str, partition: int) -> int:
        """Return the end offset that a partition of rows had before the transaction. For a topic that is used for the
        first time, brokers are queried before anything is sent there."""
        if not self._config.exactly_once:
            return 0
        if (topic, partition) not in self._ends:
            self._ends = {**self.hanging.meet(topic), **self._ends}
        return self._ends.get((topic, partition), 0)  # 0: the partition was deleted; sending to it fails

    def _not_older(self, read: Document) -> Document:
        """Return the position `read`. Raises PositionMoved if it is older than the acknowledged one: brokers may have
        lost records that they acknowledged."""
        before, now = self._document.stored, read.stored
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
        patience = self.patience("asking where the control topic ends")
        control = [(self._config.control_topic, partition) for partition in range(1 + self.slots)]
        while True:
            try:
                found, open_at = self._topics.settled(control, GRACE_S)
                if not open_at:
                    check_there(control, found, self.label)
                    if found[control[POSITION_PARTITION]] != self._end_behind:
                        self._claims.look(patience)
                    patience.over()
                    return tuple(found[place] for place in control)
                if self._config.exactly_once:
                    self._end_hanging(self.session(patience), range(1 + self.slots), None, patience)
                patience.failed(DestinationDown(told(open_at, self._config.address)))
            except ProducerLost as error:
                self.lose()
                patience.failed(error)

    def transact(self, what: str, body: Body, done: Done, finished: Intent | None = None) -> bool:
        """Run `body` in a transaction, repeatedly until one is committed. Return True if an attempt whose answer was
        lost turns out to be committed, which `done` decides from the position. `finished`: the range that this
        transaction closes. Raises what `body` raises; nothing of the transaction is committed then."""
        patience = self.patience(what)
        uncertain = False
        while True:
            try:
                producer = self.session(patience, finished)
                if uncertain and self._document.stored is not None and done(self._document.stored):
                    patience.over()
                    return True
                uncertain = False
                store = DocumentPositionStore(deepcopy(self._document), self.label)
                producer.begin()
                try:
                    transaction = Transaction(store, producer, patience, self._ended)
                    body(transaction)
                    uncertain = True
                    self._finish(producer, transaction, patience)
                except ProducerLost:
                    raise
                except BaseException:
                    self._given_up(producer, patience)
                    raise
                patience.over()
                return False
            except ProducerLost as error:
                _log.info("the driver's transaction failed and is tried again", what=what, why=str(error))
                self.lose()
                patience.failed(error)

    def _finish(self, producer: Producer, transaction: Transaction, patience: Patience) -> None:
        """Send the held-back messages and the position, and commit. Without transactions: all messages are acknowledged
        before the position is written, and the position before the held-back messages are sent."""
        once, after = self._config.exactly_once, transaction.store.document
        if once:
            transaction.send_the_last()
            transaction.note_places(self._ends, lambda places: self._topics.ends(places, committed=False))
        else:
            transaction.note_no_places()
            producer.flush(patience)
            if transaction.wrote:
                crash_point("kafka.rows_acknowledged")
            self._claims.look(patience)
        pairs = [Message(key, value, 0, 0) for key, value in changed(self._document, after)]
        producer.send(self._config.control_topic, POSITION_PARTITION, pairs, patience)
        producer.flush(patience)
        crash_point("sink.before_commit")
        producer.commit(patience)
        if pairs and self._end_before >= 0:
            self._end_behind = self._end_before + len(pairs) + 1  # the commit marker
        self._document = after
        crash_point("sink.after_commit")
        if not once:
            transaction.send_the_last()
            producer.flush(patience)

    def _given_up(self, producer: Producer, patience: Patience) -> None:
        """Abort what the body has sent. If that fails, the next producer aborts it."""
        try:
            producer.abort(patience)
        except BaseException as error:  # noqa: BLE001  the first error is the one to report
            _log.info("the driver's transaction could not be aborted; the next producer aborts it", why=str(error))
            self.lose()

    def _put(self, document: Document, patience: Patience) -> None:
        """Write the complete state under the new epoch."""

        def put(transaction: Transaction) -> None:
            transaction.store.document.stored = document.stored
            transaction.store.document.notes = document.notes
            transaction.store.document.jobs = document.jobs

        self.transact("taking over", put, lambda stored: stored.epoch == self.epoch)

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
