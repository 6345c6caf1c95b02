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
from drainer.protocol.event import Change

# A datum of a file. Text and binary strings are both bytes; the column's type says whether they are text.
PlainValue = int | float | bytes | str | None
_CHANGES: Final = {pb.Insert: Change.INSERT, pb.Update: Change.UPDATE, pb.Delete: Change.DELETE}


@dataclass(frozen=True, slots=True)
class FileColumn:
    """One column of a row. `type_code`: the number of the MySQL type. `type_name`: upstream's name of the type.
    `value`: the value, for an update the old one. `changed`: the new value of an update."""

    name: str
    type_code: int
    type_name: str
    value: PlainValue
    changed: PlainValue = None


@dataclass(frozen=True, slots=True)
class FileEvent:
    """The change of one row."""

    schema: str
    table: str
    change: Change
    columns: tuple[FileColumn, ...]

    @property
    def old(self) -> dict[str, PlainValue]:
        """Return the row before the change. For an insert: the inserted row."""
        return {column.name: column.value for column in self.columns}

    @property
    def new(self) -> dict[str, PlainValue]:
        """Return the row after the change. For a delete: the deleted row."""
        is_update = self.change is Change.UPDATE
        return {column.name: column.changed if is_update else column.value for column in self.columns}


@dataclass(frozen=True, slots=True)
class FileBinlog:
    """A transaction, or a DDL if `query` is not None."""

    commit_ts: int
    query: str | None = None
    _events: tuple[pb.Event, ...] = field(default=())

    def names(self) -> list[tuple[str, str]]:
        """Return (database, table) of each row."""
        return [(event.schema_name, event.table_name) for event in self._events]

    def events(self) -> Iterator[FileEvent]:
        """Yield the rows in upstream's order. Each is decoded when it is requested. Raises MessageError naming the
        table."""
        for event in self._events:
            yield _event(event)


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


def _event(event: pb.Event) -> FileEvent:
    table = f"`{event.schema_name}`.`{event.table_name}`"
    is_update = event.tp == pb.Update
    try:
        columns = tuple(_column(raw, is_update) for raw in event.row)
    except (ProtobufError, UnicodeDecodeError, DecodeError, MessageError) as error:
        raise MessageError(f"a row of {table}: {error}") from error
    if len({column.name for column in columns}) != len(columns):
        raise MessageError(f"a row of {table} has two columns of one name")
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
        raise MessageError(f"column {name} has {len(raw) - end} bytes after its value")
    return value
