"""Follows one partition of TiCDC's topics in place of a pump, and lists all of them in place of the registry's pumps.

A partition's resolved ts is one below its newest resolved event, because rows and DDLs of that event's own ts may come
after it. What comes at or below the resolved ts later is a repeat. Only commit_ts, size and offset of each message are
kept; tasks read the messages themselves (pull.py). Nothing is stored: a drainer that begins again looks for the offset
by the time of its position.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from binlog.cluster import tso
from binlog.cluster.registry import Kind, Listing, NodeRecord, NodeStatus, State
from binlog.errors import ConfigError, PumpUnavailable, PurgedPosition

from drainer.changes.vector import Ints, Words
from drainer.kafka_reading.address import KafkaAddress, kafka_address
from drainer.kafka_reading.records import KafkaPartition, ReadError, Record, TopicReader
from drainer.protocol.debezium.decoder import DebeziumDecoder
from drainer.protocol.encoder import Decoder
from drainer.protocol.errors import MessageError
from drainer.protocol.event import DdlEvent, Event, ResolvedEvent
from drainer.protocol.json_read import Reader, parse
from drainer.protocol.open.decoder import OpenDecoder
from drainer.protocol.open.encoder import ROW
from drainer.protocol.open.framing import row_key, row_keys, unframe
from drainer.protocol.registry import PROTOCOLS, ProtocolOptions, make_decoder, make_encoder
from drainer.protocol.simple.decoder import SimpleDecoder
from drainer.pumps.client import SILENCE_MAX_S, Missed, PumpClient
from drainer.pumps.go_pump import (
    RECEIVED,
    Backlog,
    FollowedPump,
    Received,
    ReceivedBinlog,
    received,
)
from drainer.pumps.survey import HeldBack
from drainer.pumps.watermark import BatchLimits, PumpMark
from drainer.ranges.upstream import Snapshot
from drainer.schema.filter import OWN_SCHEMA
from drainer.ticdc.pull import PartitionRange
from drainer.ticdc.tables import TopicHistory

BACKLOG_MAX: Final = 100_000
# A message is sent after its transaction committed. TiCDC's clock may be so far behind the cluster's.
CLOCKS_DIFFER_MAX_S: Final = 60.0
# A table's schema is sent so long after it is due, at most.
SCHEMA_LATE_S: Final = 30
# How long the first `mark` waits: the first read of a partition takes some 0.1 s.
ANSWER_S: Final = 1.0
_READ_S: Final = 0.1


# Reads of each message only what the planner needs: whether it is a row, a DDL or a resolved event, its commit_ts, and
# a row's table. Rows are decoded by the tasks that apply them. Pure.
class RowTable(NamedTuple):
    """The table that a row's message names. `version`: of its schema, in messages of Simple; 0 in other protocols."""

    schema: str
    table: str
    version: int = 0


class RowHead(NamedTuple):
    """The commit_ts and the table of a row; its column values are not read here."""

    commit_ts: int
    of: RowTable


class SchemaHead(NamedTuple):
    """A message of Simple with table schemas: a bootstrap, or a DDL; of a DDL message a DdlEvent comes behind it."""

    message: Reader


Head = RowHead | DdlEvent | ResolvedEvent | SchemaHead
# From a message's key and value; raises MessageError.
Heads = Callable[[bytes | None, bytes | None], list[Head]]

_ROWS: Final = ("INSERT", "UPDATE", "DELETE")


def heads_of(options: ProtocolOptions) -> Heads:
    """Return what reads messages with these options. Raises ConfigError if they do not say all that a drainer needs."""
    package = PROTOCOLS.get(options.protocol.lower(), "")
    if package not in ("open", "canal", "simple", "debezium"):
        raise ConfigError(
            f"messages of {options.protocol} cannot be a drainer's source: they lack old values and the commit_ts of "
            "deletes; let TiCDC write open-protocol, canal-json, simple or debezium"
        )
    if package in ("open", "debezium") and not options.output_old_value:
        raise ConfigError(f"messages of {options.protocol} need output-old-value=true: updates have no old row without")
    if not make_encoder(options).resolved(1):
        raise ConfigError(
            f"messages of {options.protocol} as it is set have no resolved events, without which nothing is known to "
            "be complete: add enable-tidb-extension=true"
        )
    decoder = make_decoder(options)
    if isinstance(decoder, OpenDecoder):
        return _open(decoder)
    if isinstance(decoder, SimpleDecoder):
        return _one_event(decoder, decoder.parse)
    what, how = f"{options.protocol} message", options.large_message_handle_compression
    return _one_event(decoder, lambda value: parse(value, what, how))


