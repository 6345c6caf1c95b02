"""Reads a range of one partition in a task, and returns its rows and DDLs as a pull of a pump returns binlogs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from itertools import chain, islice
from typing import Any, Final

import pyarrow as pa
from binlog.errors import BinlogError, DecodeError, PumpUnavailable
from binlog.tidb.flatten import flatten
from binlog.tidb.table import TableInfo
from binlog.tidb.time import datetime_text, parse_datetime, to_zone
from binlog.tidb.types import Tp

from drainer.changes import collector_paused
from drainer.changes.texts import is_read_as_names, selected
from drainer.ddl.lexer import quoted
from drainer.kafka_reading.address import KafkaAddress
from drainer.kafka_reading.records import (
    KafkaPartition,
    PartitionDecoders,
    ReadError,
    Record,
    Repeats,
    TopicReader,
    contents_of,
)
from drainer.protocol.debezium.decoder import DebeziumDecoder
from drainer.protocol.encoder import Decoder
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, ColumnValue, DdlEvent, Event, Image, ResolvedEvent, RowEvent, Value
from drainer.protocol.json_read import Columns
from drainer.protocol.large import claimed_row, open_store
from drainer.protocol.registry import PROTOCOLS, ProtocolOptions
from drainer.protocol.simple.decoder import SimpleDecoder
from drainer.protocol.table import ColumnFlag, handle_index
from drainer.pumps.client import messages_of
from drainer.pumps.topic import SILENCE_IN_PULL_S, received
from drainer.pumps.watermark import AddBinlogs, Counted
from drainer.ranges.upstream import RowKey, Snapshot, Upstream, UpstreamDown, UpstreamError
from drainer.row.column_type import NUMBERS, ColumnType, TypeClass, shown_as
from drainer.schema.errors import SchemaError
from drainer.schema.filter import OWN_SCHEMA
from drainer.sink.replay import to_utc
from drainer.ticdc.binlogs import RowEncoder, ddl_binlog, ddl_start_ts
from drainer.ticdc.columns import NotPlain, PlainReader, PlainRow, PlainRows, plain_reader
from drainer.ticdc.tables import NamedTable, NamedTables, unpacked


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The messages of one partition that hold a range's rows and DDLs, in place of a pump's topic: from offset `begin`
    to before `end`; they also hold others. `resolved_ts`: the ts up to which the partition was resolved before
    `begin`; `final_ts`: the ts up to which it was resolved when the range was planned; `tables`: packed NamedTables;
    `connect`: for rows whose messages have their key alone. Picklable."""

    partition: KafkaPartition
    address: KafkaAddress
    begin: int
    end: int
    resolved_ts: int
    final_ts: int
    tables: bytes = field(repr=False)
    connect: Callable[[int], Snapshot] | None = field(default=None, repr=False)

    def pull(self, after_ts: int, until_ts: int) -> Iterator[bytes]:
        """Yield serialized PullRangeResp with every row and DDL in (after_ts, until_ts], ascending by commit_ts and
        start_ts. Raises MessageError, ReadError, ClaimStoreError, PumpUnavailable."""
        if self._has_messages(until_ts):
            translation = _Translation(self, after_ts, until_ts)
            with closing(translation.upstream):
                found = translation.binlogs(self._records())
                yield from messages_of((commit_ts, payload) for commit_ts, _, payload in found)

    def fold(self, builder: Any, add: AddBinlogs, after_ts: int, until_ts: int) -> Iterator[Counted]:
        """Add every row and DDL in (after_ts, until_ts] to what folds or divides a task's part (the `builder` of a
        ReadOrder), with `add` or as columns. Yield how many they are, and their bytes. Raises as `pull`."""
        if self._has_messages(until_ts):
            translation = _Translation(self, after_ts, until_ts)
            with closing(translation.upstream):
                yield from translation.fold(builder, add, self._records())

    def _has_messages(self, until_ts: int) -> bool:
        if until_ts > self.final_ts:  # later messages may belong to the range
            raise ReadError(f"{self.partition} was read up to {self.final_ts}, below the end {until_ts} of its range")
        return self.begin < self.end

    def _records(self) -> Iterator[Record]:
        """Yield the records of the range. Raises ReadError."""
        offset = self.begin - 1

        def silent() -> ReadError:
            return ReadError(
                f"{self.partition}: nothing came for {SILENCE_IN_PULL_S:g} s after offset {offset}, before offset "
                f"{self.end - 1}, which was there"
            )

        with closing(TopicReader(self.address.client, [self.partition.topic])) as reader:
            reader.begin({self.partition: self.begin})
            for record in received(reader.poll, silent):
                offset = record.offset
                if offset < self.end:
                    yield record
                if offset + 1 >= self.end:
                    return


