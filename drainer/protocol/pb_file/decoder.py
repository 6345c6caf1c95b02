"""Decodes payloads of records to transactions and DDLs with plain values. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from binlog.errors import DecodeError
from binlog.pb import pb_binlog_pb2 as pb
from binlog.tidb.datum import decode_one
from google.protobuf.message import DecodeError as ProtobufError

from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, ColumnValue, RowEvent, Value, text_or_bytes

_CHANGES: Final = {pb.Insert: Change.INSERT, pb.Update: Change.UPDATE, pb.Delete: Change.DELETE}


@dataclass(frozen=True, slots=True)
class FileBinlog:
    """A transaction, or a DDL if `query` is not None."""

    commit_ts: int
    query: str | None = None
    _events: tuple[pb.Event, ...] = field(default=())

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
