"""Payloads of records as transactions and DDLs with plain values. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from binlog.errors import DecodeError
from binlog.pb import pb_binlog_pb2 as pb
from binlog.tidb.datum import decode_one
from google.protobuf.message import DecodeError as ProtobufError

from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change

# A datum of a file: text and binary strings are bytes; what holds text is known by the column's type.
PlainValue = int | float | bytes | str | None
_CHANGES: Final = {pb.Insert: Change.INSERT, pb.Update: Change.UPDATE, pb.Delete: Change.DELETE}


@dataclass(frozen=True, slots=True)
class FileColumn:
    """`type_code`: the number of the MySQL type; `type_name`: as upstream names it; `value`: of an update the old one,
    and `changed` the new one."""

    name: str
    type_code: int
    type_name: str
    value: PlainValue
    changed: PlainValue = None


@dataclass(frozen=True, slots=True)
class FileEvent:
    """A row."""

    schema: str
    table: str
    change: Change
    columns: tuple[FileColumn, ...]

    @property
    def old(self) -> dict[str, PlainValue]:
        """The row before; of an insert the row."""
        return {column.name: column.value for column in self.columns}

    @property
    def new(self) -> dict[str, PlainValue]:
        """The row after; of an insert or delete the row."""
        is_update = self.change is Change.UPDATE
        return {column.name: column.changed if is_update else column.value for column in self.columns}


@dataclass(frozen=True, slots=True)
class FileBinlog:
    """A transaction, or a DDL where `query` is not None."""

    commit_ts: int
    query: str | None = None
    _events: tuple[pb.Event, ...] = field(default=())

    def names(self) -> list[tuple[str, str]]:
        """(database, table) of each row."""
        return [(event.schema_name, event.table_name) for event in self._events]

    def events(self) -> Iterator[FileEvent]:
        """The rows, in upstream's order, decoded as they are asked for. Raises MessageError naming the table."""
        for event in self._events:
            yield _event(event)


def decode(payload: bytes) -> FileBinlog:
    """Raises MessageError for what is no Binlog; values are looked at when they are asked for."""
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
        raise MessageError(f"the record is no binlog: {error}") from error


def _event(event: pb.Event) -> FileEvent:
    place = f"`{event.schema_name}`.`{event.table_name}`"
    is_update = event.tp == pb.Update
    try:
        columns = tuple(_column(raw, is_update) for raw in event.row)
    except (ProtobufError, UnicodeDecodeError, DecodeError, MessageError) as error:
        raise MessageError(f"a row of {place}: {error}") from error
    if len({column.name for column in columns}) != len(columns):
        raise MessageError(f"a row of {place} has two columns of one name")
    return FileEvent(event.schema_name, event.table_name, _CHANGES[event.tp], columns)


def _column(raw: bytes, is_update: bool) -> FileColumn:
    column = pb.Column()
    column.ParseFromString(raw)
    if not column.name or len(column.tp) != 1:
        raise MessageError(f"column {column.name!r} has no name, or its type is {column.tp!r}")
    changed = _value(column.name, column.changed_value) if is_update else None
    return FileColumn(column.name, column.tp[0], column.mysql_type, _value(column.name, column.value), changed)


def _value(name: str, raw: bytes) -> PlainValue:
    value, end = decode_one(raw)
    if end != len(raw):
        raise MessageError(f"column {name} has {len(raw) - end} bytes behind its value")
    return value