_Binlog = tuple[int, int, bytes]  # commit_ts, start_ts, payload
_TOGETHER_BYTES: Final = 8 << 20  # of messages whose rows become columns together
_TOGETHER: Final = 10_000  # binlogs that are added together


class _Translation:
    """The messages of one range, as binlogs in order. `together_bytes`: see _TOGETHER_BYTES."""

    def __init__(
        self, wanted: PartitionRange, after_ts: int, until_ts: int, together_bytes: int = _TOGETHER_BYTES
    ) -> None:
        self._wanted, self._together_bytes = wanted, together_bytes
        self._after_ts, self._until_ts = after_ts, until_ts
        self._tables: NamedTables = unpacked(wanted.tables)
        self._decoder = self._decoder_of()
        self._repeats = Repeats()
        self._encoders: dict[tuple[int, int], RowEncoder] = {}
        options = wanted.address.options
        self._zone = UTC if options.protocol.lower() == "debezium" else options.zone
        self.upstream = Upstream(wanted.connect)
        self._raw = options.claim_check_raw_value
        self._store = open_store(options.claim_check_storage_uri) if options.claim_check_storage_uri else None

    def _decoder_of(self) -> Decoder:
        options = self._wanted.address.options
        if options.protocol.lower() == "simple":
            return SimpleDecoder(options, self._known_columns)
        if options.protocol.lower() == "debezium":
            return DebeziumDecoder(options, self._known_table)
        # An update has at least one old value, so open-protocol's row without any is an insert.
        return PartitionDecoders(replace(options, only_output_updated_columns=False)).of(self._wanted.partition)

    def _known_table(self, schema: str, table: str, commit_ts: int) -> TableInfo | None:
        found = None if schema.lower() == OWN_SCHEMA else self._tables.at(schema, table, commit_ts)
        return None if found is None else found.info

    def _known_columns(self, schema: str, table: str, commit_ts: int) -> Columns | None:
        """The columns of a row of Simple, whose own schemas may be before the range."""
        found = self._tables.at(schema, table, commit_ts)
        if found is None:
            return None
        index = handle_index(found.info)
        key = {column.id for column in found.info.index_columns(index)} if index is not None else set()
        return {one.name: (one.type.mysql_name, ColumnFlag.HANDLE_KEY * (one.id in key)) for one in found.info.columns}

    def fold(self, builder: Any, add: AddBinlogs, records: Iterable[Record]) -> Iterator[Counted]:
        """See PartitionRange.fold."""
        done_ts, options = self._wanted.resolved_ts, self._wanted.address.options
        plain, decoder = plain_reader(options), getattr(builder, "changes_decoder", None)
        if plain is not None and decoder is not None:
            maker = PlainRows(options, self._tables, decoder, self._encoder)
            with collector_paused():
                records, done_ts = yield from self._fold_plain(builder, maker, plain, iter(records))
        found = self.binlogs(records, done_ts)
        while some := [payload for *_, payload in islice(found, _TOGETHER)]:
            counted = Counted.of(some)
            add(some, counted.size or 0)
            yield counted

    def _fold_plain(
        self, builder: Any, maker: PlainRows, plain: PlainReader, records: Iterator[Record]
    ) -> Generator[Counted, None, tuple[Iterable[Record], int]]:
        """Add rows as columns while they are plain. Return the other records, and the ts up to which all was added."""
        held, waiting = list[Record](), list[Sequence[PlainRow]]()  # records; of each, the rows that are to be added
        added_ts = done_ts = max(self._wanted.resolved_ts, self._after_ts)
        begin = held_bytes = 0  # of what came since the last event; of all
        for record in chain(records, [None]):
            rows = plain(record.key, record.value) if record is not None else None
            if record is not None:
                held.append(record)
                waiting.append(rows or ())
                held_bytes += len(record.value or b"")
            if rows is not None:
                continue
            waiting[begin:] = _between(waiting[begin:], done_ts, self._until_ts)
            begin = len(held)
            for event in self._events(record) if record is not None else ():
                if isinstance(event, ResolvedEvent):
                    done_ts = max(done_ts, event.commit_ts - 1)
                elif isinstance(event, RowEvent) or (
                    isinstance(event, DdlEvent) and event.query and self._is_wanted(event, done_ts)
                ):
                    return chain(held, records), added_ts
            if record is None:
                done_ts = self._until_ts  # the event that says so is behind the range
            elif done_ts < self._until_ts and held_bytes < self._together_bytes:
                continue
            due = _between(waiting, added_ts, done_ts)
            size = sum(len(one.value or b"") for one, rows in zip(held, due, strict=True) if rows)
            try:
                builder.add_changes(maker.changes([*chain.from_iterable(due)]), size)
            except (NotPlain, DecodeError, SchemaError, pa.ArrowException):
                return chain(held, records), added_ts
            yield Counted(sum(map(len, due)), size)
            waiting = [] if due is waiting else _between(waiting, done_ts, self._until_ts)
            # What is between the rest stays, because rows of other ts end a stretch of equal ones (Repeats).
            first = next((at for at, rows in enumerate(waiting) if rows), len(held))
            held, waiting = held[first:], waiting[first:]
            added_ts, begin, held_bytes = done_ts, len(held), sum(len(one.value or b"") for one in held)
            if done_ts >= self._until_ts:
                break
        return (), self._until_ts

    def binlogs(self, records: Iterable[Record], done_ts: int | None = None) -> Iterator[_Binlog]:
        """Yield the binlogs, ascending. They are held until a resolved event says that no earlier ones follow; reading
        ends with the resolved event that completes the range. `done_ts`: that up to which they are not wanted; default:
        the range's resolved ts."""
        held: list[_Binlog] = []
        done_ts = self._wanted.resolved_ts if done_ts is None else done_ts
        for record in records:
            for number, event in enumerate(self._events(record)):
                if isinstance(event, ResolvedEvent):
                    if event.commit_ts - 1 > done_ts:
                        done_ts = event.commit_ts - 1
                        yield from sorted(one for one in held if one[0] <= done_ts)
                        held = [one for one in held if one[0] > done_ts]
                        self._repeats.forget_below(done_ts + 1)
                        if done_ts >= self._until_ts:
                            return
                    continue
                try:
                    if isinstance(event, DdlEvent):
                        held += self._ddl(event, done_ts)
                    elif isinstance(event, RowEvent):
                        place = record.topic_partition.partition, record.offset << 20 | number
                        held += self._row(event, place, done_ts)
                except BinlogError as error:
                    raise self._failed(record, error) from error
        yield from sorted(held)

    def _events(self, record: Record) -> list[Event]:
        try:
            return [*self._decoder.decode(record.key, record.value)]
        except MessageError as error:
            raise self._failed(record, error) from error

    @staticmethod
    def _failed(record: Record, error: BinlogError) -> BinlogError:
        where = f"{record.topic_partition} offset {record.offset}"
        return error if isinstance(error, PumpUnavailable) else MessageError(f"{where}: {error}")

    def _is_wanted(self, event: DdlEvent | RowEvent, done_ts: int) -> bool:
        return event.schema.lower() != OWN_SCHEMA and max(done_ts, self._after_ts) < event.commit_ts <= self._until_ts

    def _ddl(self, event: DdlEvent, done_ts: int) -> Iterator[_Binlog]:
        if event.query and self._is_wanted(event, done_ts):
            job_id, query = self._tables.job(event)
            start_ts = ddl_start_ts(job_id)
            yield event.commit_ts, start_ts, ddl_binlog(job_id, query, event.commit_ts, start_ts)

    def _row(self, event: RowEvent, place: tuple[int, int], done_ts: int) -> Iterator[_Binlog]:
        table = self._tables.at(event.schema, event.table, event.commit_ts)
        if table is None:
            if not self._is_wanted(event, done_ts):
                return
            raise MessageError(
                f"`{event.schema}`.`{event.table}` at commit_ts {event.commit_ts} is not in the DDL history"
            )
        encoder = self._encoder(table)
        # A row with a key that comes again is the same binlog. Rows that are not wanted end a stretch of equal ones,
        # too.
        is_repeat = not encoder.is_keyed and self._repeats.is_repeat(event, contents_of(event))
        if not is_repeat and self._is_wanted(event, done_ts):
            row = self._whole(event, table.info) if event.handle_only else event
            start_ts, binlog = encoder.binlog(row, None if encoder.is_keyed else place)
            yield row.commit_ts, start_ts, binlog

    def _encoder(self, table: NamedTable) -> RowEncoder:
        found = self._encoders.get(table[:2])
        if found is None:
            found = self._encoders[table[:2]] = RowEncoder(table, self._zone)
        return found

    def _whole(self, event: RowEvent, info: TableInfo) -> RowEvent:
        if not event.claim:
            return whole_row(event, info, self.upstream, self._wanted.address.options)
        if self._store is None:
            raise MessageError(
                f"a row of `{event.schema}`.`{event.table}` at commit_ts {event.commit_ts} was too large for its "
                f"message, and its values are at {event.claim}: claim-check-storage-uri in the address says where"
            )
        return claimed_row(event, self._decoder, self._store, raw_value=self._raw)


