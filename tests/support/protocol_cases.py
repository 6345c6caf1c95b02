"""Every protocol as an encoder with its decoder, and what each of them can say of a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

from binlog.tidb.flatten import enum_text, set_text
from binlog.tidb.time import duration_text, unpack
from binlog.tidb.types import Tp

from drainer.batch.work import Kind
from drainer.protocol.avro.decoder import AvroDecoder
from drainer.protocol.avro.schema import avro_name
from drainer.protocol.encoder import Decoder, Encoder, merged
from drainer.protocol.event import Change, Event, Image, RowEvent, Value
from drainer.protocol.pb_file import EventEncoder, decode, dml_head
from drainer.protocol.registry import ProtocolOptions, make_decoder, make_encoder
from drainer.protocol.table import Column, RowChanges, Table
from drainer.row.column_type import DecodedValue, TypeClass
from tests.support.encoded import encoded_rows, framed_rows
from tests.support.typed_columns import read_value

ZONE: Final = "America/New_York"
OPEN: Final = ProtocolOptions("open-protocol")
TOPIC: Final = "all.rows"
_ABSENT: Final = "no such column"


@dataclass(frozen=True)
class Case:
    """One protocol with options."""

    name: str
    options: ProtocolOptions


def _case(name: str, protocol: str, **options: Any) -> Case:
    return Case(name, ProtocolOptions(protocol, time_zone=ZONE, **options))


_STRINGS: Final = {"avro_decimal_handling_mode": "string", "avro_bigint_unsigned_handling_mode": "string"}
CASES: Final = (
    _case("open", "open-protocol"),
    _case("open lz4", "open-protocol", large_message_handle_compression="lz4"),
    _case("canal", "canal-json", enable_tidb_extension=True),
    _case("canal compatible", "canal-json", enable_tidb_extension=True, content_compatible=True),
    _case("simple", "simple"),
    _case("simple avro", "simple", encoding_format="avro", large_message_handle_compression="snappy"),
    _case("avro", "avro", enable_tidb_extension=True, avro_output_old_row=True),
    _case("avro strings", "avro", enable_tidb_extension=True, avro_output_old_row=True, **_STRINGS),
    _case("debezium", "debezium", enable_tidb_extension=True),
    _case("secondary", "secondary-binlog"),
    _case("pb file", "pb-file"),
)


class Wire:
    """One protocol's encoder and decoder of one partition. Tables are made known to both as they are met."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._is_file = case.options.protocol == "pb-file"
        options = OPEN if self._is_file else case.options
        self.encoder: Encoder = make_encoder(options)
        self._decoder: Decoder = make_decoder(options)
        self._texts: dict[str, int] = {}  # a registry's schemas, and their ids

    def send(self, changes: RowChanges) -> list[RowEvent]:
        """What comes out behind the wire, in order."""
        events = [event for message in self.messages(changes) for event in self.decode(*message)]
        found = [event for event in events if isinstance(event, RowEvent)]
        assert len(found) == len(events) == len(changes), self.case.name
        return found

    def messages(self, changes: RowChanges) -> list[tuple[bytes | None, bytes | None]]:
        """Key and value of each message of these rows. `decode` knows the table from then on."""
        if self._is_file:
            return [(None, value) for value in _transactions(changes, self.case.options.zone)]
        self._meet(changes.table)
        rows = encoded_rows(self.encoder.table(changes.table, TOPIC), changes)
        return [(message.key, message.value) for message in framed_rows(self.encoder, rows)]

    def decode(self, key: bytes | None, value: bytes | None) -> list[Event]:
        return [*decode(value or b"").events()] if self._is_file else self._decoder.decode(key, value)

    def _meet(self, table: Table) -> None:
        if self.encoder.registers:
            required = self.encoder.required_schemas(TOPIC, table)
            for one in required:
                self._texts.setdefault(one.schema, len(self._texts) + 1)
            self.encoder = self.encoder.with_ids(merged({}, [(one, self._texts[one.schema]) for one in required]))
            known = {number: text for text, number in self._texts.items()}.__getitem__
            self._decoder = AvroDecoder(self.case.options, known)
        for message in self.encoder.bootstrap(table, 5):
            self._decoder.decode(message.key, message.value)


def _transactions(changes: RowChanges, zone: tzinfo) -> list[bytes]:
    """Each row as a transaction of a pb file."""
    table = changes.table
    columns = [(column.name, column.column_type) for column in table.columns]
    encoder = EventEncoder(table.schema, table.name, columns, zone)
    events = encoder.encode(changes.kind, changes.commit_ts, changes.old, changes.new)
    stamps = changes.commit_ts.tolist()
    return [dml_head(commit_ts, len(event)) + event for commit_ts, event in zip(stamps, events, strict=True)]


