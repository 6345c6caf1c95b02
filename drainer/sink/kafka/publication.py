"""Turn changes into the messages of each partition, in order. Picklable: the driver and executors use the same code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from binlog.runtime.log import get_logger

from drainer.changes import ChangeSegment
from drainer.changes.vector import Ints
from drainer.dispatch.ddl_messages import ddl_messages, ddl_partitions, described
from drainer.dispatch.dispatcher import Dispatcher, Routes, part_of_slot
from drainer.dispatch.piece_order import OrderedPart, in_order
from drainer.dispatch.row_events import RowEvents, class_of, transactions_of
from drainer.dispatch.rules import Router
from drainer.protocol.encoder import EncodedColumns, Message, RequiredSchema, SchemaIds
from drainer.protocol.large import ClaimStore, LargeMessages, message_bytes_max, open_store
from drainer.protocol.registry import ProtocolOptions, make_encoder
from drainer.protocol.table import Table
from drainer.row.codec import Decoder
from drainer.schema.steps import Ddl, Located
from drainer.schema.view import SchemaView

TopicTable = tuple[str, Table]
Framed = Callable[[Ints], Iterable[Message]]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Messages of one partition, in the order in which they must be sent."""

    topic: str
    partition: int
    messages: Iterable[Message]


@dataclass(eq=False)
class Publication:
    """Make the messages of one changefeed. Caches what it compiles for tables, and is pickled without this cache. Not
    safe for use by several threads.

    `counts`: the number of partitions of every topic in use; `topic_bytes`: max.message.bytes of each, no message of
    several rows is larger than the least of them; `ids`: schema ids, for protocols that register schemas.
    `batch_bytes`: the largest batch that all topics accept, 0: not known."""

    options: ProtocolOptions
    router: Router
    counts: Mapping[str, int]
    topic_bytes: Mapping[str, int]
    ids: SchemaIds = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ProtocolConfigError."""
        options, router, counts = self.options, self.router, self.counts
        self.batch_bytes = min(map(message_bytes_max, self.topic_bytes.values()), default=0)
        target = min(self.batch_bytes or options.max_message_bytes, options.max_message_bytes)
        self.encoder = make_encoder(replace(options, max_message_bytes=target)).with_ids(self.ids)
        self.dispatcher = Dispatcher(router, counts, options.zone, raw=options.output_raw_change_event)
        self._events = RowEvents(raw=options.output_raw_change_event, selectors=router.selectors)
        self._large: dict[str, LargeMessages] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Publication, (self.options, self.router, self.counts, self.topic_bytes, self.ids)

    def tables_in(self, segment: ChangeSegment) -> list[TopicTable]:
        """Return each table version that the segment's rows have, with its topic."""
        tables = {table.key: table for table in (self._events.selection(one.codec).table for one in segment.changes)}
        return [(self.router.topic(table.schema, table.name), table) for table in tables.values()]

    def check_tables(self, segment: ChangeSegment) -> None:
        """Check that selectors and dispatch rules fit the tables of the segment's rows. Raises DispatchError."""
        for one in segment.changes if self.router.names_columns else ():
            self.router.check(self._events.table(one.codec))

    def tables_of(self, view: SchemaView) -> list[TopicTable]:
        """Return each table version that rows may have under this view, with its topic."""
        decoder = Decoder(view, stored_generated=True)
        found = []
        for table_id, versions in view.tables.items():
            topic = self.router.topic(versions.schema, versions.name)
            for version in versions.versions:
                codec = decoder.codec(table_id, version, 0)
                if codec is not None:
                    found.append((topic, self._events.selection(codec).table))
        return found

    def required_schemas(self, tables: Iterable[TopicTable]) -> list[RequiredSchema]:
        """Return the schemas that rows of these tables need and that are not registered yet. Raises EncodeError."""
        wanted = [one for topic, table in tables for one in self.encoder.required_schemas(topic, table)]
        return [one for one in wanted if one.fingerprint not in self.ids.get(one.subject, {})]

    def part_rows(self, part: OrderedPart) -> Iterator[Outgoing]:
        """Yield a part's messages by partition. Raises EncodeError, MessageTooLarge, DispatchError, DecodeError."""
        routes = self.dispatcher.routes(self._events.of(part.segment), is_piece=part.is_piece)
        return self._outgoing([of for of in routes if part.class_ in (None, class_of(of.changes))])

    def parts(self, works: Callable[[], Iterable[ChangeSegment]]) -> Iterator[OrderedPart]:
        """Yield the parts of a transaction in pieces (batch.work.Pieces), in the order in which their `part_rows` must
        be sent. Raises what `works` raises."""
        return in_order(works, self._events)

    def rows_of_slot(self, segment: ChangeSegment, slot: int, slots: int) -> Iterator[Outgoing]:
        """Yield the messages that slot `slot` out of `slots` writes for these changes. Raises as `part_rows`."""
        return self._outgoing(part_of_slot(self._events.of(segment), self.dispatcher, slot, slots))

    def _outgoing(self, found: Iterable[Routes]) -> Iterator[Outgoing]:
        # Rows are sorted by partition while they are columns of decoded values, which are smaller than encoded rows:
        # each partition's encoded rows are then a slice.
        routes = [of.by_partition() for of in found]
        framed = self._framed(routes)
        if framed is None:
            return
        topics = list(dict.fromkeys(of.topic for of in routes))
        begins = dict(zip(topics, np.cumsum([0, *(self.counts[topic] for topic in topics)]).tolist(), strict=False))
        names = [(topic, partition) for topic in topics for partition in range(self.counts[topic])]
        number = np.concatenate([of.partitions + begins[of.topic] for of in routes])
        in_order = np.arange(len(number))
        if len(routes) > 1:
            in_order = np.lexsort((np.concatenate([of.changes.order for of in routes]), number))
        begin = 0
        for end in [*(np.flatnonzero(np.diff(number[in_order])) + 1).tolist(), len(in_order)]:
            chosen = in_order[begin:end]
            topic, partition = names[number[chosen[0]]]
            yield Outgoing(topic, partition, framed(chosen))
            begin = end

    def _framed(self, routes: Sequence[Routes]) -> Framed | None:
        """Return a function that makes messages of the events of given indexes, counted over all routes; None if there
        are no events."""
        alone = not self.encoder.joins_transactions or _are_alone(routes)
        parts = [part for of in routes for part in self._encoded(of, alone=alone)]
        return (lambda chosen: self.encoder.frame_columns(parts, chosen)) if parts else None

    def _encoded(self, routes: Routes, *, alone: bool) -> list[EncodedColumns]:
        """`alone`: each event is the only one of its transaction, or the protocol does not join transactions."""
        table = self.encoder.table(routes.changes.table, routes.topic)
        encode = table.encode_columns if alone else table.encode_joinable
        return self._large_of(routes.topic).fitted(table, routes.changes, encode(routes.changes))

    def check_claims(self) -> None:
        """Check that the store for messages that are too large for Kafka (claim-check) can be written, if it is
        configured. Raises ClaimStoreError, ProtocolConfigError."""
        store = self._claims()
        if store is not None:
            store.check()

    def _claims(self) -> ClaimStore | None:
        claims = self.options.large_message_handle_option == "claim-check"
        return open_store(self.options.claim_check_storage_uri) if claims else None

    def _large_of(self, topic: str) -> LargeMessages:
        found = self._large.get(topic)
        if found is None:
            options, store = self.options, self._claims()
            limit = message_bytes_max(self.topic_bytes[topic])
            found = self._large[topic] = LargeMessages(self.encoder, options, limit, options.namespace, store)
        return found

    def topics_of(self, step: Ddl) -> list[str]:
        """Return the topics that a DDL is sent to, and the topics for rows of the tables that exist after it."""
        told = [message.topic for message in ddl_messages(step, self.router)]
        touched = (table for change in step.changes for table in (change.before, change.after) if table is not None)
        names = [(table.schema, table.name) for table in touched if table.info.has_rows]
        return list(dict.fromkeys([*told, *self.router.topics(names)]))

    def ddl(self, step: Ddl) -> Iterator[Outgoing]:
        """Yield the messages of a DDL by partition. Raises EncodeError."""
        for told in ddl_messages(step, self.router):
            messages = self.encoder.ddl(told.ddl)
            for partition in ddl_partitions(self.encoder.ddl_scope, self.counts[told.topic]) if messages else ():
                yield Outgoing(told.topic, partition, messages)

    @property
    def sends_bootstraps(self) -> bool:
        """Return whether tables' schemas are sent to readers from time to time."""
        return self.encoder.name == "simple"

    def partitions(self) -> Iterator[tuple[str, int]]:
        return ((topic, partition) for topic, count in self.counts.items() for partition in range(count))