def _open(decoder: OpenDecoder) -> Heads:
    def heads(key: bytes | None, value: bytes | None) -> list[Head]:
        found: list[Head] = []
        for its_key, its_value in unframe(key, value):
            head = parse(its_key, "key")
            if head.integer("t") == ROW:
                found.append(RowHead(head.integer("ts"), RowTable(head.text("scm", ""), head.text("tbl", ""))))
            else:
                found += _others([decoder.event(its_key, its_value)])
        return found

    return heads


def _one_event(decoder: Decoder, read: Callable[[bytes | None], Reader]) -> Heads:
    row_head = _debezium if isinstance(decoder, DebeziumDecoder) else _row_head

    def heads(key: bytes | None, value: bytes | None) -> list[Head]:
        message = read(value)
        found = row_head(message)
        if found is not None:
            return [found]
        has_schemas = isinstance(decoder, SimpleDecoder) and not {"tableSchema", "sql"}.isdisjoint(message.document)
        return [*[SchemaHead(message)] * has_schemas, *_others(decoder.decode(key, value))]

    return heads


def _row_head(message: Reader) -> RowHead | None:
    if message.text("type") not in _ROWS or message.boolean("isDdl", False):
        return None
    stamp = message.child("_tidb") or message  # Canal's extension, and Simple
    version = message.integer("schemaVersion", 0)  # Simple's
    return RowHead(stamp.integer("commitTs"), RowTable(message.text("database"), message.text("table"), version))


def _debezium(message: Reader) -> RowHead | None:
    payload = message.needed("payload")
    source = payload.needed("source")
    commit_ts = source.integer("commit_ts")
    if payload.text("op", "m") == "m":  # a DDL has none
        return None
    schema = message.child("schema")
    images = [] if schema is None else schema.objects("fields")[:1]
    if any("tidb_type" not in column.document for image in images for column in image.objects("fields")[:1]):
        raise MessageError(
            f"{message.where}: columns without tidb_type: such a changefeed writes neither DDLs nor resolved events; "
            "it needs enable-tidb-extension=true, and TiCDC's new architecture (8.5.4 or later) or 9.0"
        )
    return RowHead(commit_ts, RowTable(source.text("db"), source.text("table")))


def _others(events: Iterable[Event | None]) -> Iterator[Head]:
    return (event for event in events if isinstance(event, DdlEvent | ResolvedEvent))


# Rows as TiCDC and this project write them: the names of the table, commit_ts, and in Simple the version of the schema.
# A value cannot be taken for a member, because quotes in it have a backslash.
_TEXT: Final = r'"[^"\\]*"'
_KIND: Final = '"type":"(?:INSERT|UPDATE|DELETE)"'
_ROW: Final = {
    "canal": rf'{{"id":[0-9]+,(?P<name>"database":{_TEXT},"table":{_TEXT}),"pkNames":(?:null|\[[^]]*\]),"isDdl":false,'
    rf'{_KIND},.*"_tidb":{{"commitTs":(?P<ts>[0-9]{{1,19}})}}}}\Z',
    "simple": rf'{{"version":1,(?P<name>"database":{_TEXT},"table":{_TEXT}),"tableID":[0-9]+,{_KIND},'
    r'"commitTs":(?P<ts>[0-9]{1,19}),"buildTs":[0-9]+,"schemaVersion":(?P<version>[0-9]+),',
}