def check(wire: Wire, changes: RowChanges) -> None:
    """Every row of `changes` comes out as what it is, with every value that the protocol can say."""
    name, table = wire.case.name, changes.table
    for at, event in enumerate(wire.send(changes)):
        where = (name, table.name, changes.kind.name, at)
        old, new = (_row(images, at) for images in (changes.old, changes.new))
        is_avro = wire.case.options.protocol == "avro"
        assert event.change == Change(changes.kind.name.lower()), where
        bare_delete = is_avro and changes.kind is Kind.DELETE and event.commit_ts == 0
        assert bare_delete or event.commit_ts == int(changes.commit_ts[at]), where
        if is_avro:
            assert event.table == avro_name(table.name), where
        else:
            assert (event.schema, event.table) == (table.schema, table.name), where
        if new is not None:
            assert differing(values(event.new), said(wire.case, table.columns, new)) == {}, where
        if old is not None:
            expected = said(wire.case, table.columns, old)
            if wire.case.options.content_compatible and new is not None:
                after = said(wire.case, table.columns, new)
                expected = {column: value for column, value in expected.items() if not _same(value, after[column])}
            if bare_delete and table.handle:
                expected = said(wire.case, [table.columns[n] for n in table.handle], [old[n] for n in table.handle])
            assert differing(values(event.old), expected) == {}, where


def differing(found: Mapping[str, Value], expected: Mapping[str, Value]) -> dict[str, str]:
    """What was found and expected, of each column where they differ; 1, 1.0 and -0.0 differ too."""
    pairs = {name: (found.get(name, _ABSENT), expected.get(name, _ABSENT)) for name in {*found, *expected}}
    return {
        name: f"{one!r:.200} is not {other!r:.200}" for name, (one, other) in pairs.items() if not _same(one, other)
    }


def _same(one: Value, other: Value) -> bool:
    """The representation of a large text takes longer than all the rest."""
    if isinstance(one, str | bytes):
        return type(one) is type(other) and one == other
    return repr(one) == repr(other)


def _row(images: Sequence[Any] | None, at: int) -> list[DecodedValue] | None:
    return None if images is None else [column[at].as_py() for column in images]


def values(image: Image | None) -> dict[str, Value]:
    return {name: column.value for name, column in (image or {}).items()}


def said(case: Case, columns: Sequence[Column], row: Sequence[DecodedValue]) -> Mapping[str, Value]:
    """A row of decoded values as a reader of this protocol finds it, by the names that it has there."""
    is_avro = case.options.protocol == "avro"
    return {
        avro_name(column.name) if is_avro else column.name: value_said(case, column, value)
        for column, value in zip(columns, row, strict=True)
    }


def value_said(case: Case, column: Column, value: DecodedValue) -> Value:
    column_type, kind = column.column_type, column.column_type.kind
    if value is None:
        return None
    protocol = case.options.protocol
    if protocol in ("avro", "debezium"):
        if column_type.type_class is TypeClass.ENUM:
            return enum_text(int(value), kind)
        if column_type.type_class is TypeClass.SET:
            return set_text(int(value), kind)
    if protocol == "debezium":
        return _of_debezium(column, value)
    if protocol == "pb-file" and column_type.type_class is TypeClass.FLOAT:
        return float(value) + 0.0  # a datum has no sign of zero
    if protocol == "avro" and kind.tp is Tp.FLOAT:
        return value  # the single itself, not its shortest digits
    if protocol == "secondary-binlog":
        if kind.tp is Tp.YEAR:
            return str(value)
        if kind.tp is Tp.FLOAT:
            return value
        if column_type.type_class is TypeClass.TEXT:
            return str(read_value(column_type, value, case.options.zone))
    return read_value(column_type, value, case.options.zone)


def _of_debezium(column: Column, value: DecodedValue) -> Value:
    """DECIMALs are doubles, TIMESTAMPs are in UTC, and what is no day is NULL or the epoch."""
    column_type, kind = column.column_type, column.column_type.kind
    if column_type.type_class is TypeClass.DECIMAL:
        return float(str(value))
    if column_type.type_class in (TypeClass.DATE, TypeClass.DATETIME) and kind.tp is not Tp.TIMESTAMP:
        assert isinstance(value, int)
        return _day_or_none(column, value)
    if kind.tp is Tp.TIMESTAMP:
        if value == 0:
            return "1970-01-01T00:00:00Z"
        return str(read_value(column_type, value, UTC)).replace(" ", "T") + "Z"
    if column_type.type_class is TypeClass.TIME:
        assert isinstance(value, int)
        return duration_text(value, 6).removesuffix(".000000")
    return read_value(column_type, value, UTC)


def _day_or_none(column: Column, value: int) -> Value:
    """What is no day is NULL, and the epoch where there is no NULL. Years below 100 are those of 1970 to 2069, as
    Debezium's connector takes them."""
    civil = unpack(value)
    year = civil.year + (2000 if civil.year < 70 else 1900 if civil.year < 100 else 0)
    try:
        moment = datetime(year, civil.month, civil.day, civil.hour, civil.minute, civil.second, civil.microsecond)
    except ValueError:
        if not column.column_type.kind.is_not_null:
            return None
        moment = datetime(1970, 1, 1)
    return moment.date().isoformat() if column.column_type.kind.tp is Tp.DATE else moment.isoformat(" ")