def _between(rows_of: list[Sequence[PlainRow]], after_ts: int, until_ts: int) -> list[Sequence[PlainRow]]:
    """Return of each record's rows those in (after_ts, until_ts]."""
    commit_ts = [row.commit_ts for rows in rows_of for row in rows]
    if not commit_ts or (after_ts < min(commit_ts) and max(commit_ts) <= until_ts):  # nearly always
        return rows_of
    return [[row for row in rows if after_ts < row.commit_ts <= until_ts] for rows in rows_of]


# Reads upstream the rows whose messages have their handle key alone (`large-message-handle-option=handle-key-only`):
# new values as of the row's commit_ts, old ones as of the ts before it, each by the key of its image. They are written
# as messages have them, so that the row becomes the binlog that its whole message would become.
def whole_row(event: RowEvent, info: TableInfo, upstream: Upstream, options: ProtocolOptions) -> RowEvent:
    """Return the event with the values of all columns. `info`: of its table at its commit_ts. Raises MessageError,
    which names table, key and commit_ts, and PumpUnavailable while upstream does not answer."""
    old, new = event.old, event.new
    key = {**(new or {}), **(old or {})}  # the old image may lack what has not changed
    is_open = PROTOCOLS.get(options.protocol.lower()) == "open"
    try:
        if is_open and options.only_output_updated_columns and event.change is Change.INSERT:
            raise MessageError("and it may be an update: the changefeed must not set only-output-updated-columns")
        old = None if old is None else _read(event, info, key, upstream, event.commit_ts - 1, options.zone)
        new = None if new is None else _read(event, info, new, upstream, event.commit_ts, options.zone)
    except UpstreamDown as error:
        raise PumpUnavailable(str(error)) from error  # the batch is read again
    except (UpstreamError, MessageError, ValueError) as error:
        shown = ", ".join(f"{name} = {one.value!r}" for name, one in key.items())
        raise MessageError(
            f"the {event.change} of `{event.schema}`.`{event.table}` at commit_ts {event.commit_ts} was too large for "
            f"its message, which has the key ({shown:.200}) alone, and its values cannot be read upstream: {error}; or "
            "let TiCDC use claim-check instead of handle-key-only"
        ) from error
    return event._replace(old=old, new=new, handle_only=False)