class Rows:
    """Rows of consecutive messages: offset and bytes of the message of each, its commit_ts and its table. Lists of
    numbers, because a tuple for each row would be one more object for Python's garbage collector to scan."""

    def __init__(self) -> None:
        self.offsets, self.sizes = list[int](), list[int]()
        self.commit_ts, self.tables = list[int](), list[RowTable]()

    def add(self, offset: int, size: int, commit_ts: int, table: RowTable) -> None:
        self.offsets.append(offset)
        self.sizes.append(size)
        self.commit_ts.append(commit_ts)
        self.tables.append(table)


class Message(NamedTuple):
    """A message that is no row, or not only rows."""

    offset: int
    size: int
    heads: list[Head]


class MessageReader:
    """Reads messages. Rows of tables that are known are recognised by their bytes, and not parsed."""

    def __init__(self, options: ProtocolOptions) -> None:
        """Raises ConfigError."""
        self._heads, package = heads_of(options), PROTOCOLS[options.protocol.lower()]
        self._row, self._is_open = re.compile(_ROW.get(package, r"\Z.").encode(), re.DOTALL), package == "open"
        self._groups = ("name", "version") if package == "simple" else ("name",)
        self._tables: dict[object, RowTable] = {}  # by the bytes that name it

    def read(self, records: Iterable[Record]) -> list[Rows | Message]:
        """Return what the messages of a partition have, in their order. Raises MessageError."""
        found: list[Rows | Message] = []
        rows = Rows()
        groups, row_of, known, is_open = self._groups, self._row.match, self._tables.get, self._is_open
        for record in records:
            key, value = record.key or b"", record.value or b""
            size, row = len(key) + len(value), row_of(value) if not is_open else row_key(key)
            table = known(row.group(*groups)) if row is not None else None
            if row is not None and table is not None:  # nearly always
                rows.add(record.offset, size, int(row["ts"]), table)
                continue
            seen = row_keys(key) if is_open else [row] if row is not None else []
            tables = [of for one in seen if (of := known(one.group(*groups))) is not None]
            if seen and len(tables) == len(seen):
                for one, table in zip(seen, tables, strict=True):
                    rows.add(record.offset, size // len(seen), int(one["ts"]), table)
                continue
            heads = self._parsed(record)
            row_heads = [head for head in heads if isinstance(head, RowHead)]
            if not heads or len(row_heads) < len(heads):
                found += [rows, Message(record.offset, size, heads)]
                rows = Rows()
                continue
            for head in row_heads:
                rows.add(record.offset, size // len(heads), *head)
            if [int(one["ts"]) for one in seen] == [head.commit_ts for head in row_heads]:
                self._tables |= zip([one.group(*groups) for one in seen], [head.of for head in row_heads], strict=True)
        return [*found, rows]

    def _parsed(self, record: Record) -> list[Head]:
        try:
            return self._heads(record.key, record.value)
        except MessageError as error:
            raise MessageError(f"{record.topic_partition} offset {record.offset}: {error}") from error


def source_address(uri: str, client: Mapping[str, str]) -> KafkaAddress:
    """Parse the address. Raises ConfigError, also for messages that do not say all that a drainer needs."""
    found = kafka_address(uri, "drainer", client)
    heads_of(found.options)
    return found


# From a table and the commit_ts of some of its rows: the schema version of each; None: its schema must still come.
VersionsOf = Callable[[RowTable, Words], "Ints | int | None"]


class PartitionIndex:
    """Puts what a partition has in order. Pure. `resolved_ts`: everything in (after_ts, resolved_ts] was returned.
    `unread`: the first row of each table whose schema no message has had yet, with its offset; nothing passes them."""

    def __init__(self, after_ts: int, versions_of: VersionsOf = lambda *_: 0) -> None:
        self._versions_of = versions_of
        self._waiting = Backlog()
        self._read_ts = self.resolved_ts = after_ts
        self._unread: dict[RowTable, int] = {}  # what their rows have for a schema version

    def add(self, found: Rows | Message) -> Received:
        """Add messages in their order; return what has become final, by commit_ts."""
        if isinstance(found, Rows):
            self._add_rows(found)
            return received(())
        final = [received(())]
        for head in found.heads:
            if isinstance(head, ResolvedEvent):
                self._read_ts = max(self._read_ts, head.commit_ts - 1)
                final.append(self.due())
            elif isinstance(head, DdlEvent):
                if head.commit_ts > self._read_ts and is_placed(head):
                    one = ReceivedBinlog(head.commit_ts, found.size, True, 0, found.offset, self._read_ts)
                    self._waiting.append(one)
            elif isinstance(head, RowHead):
                row = Rows()
                row.add(found.offset, found.size // len(found.heads), *head)
                self._add_rows(row)
        return np.concatenate(final)

    def _add_rows(self, rows: Rows) -> None:
        found = np.zeros(len(rows.offsets), RECEIVED)
        found["commit_ts"], found["size"], found["offset"] = rows.commit_ts, rows.sizes, rows.offsets
        found["resolved_ts"] = self._read_ts
        numbers = {table: number for number, table in enumerate(dict.fromkeys(rows.tables))}
        of = np.array([numbers[table] for table in rows.tables], np.int64)
        is_new = found["commit_ts"] > self._read_ts
        for table, number in numbers.items():
            its = np.flatnonzero(is_new & (of == number))
            if not len(its):
                continue
            versions = self._versions_of(table, found["commit_ts"][its])
            if versions is None:
                versions = self._unread.setdefault(table, min(self._unread.values(), default=0) - 1)
            found["schema_version"][its] = versions
        self._waiting.extend(found[is_new])

    def due(self) -> Received:
        """Return what has become final since it was returned last, by commit_ts."""
        ts, waiting = self._read_ts, self._waiting.all()
        for table, number in [*self._unread.items()]:
            its = waiting["schema_version"] == number
            versions = self._versions_of(table, waiting["commit_ts"][its])
            if versions is None:
                ts = min(ts, int(waiting["commit_ts"][its].min()) - 1)
            else:
                waiting["schema_version"][its] = versions
                del self._unread[table]
        if ts <= self.resolved_ts:
            return received(())
        self.resolved_ts = ts
        is_due = waiting["commit_ts"] <= ts
        self._waiting.keep(waiting[~is_due])
        due = waiting[is_due]
        return due[due["commit_ts"].argsort(kind="stable")]

    @property
    def unread(self) -> tuple[int, RowHead] | None:
        """The first row whose schema no message has had yet, and its offset; nothing passes it."""
        for table, number in self._unread.items():
            waiting = self._waiting.all()
            row = waiting[waiting["schema_version"] == number][0]
            return int(row["offset"]), RowHead(int(row["commit_ts"]), table)
        return None


def is_placed(event: DdlEvent) -> bool:
    """Return whether a DDL message has a statement, and is not of the schema in which drainers keep positions."""
    return bool(event.query) and event.schema.lower() != OWN_SCHEMA


class PartitionPump(FollowedPump):
    """A followed partition. `to_end`: it counts when the end that it had at the start has been read."""

    def __init__(
        self,
        partition: KafkaPartition,
        address: KafkaAddress,
        history: TopicHistory,
        *,
        open_reader: Callable[[Mapping[str, str], list[str]], TopicReader] = TopicReader,
        silence_max_s: float = SILENCE_MAX_S,
        to_end: bool = True,
        connect: Callable[[int], Snapshot] | None = None,
    ) -> None:
        name, host = str(partition), address.client.get("bootstrap.servers", "")
        super().__init__(name, host, name=name, backlog_max=BACKLOG_MAX, silence_max_s=silence_max_s, answer_s=ANSWER_S)
        self._partition, self._address, self._history = partition, address, history
        self._open_reader, self._to_end, self._connect = open_reader, to_end, connect
        self._messages = MessageReader(address.options)
        self._received_s, self._unread_s = 0.0, math.inf
        self._repeated_s = address.options.send_bootstrap_interval_in_sec
        self._has_resolved = False  # there are resolved events

    @property
    def resolved_ts(self) -> int:
        return self._resolved_ts

    async def mark(self, *, after_ts: int, limits: BatchLimits) -> PumpMark:
        """As of any followed pump. Its binlogs cannot be counted before they are read, because some are repeats."""
        found = await super().mark(after_ts=after_ts, limits=limits)
        if found.resolved_ts <= after_ts and time.monotonic() - self._received_s > self._silence_max_s:
            raise PumpUnavailable(
                f"{self._name} is read up to ts {found.resolved_ts}, and no resolved event came for "
                f"{self._silence_max_s:g} s: the changefeed is paused or failed or writes none, or the brokers do not "
                "answer here"
            )
        # All that is final, because a range may end above `end_ts`: that of a large row, or of a batch that is resumed.
        # The first message need not have the least offset: rows of a table are sent by commit_ts, tables one by one.
        due = self._binlogs.all()
        begin, end = (int(due["offset"].min()), int(due["offset"].max()) + 1) if len(due) else (0, 0)
        # Nor the least resolved ts: after an error the partition was read again from a later ts.
        resolved_ts = int(due["resolved_ts"].min()) if len(due) else 0
        ends, tables = (resolved_ts, found.resolved_ts), self._history.packed()
        place = PartitionRange(self._partition, self._address, begin, end, *ends, tables, self._connect)
        return replace(found, topic=place, split_ts=(), splits=(), count_exact=False)

    async def count(self, *, after_ts: int, until_ts: int) -> None:
        return None

    async def missed(self, *, after_ts: int, until_ts: int) -> Missed:
        return Missed()

    async def _read(self) -> None:
        after_ts = self._resolved_ts
        await self._history.open()
        opening = asyncio.ensure_future(asyncio.to_thread(self._opened, after_ts))
        reading: asyncio.Future[tuple[list[Rows | Message], int]] = asyncio.Future()
        reading.set_result(([], 0))
        try:
            reader, index, end = await asyncio.shield(opening)
            counts = False
            self._received_s = time.monotonic()
            while len(self._binlogs) < self._backlog_max or await self._has_room():
                reading = asyncio.ensure_future(asyncio.to_thread(self._next, reader))
                messages, next_offset = await asyncio.shield(reading)
                for found in messages:
                    for head in found.heads if isinstance(found, Message) else ():
                        if isinstance(head, SchemaHead):
                            await self._history.learn(head.message)
                        elif isinstance(head, DdlEvent) and is_placed(head):
                            await self._history.place(head)
                    self._take(index, found)
                # Before the end that it had is seen, its resolved ts would be an end for until-now.
                counts = counts or not self._to_end or next_offset >= end
                if index.unread is not None:
                    self._binlogs.extend(index.due())
                    self._resolved_ts = index.resolved_ts
                    self._check_unread(index)
                    continue
                self._unread_s = math.inf
                if counts or reader.at_end() or len(self._binlogs) >= self._backlog_max:
                    self._clear_error()
        finally:
            await asyncio.gather(opening, reading, return_exceptions=True)
            if opening.exception() is None:
                await asyncio.to_thread(opening.result()[0].close)

    def _opened(self, after_ts: int) -> tuple[TopicReader, PartitionIndex, int]:
        """Open a reader before the first message that may be above `after_ts`; return the partition's end, too. Raises
        ReadError, and PurgedPosition if the brokers may have removed such messages."""
        reader = self._open_reader(self._address.client, [self._partition.topic])
        try:
            low, end = reader.ends(self._partition)
            begin = low
            if after_ts > 0:
                sent_ms = int(tso.physical_ms(after_ts) - CLOCKS_DIFFER_MAX_S * 1000)
                found = reader.offset_at(self._partition, sent_ms)
                begin = end if found is None else found
                if begin == low > 0:  # a resolved event at or below `after_ts` proves nothing: rows come long before it
                    raise PurgedPosition(
                        f"{self._partition} offset {low}: messages above ts {after_ts} may be missing: the brokers "
                        "removed those before it (retention.ms), and none is left that is older than the position"
                    )
                if self._history.schemas is not None:  # each is sent again after so long
                    found = reader.offset_at(self._partition, sent_ms - 1000 * (self._repeated_s + SCHEMA_LATE_S))
                    begin = begin if found is None else min(found, begin)
            reader.begin({self._partition: begin})
        except BaseException:
            reader.close()
            raise
        return reader, PartitionIndex(after_ts, self._history.versions_of), end

    def _check_unread(self, index: PartitionIndex) -> None:
        """Keep what is missing as the error, when a schema should have come long ago."""
        now_s, unread = time.monotonic(), index.unread
        self._unread_s = min(self._unread_s, now_s)
        if unread is not None and now_s - self._unread_s > self._repeated_s + SCHEMA_LATE_S:
            offset, row = unread
            self._error = PumpUnavailable(
                f"{self._partition} offset {offset}: no message has the schema of `{row.of.schema}`.`{row.of.table}`, "
                f"version {row.of.version}, of the row at commit_ts {row.commit_ts}: the changefeed must send it "
                f"(send-bootstrap-interval-in-sec is {self._repeated_s} here, send-bootstrap-in-msg-count neither 0), "
                "or give [schema] history-url or history-file"
            )
            self._outage.failed(pump=self._node_id, error=str(self._error))

    def _next(self, reader: TopicReader) -> tuple[list[Rows | Message], int]:
        """Return the next messages, and the offset behind them; 0: there are none."""
        records = reader.poll(_READ_S)
        return self._messages.read(records), records[-1].offset + 1 if records else 0

    def _take(self, index: PartitionIndex, found: Rows | Message) -> None:
        if isinstance(found, Message) and any(isinstance(head, ResolvedEvent) for head in found.heads):
            self._has_resolved = True
        if self._has_resolved:
            self._received_s = time.monotonic()
        self._binlogs.extend(index.add(found))
        self._resolved_ts = index.resolved_ts


class Partitions:
    """All partitions of topics, as pumps that are always online. `topics`: names, or regular expressions that begin
    with ^; topics and partitions that appear later are read from their beginning. `to_end`: see PartitionPump."""

    def __init__(
        self,
        address: KafkaAddress,
        topics: Sequence[str],
        history: TopicHistory,
        *,
        silence_max_s: float = SILENCE_MAX_S,
        to_end: bool = True,
        connect: Callable[[int], Snapshot] | None = None,
    ) -> None:
        self._address = address
        self._pump_of = partial(
            PartitionPump, address=address, history=history, silence_max_s=silence_max_s, to_end=to_end, connect=connect
        )
        self._topics = topics or [address.topic]
        self._known: dict[str, KafkaPartition] = {}
        self._pumps: dict[str, PartitionPump] = {}
        self._reader: TopicReader | None = None
        self._asked_at_ts = -1

    async def list(self, kind: Kind) -> Listing:
        """Return the partitions in place of pumps. Raises HeldBack while brokers do not answer."""
        # Brokers have a partition before its first row, and everything is resolved after that row. So those that are
        # asked after everything was resolved up to a ts know all partitions with rows up to it.
        resolved_ts = min((pump.resolved_ts for pump in self._pumps.values()), default=0)
        if resolved_ts > self._asked_at_ts:
            try:
                found = await asyncio.to_thread(self._found)
            except ReadError as error:
                raise HeldBack("", str(error)) from error
            self._known |= {str(one): one for one in found}
            self._asked_at_ts = resolved_ts
        host = self._address.client.get("bootstrap.servers", "")
        nodes = [NodeRecord(NodeStatus(name, host, State.ONLINE), 1) for name in sorted(self._known)]
        return Listing(tuple(nodes), 1)

    def _found(self) -> Sequence[KafkaPartition]:
        if self._reader is None:
            self._reader = TopicReader(self._address.client, self._topics)
        else:
            self._reader.ask()
        return self._reader.topic_partitions()

    def dial(self, node_id: str, _host: str, _extension: bool) -> PumpClient:
        """Return the client of a partition. Raises ConfigError for messages that do not say all that is needed."""
        found = self._pumps[node_id] = self._pump_of(self._known[node_id])
        return found
