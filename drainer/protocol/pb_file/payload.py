"""Payloads of records, messages `Binlog` of pb_binlog.proto: encodes transactions and DDLs, and decodes them to plain
values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import partial
from itertools import repeat
from struct import Struct
from typing import Any, Final

from binlog.errors import DecodeError
from binlog.pb import pb_binlog_pb2 as pb
from binlog.tidb.datum import decode_one, encode_value
from binlog.tidb.job import ActionType
from binlog.tidb.memcomparable import encode_float
from binlog.tidb.types import Tp
from binlog.tidb.varint import VARINTS, field, signed
from google.protobuf.message import DecodeError as ProtobufError

from drainer.batch.work import Kind
from drainer.changes.decode import Columns
from drainer.changes.texts import numbers_of
from drainer.changes.vector import Words
from drainer.protocol.column_text import texts_of
from drainer.protocol.errors import MessageError, converted
from drainer.protocol.event import Change, ColumnValue, RowEvent, Value, text_or_bytes
from drainer.row.column_type import ColumnType, TypeClass

# Encodes complete columns as datums in value form, as in TiDB-Binlog's files (`D-TR-09`). Pure.
NULL: Final = b"\x00"
_single = Struct("<f")


def datums(column_type: ColumnType, array: Any, zone: tzinfo) -> list[bytes]:
    """Encode decoded values (row/column_type.py). Dates, times, DECIMAL and JSON are text, a TIMESTAMP in `zone`.
    ENUM, SET and BIT are unsigned numbers. Raises DecodeError for a value that a column of its type cannot hold."""
    type_class = column_type.type_class
    if type_class in (TypeClass.TEXT, TypeClass.BYTES):
        return _texts(array.to_pylist())
    if type_class in (TypeClass.INT, TypeClass.ENUM, TypeClass.SET, TypeClass.BIT, TypeClass.FLOAT):
        return _each(_number(column_type), numbers_of(column_type, array).to_pylist())
    return _texts(texts_of(column_type, array, zone).to_pylist())


def _texts(values: list[bytes | None]) -> list[bytes]:
    return [NULL if value is None else b"\x02" + VARINTS[2 * len(value)] + value for value in values]


def _each(encode: Callable[[Any], bytes], values: list[Any]) -> list[bytes]:
    """Encode each distinct value once."""
    known = {value: encode(value) for value in set(values) if value}
    known |= {0: encode(0), None: NULL}
    return [known[value] for value in values]


def _number(column_type: ColumnType) -> Callable[[Any], bytes]:
    kind, type_class = column_type.kind, column_type.type_class
    if type_class is TypeClass.FLOAT:
        return _as_single if kind.tp is Tp.FLOAT else lambda value: b"\x05" + encode_float(value)
    if type_class is TypeClass.INT and (kind.tp is Tp.YEAR or not kind.is_unsigned):
        return encode_value
    return lambda value: b"\x09" + VARINTS[value]


def _as_single(value: float) -> bytes:
    try:
        return b"\x05" + encode_float(_single.unpack(_single.pack(value))[0])
    except OverflowError:
        raise DecodeError("float", offset=0, detail=f"{value} does not fit 4 bytes") from None


_TYPES: Final = {Kind.INSERT: b"\x18\x00", Kind.UPDATE: b"\x18\x01", Kind.DELETE: b"\x18\x02"}


class EventEncoder:
    """Encodes rows of one version of a table. `columns`: name and type of each column, in the order of the images.
    Values of inserts and deletes are in the field `value`. Updates have the old value in `value` and the new one in
    `changed_value`."""

    def __init__(self, schema: str, table: str, columns: Sequence[tuple[str, ColumnType]], zone: tzinfo) -> None:
        self._table = f"`{schema}`.`{table}`"
        self._head = field(b"\x0a", schema.encode()) + field(b"\x12", table.encode())
        self._columns = [(name, column_type, _described(name, column_type)) for name, column_type in columns]
        self._zone = zone

    def encode(self, kind: Kind, commit_ts: Words, old: Columns | None, new: Columns | None) -> list[bytes]:
        """Encode each row as a field `events` of DMLData. Raises EncodeError naming table, column and commit_ts."""
        images = [
            self._cells(index, commit_ts, None if old is None else old[index], None if new is None else new[index])
            for index in range(len(self._columns))
        ]
        heads = repeat(self._head + _TYPES[kind], len(commit_ts))
        return [b"\x0a" + VARINTS[len(event)] + event for event in map(b"".join, zip(heads, *images, strict=True))]

    def _cells(self, index: int, commit_ts: Words, old: Any, new: Any) -> list[bytes]:
        """Encode one column's fields `row`, each a message `Column`."""
        name, column_type, described = self._columns[index]
        where, convert = f"{self._table}.`{name}`", partial(datums, column_type, zone=self._zone)
        values = [converted(where, commit_ts, convert, image) for image in (old, new) if image is not None]
        if len(values) == 1:
            heads = _Heads(described)
            return [heads[len(value)] + value for value in values[0]]
        return [
            b"\x22" + VARINTS[len(described) + len(before) + len(after)] + described + before + after
            for before, after in zip(
                [b"\x22" + VARINTS[len(value)] + value for value in values[0]],
                [b"\x2a" + VARINTS[len(value)] + value for value in values[1]],
                strict=True,
            )
        ]