def _read(event: RowEvent, info: TableInfo, key: Image, upstream: Upstream, ts: int, zone: tzinfo) -> Image:
    """Return the row with this key as of `ts`."""
    columns = {one.name: ColumnType.of(one.type) for one in info.public_columns if not (one.is_virtual or one.hidden)}
    if lacking := key.keys() - columns.keys():
        raise MessageError(f"the table as the DDL history has it lacks {', '.join(sorted(lacking))}")
    of_key = RowKey(tuple(key), tuple(columns[name] for name in key))
    border = of_key.border([_text(columns[name], one.value, zone) for name, one in key.items()], any_date=True)
    if not border:
        raise MessageError("there is no key, or a value of it cannot be a literal")
    equal = [f"{quoted(name)} = {literal}" for name, literal in zip(key, border, strict=True)]
    names = ", ".join(selected(name, of) for name, of in columns.items())
    with upstream.at(ts) as snapshot:
        rows = snapshot.ask(f"SELECT {names} FROM {quoted(event.schema, event.table)} WHERE {' AND '.join(equal)}")
    if len(rows) != 1:
        raise MessageError(f"{len(rows)} rows have this key as of {ts}")
    found = zip(columns.items(), rows[0], strict=True)
    return {**{name: ColumnValue(_value(of, text, zone)) for (name, of), text in found}, **key}


def _text(of: ColumnType, value: Value, zone: tzinfo) -> bytes | None:
    """Return the text that `selected` reads of a value that messages have so."""
    if of.kind.tp is Tp.TIMESTAMP and isinstance(value, str):
        value = to_utc(value, zone)
    decoded = of.decoded_value(flatten(value, of.kind))
    if decoded is not None and of.type_class not in (TypeClass.BYTES, TypeClass.FLOAT):
        decoded = shown_as(of)(decoded)
    return decoded if isinstance(decoded, bytes | None) else repr(decoded).encode()


def _value(of: ColumnType, text: bytes | None, zone: tzinfo) -> Value:
    """Return a value as messages have it, or another form that RowEncoder takes."""
    if text is None or of.type_class in (TypeClass.BYTES, TypeClass.TEXT):
        return text
    if of.type_class in NUMBERS and not is_read_as_names(of):
        return int(text)
    shown = text.decode(errors="replace")
    return datetime_text(to_zone(parse_datetime(shown), zone), of.kind.fsp) if of.kind.tp is Tp.TIMESTAMP else shown
