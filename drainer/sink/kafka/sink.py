"""Kafka, exactly once. The methods are in the order of drainer/sink/base.py.

What the driver writes (rows, DDLs, resolved events) is sent in the transaction that moves the position. What executors
write is sent in one transaction for each slot, with the slot's mark. These transactions run between two of the
driver's: the first records the intent, and the second closes it and sends the resolved events of the range, after all
of its rows.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Final

from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger

from drainer.batch.work import Pieces
from drainer.changes import ChangeSegment
from drainer.dispatch import DispatchError
from drainer.dispatch.ddl_messages import check_ddl, check_view, unfit_table, unpublished
from drainer.dispatch.dispatcher import PartitionSlotting
from drainer.dispatch.piece_order import OrderedPart, PartsOf, loaded_parts
from drainer.dispatch.rules import TOPIC_LENGTH_MAX
from drainer.schema.steps import Ddl
from drainer.schema.view import SchemaView
from drainer.sink.base import (
    NO_QUESTION,
    FirstStart,
    Identity,
    Intent,
    Position,
    Receipt,
    TableLoad,
    TableName,
    Wants,
)
from drainer.sink.document_position import Document, DocumentPositionStore
from drainer.sink.errors import DestinationError, DestinationRefused, PositionMoved
from drainer.sink.kafka.producer import ProducerLost
from drainer.sink.kafka.publication import BootstrapSchedule, KeylessTables, Publication, TopicTable
from drainer.sink.kafka.settings.section import KafkaSection
from drainer.sink.kafka.slot_writer import KafkaSlotWriter, required_of
from drainer.sink.kafka.topics.counts import TopicCounts, announce, take_up, take_up_after_range
from drainer.sink.kafka.transactions.driver import Body, Driver, Transaction
from drainer.sink.position import DONE, JobMark, Stored, purge_old_jobs
from drainer.sink.settings import SyncerSettings

# Tables' schemas before their rows, for readers that begin here; where the protocol has such messages (Simple).


def describe(
    transaction: Transaction,
    publication: Publication,
    schedule: BootstrapSchedule,
    tables: Sequence[TopicTable],
    *,
    rows: int,
    now_s: float,
) -> None:
    """Send the schema of each table, as it was last written, if it is due. `schedule` is changed: discard it if the
    transaction fails. `rows`: how many rows of all these tables follow."""
    if not publication.sends_bootstraps:
        return
    stored = transaction.store.document.stored
    commit_ts = stored.commit_ts if stored is not None else 0
    newest = {(topic, table.id): table for topic, table in sorted(tables, key=lambda one: one[1].written_version)}
    for (topic, _), table in newest.items():
        partitions = schedule.due(topic, table, rows=rows, partitions=publication.counts[topic], now_s=now_s)
        for partition in partitions:
            transaction.send(topic, partition, publication.encoder.bootstrap(table, commit_ts))


_STAGE: Final = "write"

_log = get_logger(__name__)


def make(to: KafkaSection, syncer: SyncerSettings) -> KafkaSink:
    """Return the sink, not opened yet. Raises ConfigError."""
    return KafkaSink(to)


class KafkaSink:
    """See base.ChangeSink, base.ParallelSink and base.ChecksTables. Closed until `open`."""

    wants: Final = Wants.CHANGES
    stored_generated: Final = True

    def __init__(self, config: KafkaSection) -> None:
        """Raises ConfigError."""
        publication = Publication(config.options(), config.router(), {}, {})  # without topics yet
        self.name = f"kafka://{config.brokers}/{publication.router.default_topic}"
        self.retry_for_s = config.retry_for.total_seconds()
        self.advance_s = config.resolved_interval.total_seconds()
        self._config = config
        self._publication = publication
        self._monotonic = time.monotonic
        self._stop = threading.Event()
        self._driver: Driver | None = None
        self._topics: TopicCounts | None = None
        self.commit_ts = 0
        self._schema_version = 0
        self._moved_s = 0.0
        # Only for the thread that plans: a Publication is not safe for use by several threads.
        self._planning = replace(publication)
        self._describes = publication.encoder.registers or publication.sends_bootstraps
        self._viewed: Sequence[TopicTable] = ()
        self._unfit: DispatchError | None = None  # of the last view that was prepared
        self._schedule = BootstrapSchedule(publication.options)
        self._keyless = KeylessTables(publication)

    @property
    def slotting(self) -> PartitionSlotting:
        """Return the slotting for the topics that are known now."""
        driver, topics = self._opened()
        return topics.slotting(driver.slots)

    @property
    def parallel(self) -> KafkaSink:
        return self

    def open(self, identity: Identity, initial_ts: int, first: FirstStart = NO_QUESTION) -> Position:
        if not self._config.control_topic:
            name = re.sub(r"[^A-Za-z0-9._-]", "_", f"tidb-binlog-{identity.changefeed}-{identity.cluster_id}")
            self._config = self._config.model_copy(update={"control_topic": name[:TOPIC_LENGTH_MAX]})
        self._publication.check_claims()  # otherwise only the first row that is too large would fail
        topics = self._topics = TopicCounts(self._config, self._publication, self._stop)
        driver = self._driver = Driver(self._config, topics.admin, identity, self._stop)
        missing: tuple[TableName, ...] = ()

        def create() -> Document:
            nonlocal missing
            if first.loads:
                self._check_load()
            missing = first.missing(())  # the tables whose rows a topic has are not known
            document = Document()
            store = DocumentPositionStore(document, driver.label)
            store.create(first.begin_ts(initial_ts, missing), loads=first.loads)
            return document

        try:
            fresh = driver.start(create)
            if driver.document.is_loading:
                self._check_load()
            stored = driver.document.stored
            assert stored is not None, "a driver that has started has a position"
            topics.begin(driver.document.notes, stored.commit_ts)
            if driver.use_batches(topics.publication.batch_bytes):
                driver.lose()
            self.commit_ts, self._schema_version = stored.commit_ts, stored.schema_version
            if self._config.exactly_once:
                driver.wait_until_ended(list(topics.publication.partitions()))
            if stored.intent is None:
                self._take_up_partitions(now=True)
        except BaseException:
            self.close(clean=False)
            raise
        loads = tuple(self.loads())
        return Position(stored.commit_ts, stored.schema_version, stored.intent, fresh, missing=missing, loads=loads)

    def _check_load(self) -> None:
        """Raise DestinationRefused if the protocol, or exactly-once = false, does not allow a first load."""
        why = ""
        if self._publication.encoder.joins_transactions:
            why = "its readers take all messages with one commit_ts for one transaction, and skip all but the first"
        if not self._config.exactly_once:
            why = "exactly-once = false: what is loaded, and how far the load is, must be one transaction"
        if why:
            name = self._publication.encoder.name
            raise DestinationRefused(f"{self.name}: tables cannot be loaded with protocol {name}: {why}")

    def apply(self, segment: ChangeSegment, schema_version: int) -> None:
        pieces = Pieces(segment.after_ts, segment.until_ts, lambda: (segment,))
        self._write(pieces, lambda works: map(OrderedPart, works()), schema_version)

    def apply_pieces(self, pieces: Pieces[ChangeSegment], schema_version: int) -> None:
        self._write(pieces, self._publication.parts if pieces.loaded is None else loaded_parts, schema_version)

    def _write(self, pieces: Pieces[ChangeSegment], parts: PartsOf, schema_version: int) -> None:
        schedule, loaded = self._schedule, pieces.loaded
        self._take_up_partitions()
        announce(*self._opened(), pieces.until_ts, self._topics_in(pieces))

        def body(transaction: Transaction) -> None:
            nonlocal schedule
            schedule = deepcopy(self._schedule)
            self._check(pieces.after_ts, pieces.until_ts)
            if loaded is not None and not transaction.store.step_load(*loaded):
                return
            for part in parts(pieces.works):
                segment = part.segment
                tables = self._publication.tables_in(segment)
                publication = self._known((topic for topic, _ in tables), tables)
                describe(transaction, publication, schedule, tables, rows=segment.change_count, now_s=self._monotonic())
                for outgoing in publication.part_rows(part):
                    transaction.send(outgoing.topic, outgoing.partition, outgoing.messages)
            crash_point("kafka.rows_sent")

        what = f"rows of ({pieces.after_ts}, {pieces.until_ts}]"
        # The position does not show whether a range is loaded. If it is, the body sends nothing.
        done = None if loaded is None else lambda: False
        self._move(what, pieces.until_ts, schema_version, body, done)
        self._schedule = schedule

    def check_tables(self, view: SchemaView) -> None:
        check_view(view, self._publication.router)
        self._keyless.warn(view)

    def ddl(self, step: Ddl, *, may_exist: bool = False) -> None:
        check_ddl(step, self._publication.router)
        self._take_up_partitions()
        announce(*self._opened(), step.commit_ts, self._publication.topics_of(step))

        def body(transaction: Transaction) -> None:
            publication = self._known(self._publication.topics_of(step))
            for outgoing in publication.ddl(step):
                transaction.send(outgoing.topic, outgoing.partition, outgoing.messages)
            transaction.store.mark_job(JobMark(step.job.id, DONE, step.commit_ts))
            purge_old_jobs(transaction.store, step.job.id, step.commit_ts)
            crash_point("kafka.ddl_sent")

        job_id = step.job.id
        self._move(f"DDL job {job_id}", step.commit_ts, step.job.schema_version, body, lambda: self.job_done(job_id))

    def advance(self, commit_ts: int, schema_version: int) -> None:
        """Move the position. If the last move was less than `advance_s` seconds ago, only keep it in memory: the next
        transaction writes it."""
        if commit_ts == self.commit_ts:
            return
        if self._monotonic() - self._moved_s < self.advance_s:
            self.commit_ts, self._schema_version = commit_ts, max(schema_version, self._schema_version)
            return
        self._take_up_partitions()
        self._move(f"position {commit_ts}", commit_ts, schema_version, lambda transaction: None)

    def job_done(self, job_id: int) -> bool:
        return job_id in self._opened()[0].document.jobs

    def loads(self) -> list[TableLoad]:
        driver, _ = self._opened()
        return DocumentPositionStore(driver.document, driver.label).loads()

    def put_loads(self, loads: Sequence[TableLoad], done: TableLoad | None = None) -> None:
        driver, _ = self._opened()

        def body(transaction: Transaction) -> None:
            self._catch_up(transaction)
            transaction.store.put_loads(driver.epoch, loads, done)

        driver.transact("loads of tables", body, lambda _: False)

    def prepare(self, view: SchemaView) -> None:
        """Look up topics and schemas, because topics must be known before rows are cut by their partitions. A table
        that does not fit the settings is an error of `begin`: the range that another thread is writing is finished."""
        topics = self._opened()[1]
        self._unfit = unfit_table(view, self._planning.router)
        self._keyless.warn(view)
        names = [(one.schema, one.name) for one in view.tables.values() if one.current.has_rows]
        topics.know(self._publication.router.topics(names))
        if self._describes and self._unfit is None:
            tables = self._planning.tables_of(view)
            topics.prepare(tables)
            self._viewed = tables

    def begin(self, intent: Intent) -> KafkaSlotWriter:
        driver, topics = self._opened()
        stored = driver.document.stored
        if stored is None or stored.intent not in (None, intent):
            raise PositionMoved(
                f"{driver.label}: {stored} has a range that must be finished as it was cut, not {intent}"
            )
        ends: tuple[int, ...] = ()
        if stored.intent is None:
            self._check(intent.after_ts, intent.until_ts)
            if self._unfit is not None:  # an open range could not be finished with other settings
                raise unpublished(self._unfit, intent.after_ts)
            if topics.stops_at_changes:  # they are not taken up here: the range is cut by what is recorded
                topics.poll()
            ends = self._record(intent)
        return self._writer(intent, ends)

    def _writer(self, intent: Intent, ends: tuple[int, ...] = ()) -> KafkaSlotWriter:
        driver, topics = self._opened()
        epoch, label = driver.epoch, driver.label
        return KafkaSlotWriter(self._config, topics.publication, epoch, intent, label, ends, *driver.claimed)

    def _record(self, intent: Intent) -> tuple[int, ...]:
        """Record the intent. Return the end offsets of the control topic's partitions after it."""
        driver, topics = self._opened()
        schedule, tables = self._schedule, self._viewed

        def body(transaction: Transaction) -> None:
            nonlocal schedule
            schedule = deepcopy(self._schedule)
            self._catch_up(transaction)
            describe(transaction, self._known(()), schedule, tables, rows=0, now_s=self._monotonic())
            transaction.store.document.notes = topics.notes()
            transaction.store.write_intent(epoch=driver.epoch, intent=intent, stage=_STAGE)

        driver.transact(f"intent {intent}", body, lambda stored: stored.intent == intent)
        self._schedule = schedule
        return driver.ends()

    def commit(self, intent: Intent, receipts: Sequence[Receipt], schema_version: int) -> KafkaSlotWriter | None:
        driver, topics = self._opened()
        required = {one for receipt in receipts if receipt.detail for one in required_of(receipt.detail)}
        if required:
            topics.register(sorted(required))
            return self._writer(intent)

        def body(transaction: Transaction) -> None:
            transaction.store.clear_intent(epoch=driver.epoch, intent=intent, schema_version=schema_version)
            transaction.store.document.notes = topics.notes()
            transaction.resolve(topics.publication, intent.until_ts)

        driver.transact(f"end of {intent}", body, lambda stored: stored.commit_ts == intent.until_ts)
        self._moved(intent.until_ts, schema_version)
        crash_point("kafka.committed")
        take_up_after_range(driver, topics, self.commit_ts, self._catch_up)
        return None

    def _move(
        self, what: str, until_ts: int, schema_version: int, body: Body, done: Callable[[], bool] | None = None
    ) -> None:
        """Run `body` in a transaction that also moves the position and sends resolved events. `done`: whether a
        transaction whose answer was lost was committed, if the position alone does not show it."""
        driver, topics = self._opened()

        def whole(transaction: Transaction) -> None:
            body(transaction)
            stored = transaction.store.document.stored
            after_ts = stored.commit_ts if stored is not None else 0
            transaction.store.move(
                epoch=driver.epoch, after_ts=after_ts, until_ts=until_ts, schema_version=schema_version
            )
            transaction.store.document.notes = topics.notes()
            transaction.resolve(topics.publication, until_ts - transaction.store.document.is_loading)

        def is_done(stored: Stored) -> bool:
            return done() if done is not None else stored.commit_ts == until_ts

        driver.transact(what, whole, is_done)
        self._moved(until_ts, schema_version)

    def _catch_up(self, transaction: Transaction) -> None:
        """Move the written position to the one that `advance` has kept in memory."""
        stored = transaction.store.document.stored
        if stored is not None and stored.commit_ts < self.commit_ts:
            transaction.store.move(
                epoch=stored.epoch,
                after_ts=stored.commit_ts,
                until_ts=self.commit_ts,
                schema_version=self._schema_version,
            )

    def _known(self, names: Iterable[str], tables: Sequence[TopicTable] = ()) -> Publication:
        """Return the publication with these topics added and with the schema ids of these tables. Called inside a
        transaction; raises ProducerLost if a topic needs smaller batches than the producer makes."""
        driver, topics = self._opened()
        publication = topics.know(names)
        if tables:
            publication = topics.prepare(tables)
        if driver.use_batches(publication.batch_bytes):
            raise ProducerLost(f"{driver.label}: a topic accepts only smaller batches than the topics before")
        return publication

    def _topics_in(self, pieces: Pieces[ChangeSegment]) -> Iterator[str]:
        """Yield the topics of these rows. Raises DispatchError if a table does not fit the settings: what is recorded
        before its rows are sent could be settled only with the same settings."""
        for segment in pieces.works():
            try:
                self._publication.check_tables(segment)
            except DispatchError as error:
                raise unpublished(error, pieces.after_ts) from error
            yield from (topic for topic, _ in self._publication.tables_in(segment))

    def _check(self, after_ts: int, until_ts: int) -> None:
        """Raise PositionMoved if (after_ts, until_ts] does not follow the position."""
        if after_ts != self.commit_ts:
            raise PositionMoved(
                f"{self._opened()[0].label}: ({after_ts}, {until_ts}] cannot be applied: its position is "
                f"{self.commit_ts}"
            )

    def _moved(self, commit_ts: int, schema_version: int) -> None:
        self.commit_ts, self._schema_version = commit_ts, max(schema_version, self._schema_version)
        self._moved_s = self._monotonic()

    def _take_up_partitions(self, *, now: bool = False) -> None:
        take_up(*self._opened(), self.commit_ts, self._catch_up, now=now)

    def interrupt(self) -> None:
        self._stop.set()

    def close(self, *, clean: bool) -> None:
        """Close the driver. If `clean` and not interrupted, write the position that `advance` has kept in memory
        first."""
        driver, self._driver = self._driver, None
        if driver is None:
            return
        try:
            if clean and not self._stop.is_set() and driver.epoch >= 0:
                self._settle(driver)
        finally:
            driver.close()

    def _settle(self, driver: Driver) -> None:
        stored = driver.document.stored
        if stored is None or stored.intent is not None or stored.commit_ts >= self.commit_ts:
            return
        try:
            driver.transact("position", self._catch_up, lambda found: found.commit_ts == self.commit_ts)
        except DestinationError as error:
            what = "the last position could not be written; no rows follow the written one, so none is repeated"
            _log.warning(what, written=stored.commit_ts, position=self.commit_ts, why=str(error))

    def _opened(self) -> tuple[Driver, TopicCounts]:
        assert self._driver is not None and self._topics is not None, "open() comes first"
        return self._driver, self._topics