def _are_alone(routes: Sequence[Routes]) -> bool:
    """Return whether each event is the only one of its transaction."""
    if not routes:
        return True
    numbers = np.sort(np.concatenate([transactions_of(of.changes) for of in routes]))
    return bool((np.diff(numbers) != 0).all())


# Warns of tables of which a DELETE would stop the drainer: Avro has no message for it without a handle key.

_log = get_logger(__name__)


class KeylessTables:
    """Names each table once, when the drainer starts or after a DDL."""

    def __init__(self, publication: Publication) -> None:
        self._selectors = publication.router.selectors
        self._concerns = publication.encoder.name == "avro" and not publication.options.avro_output_old_row
        self._named: set[str] = set()

    def warn(self, view: SchemaView) -> None:
        """Warn of the tables that no warning has named yet."""
        found = [name for name in self._without_key(view) if name not in self._named] if self._concerns else []
        self._named.update(found)
        if found:
            _log.warning(
                "these tables have no handle key, so Avro has no message for a DELETE, which stops the drainer: give "
                "them a primary key, or leave them out with [[syncer.ignore-table]]",
                tables=found,
            )

    def _without_key(self, view: SchemaView) -> list[str]:
        found = []
        for table_id, versions in view.tables.items():
            table = described(Located(table_id, versions.schema, versions.current), versions.versions[-1])
            if table is not None and versions.current.has_rows and not self._selectors.select(table).table.handle:
                found.append(f"{versions.schema}.{versions.name}")
        return sorted(found)