class _Heads(dict[int, bytes]):
    """Maps the length of a value in bytes to what is written in front of the value."""

    def __init__(self, described: bytes) -> None:
        super().__init__()
        self._described = described

    def __missing__(self, size: int) -> bytes:
        before = self._described + b"\x22" + VARINTS[size]
        found = self[size] = b"\x22" + VARINTS[len(before) + size] + before
        return found


def _described(name: str, column_type: ColumnType) -> bytes:
    """Encode the fields of `Column` in front of its values."""
    kind = column_type.kind
    return field(b"\x0a", name.encode()) + field(b"\x12", bytes([kind.tp])) + field(b"\x1a", kind.mysql_name.encode())


def dml_head(commit_ts: int, length: int) -> bytes:
    """Return what precedes the events of a transaction. `length`: the length of the events in bytes."""
    return b"\x08\x00\x10" + signed(commit_ts) + b"\x1a" + VARINTS[length]


def ddl_binlog(commit_ts: int, query: str) -> bytes:
    """Return a complete message `Binlog` for a DDL."""
    return b"\x08\x01\x10" + signed(commit_ts) + field(b"\x22", query.encode())


def ddl_text(schema: str, query: str, type_code: int) -> str:
    """Return the text of a DDL in files. It selects the database first, unless the DDL creates a database."""
    query = query.rstrip("; \t\r\n")
    if not schema:
        return query
    if type_code == ActionType.CREATE_SCHEMA:
        return f"{query};"
    quoted = schema.replace("`", "``")
    return f"use `{quoted}`; {query};"


_CHANGES: Final = {pb.Insert: Change.INSERT, pb.Update: Change.UPDATE, pb.Delete: Change.DELETE}


@dataclass(frozen=True, slots=True)
class FileBinlog:
    """A transaction, or a DDL if `query` is not None."""

    commit_ts: int
    query: str | None = None
    _events: tuple[pb.Event, ...] = ()

    def names(self) -> list[tuple[str, str]]:
        """Return (database, table) of each row."""
        return [(event.schema_name, event.table_name) for event in self._events]

    def events(self) -> Iterator[RowEvent]:
        """Yield the rows in upstream's order. Each is decoded when it is requested. Text that is not UTF-8 is returned
        as bytes. Raises MessageError naming the table."""
        for event in self._events:
            yield _event(event, self.commit_ts)


def decode(payload: bytes) -> FileBinlog:
    """Parse a payload. Values are only decoded when they are requested. Raises MessageError if the payload is not a
    Binlog."""
    binlog = pb.Binlog()
    try:
        binlog.ParseFromString(payload)
        if not binlog.HasField("tp") or not binlog.HasField("commit_ts"):
            raise MessageError("the record has no type or no commit_ts")
        if binlog.commit_ts < 0:
            raise MessageError(f"commit_ts {binlog.commit_ts} is negative")
        if binlog.tp == pb.DDL:
            return FileBinlog(binlog.commit_ts, binlog.ddl_query.decode())
        return FileBinlog(binlog.commit_ts, None, tuple(binlog.dml_data.events))
    except (ProtobufError, UnicodeDecodeError) as error:
        raise MessageError(f"the record is not a binlog: {error}") from error


def _event(event: pb.Event, commit_ts: int) -> RowEvent:
    table, change = f"`{event.schema_name}`.`{event.table_name}`", _CHANGES[event.tp]
    try:
        columns = [_column(raw) for raw in event.row]
        image = new = {column.name: _cell(column, column.value) for column in columns}
        if change is Change.UPDATE:
            new = {column.name: _cell(column, column.changed_value) for column in columns}
    except (ProtobufError, UnicodeDecodeError, DecodeError, MessageError) as error:
        raise MessageError(f"a row of {table}: {error}") from error
    if len(image) != len(columns):
        raise MessageError(f"a row of {table} has two columns of one name")
    return RowEvent(
        change,
        commit_ts,
        event.schema_name,
        event.table_name,
        old=None if change is Change.INSERT else image,
        new=None if change is Change.DELETE else new,
    )


def _column(raw: bytes) -> pb.Column:
    column = pb.Column()
    column.ParseFromString(raw)
    if not column.name or len(column.tp) != 1:
        raise MessageError(f"column {column.name!r} has no name, or its type is {column.tp!r}")
    if not isinstance(column.mysql_type, str):  # protobuf returns text that is not UTF-8 as bytes
        raise MessageError(f"column {column.name!r} has the type {column.mysql_type!r}")
    return column


def _cell(column: pb.Column, raw: bytes) -> ColumnValue:
    value, end = decode_one(raw)
    if end != len(raw):
        raise MessageError(f"column {column.name} has {len(raw) - end} bytes after its value")
    return ColumnValue(_text(column.mysql_type, value), column.tp[0], type_name=column.mysql_type)


def _text(type_name: str, value: Value) -> Value:
    """Text and binary strings are both bytes in a file; the type says which they are."""
    if not isinstance(value, bytes) or "blob" in type_name or "binary" in type_name:
        return value
    return text_or_bytes(value)