# When a table's schema is sent again, for readers that begin in the middle of a partition (Simple).

# A table that has no rows for this long is forgotten. Its schema is then sent before its next row.
IDLE_MAX_S: Final = 30 * 60.0


@dataclass(slots=True)
class _Sent:
    """One table's state. `rows`: the number of rows since `at_s`, when the schema was last sent. `seen_s`: when the
    last rows arrived."""

    schema: tuple[object, ...]
    at_s: float
    rows: int
    seen_s: float


class BootstrapSchedule:
    """Decides when a table's schema is due: with its first rows, when the schema has changed since it was last sent,
    when the interval has passed, and when the configured number of rows has been sent. If the interval or the number is
    0, it is never due."""

    def __init__(self, options: ProtocolOptions) -> None:
        self._interval_s = options.send_bootstrap_interval_in_sec
        self._count = options.send_bootstrap_in_msg_count
        self._everywhere = options.send_bootstrap_to_all_partition
        self._sent: dict[tuple[str, int], _Sent] = {}

    def due(self, topic: str, table: Table, *, rows: int, partitions: int, now_s: float) -> range:
        """Return the partitions of `topic` to which the table's schema must be sent before these `rows`; empty if it is
        not due. `now_s`: seconds of a monotonic clock."""
        if self._interval_s <= 0 or self._count <= 0:
            return range(0)
        self._forget(now_s)
        schema = (*table.key, table.name)
        sent = self._sent.get((topic, table.id))
        if sent is None or sent.schema != schema or sent.rows >= self._count or now_s - sent.at_s >= self._interval_s:
            self._sent[topic, table.id] = _Sent(schema, now_s, rows, now_s)
            return range(partitions if self._everywhere else min(partitions, 1))
        sent.rows += rows
        sent.seen_s = now_s
        return range(0)

    def _forget(self, now_s: float) -> None:
        idle = [key for key, sent in self._sent.items() if now_s - sent.seen_s > IDLE_MAX_S]
        for key in idle:
            del self._sent[key]
