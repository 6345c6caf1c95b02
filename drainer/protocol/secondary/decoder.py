"""Decodes secondary binlogs, of this project and of TiDB-Binlog. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from binlog.errors import DecodeError
from binlog.pb import secondary_binlog_pb2 as pb
from google.protobuf.message import DecodeError as ProtobufError

from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, ColumnValue, DdlEvent, Event, Image, RowEvent, Value
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.secondary.encoder import NAME
from drainer.protocol.table import ColumnFlag

_CHANGES: Final = {pb.Insert: Change.INSERT, pb.Update: Change.UPDATE, pb.Delete: Change.DELETE}
_FIELDS: Final = ("int64_value", "uint64_value", "double_value", "bytes_value", "string_value")


def commit_ts_of(value: bytes) -> int:
    """Return the commit_ts of a message. Raises MessageError."""
    return _parsed(value).commit_ts


def _parsed(value: bytes) -> pb.Binlog:
    binlog = pb.Binlog()
    try:
        binlog.ParseFromString(value)
    except ProtobufError as error:
        raise MessageError(f"{NAME}: {error}") from error
    if not binlog.HasField("type") or not binlog.HasField("commit_ts"):
        raise MessageError(f"{NAME}: the message has no type or no commit_ts")
    return binlog


class SecondaryDecoder:
    """See encoder.Decoder. Events have no start_ts, because messages do not contain it. No option has an effect."""

    def __init__(self, options: ProtocolOptions | None = None) -> None:
        pass

    def decode(self, key: bytes | None, value: bytes | None) -> list[Event]:
        binlog = _parsed(value or b"")
        try:
            if not binlog.HasField("ddl_data" if binlog.type == pb.DDL else "dml_data"):
                raise MessageError(f"{NAME}: the message of commit_ts {binlog.commit_ts} has no data")
            if binlog.type == pb.DDL:
                return [_ddl(binlog)]
            tables = binlog.dml_data.tables
            return [event for table in tables for event in _rows(table, binlog.commit_ts)]
        except (UnicodeDecodeError, DecodeError) as error:
            raise MessageError(f"{NAME}: {error}") from error


def _ddl(binlog: pb.Binlog) -> DdlEvent:
    data = binlog.ddl_data
    return DdlEvent(binlog.commit_ts, data.schema_name, data.table_name, data.ddl_query.decode())


def _rows(table: pb.Table, commit_ts: int) -> list[Event]:
    names = [info.name for info in table.column_info]
    if len(set(names)) != len(names):
        raise MessageError(f"{NAME}: two columns of {table.schema_name}.{table.table_name} have one name")
    found: list[Event] = []
    for mutation in table.mutations:
        change = _CHANGES[mutation.type]
        image = _image(table, mutation.row)
        if mutation.HasField("change_row") != (change is Change.UPDATE):
            raise MessageError(f"{NAME}: an update alone has a change_row ({table.schema_name}.{table.table_name})")
        old = _image(table, mutation.change_row) if change is Change.UPDATE else None
        if change is Change.DELETE:
            old, image = image, None  # type: ignore[assignment]
        found.append(RowEvent(change, commit_ts, table.schema_name, table.table_name, old, image))
    return found


def _image(table: pb.Table, row: pb.Row) -> Image:
    infos: Sequence[Any] = table.column_info
    if len(row.columns) != len(infos):
        raise MessageError(
            f"{NAME}: a row of {table.schema_name}.{table.table_name} has {len(row.columns)} columns, and the table "
            f"{len(infos)}"
        )
    return {info.name: _value(info, column) for info, column in zip(infos, row.columns, strict=True)}


def _value(info: pb.ColumnInfo, column: pb.Column) -> ColumnValue:
    flags = int(ColumnFlag.PRIMARY_KEY) if info.is_primary_key else 0
    given = [name for name in _FIELDS if column.HasField(name)]
    if len(given) + column.is_null != 1:
        raise MessageError(f"{NAME}: column {info.name} has {len(given)} values, is_null {column.is_null}")
    value: Value = getattr(column, given[0]) if given else None
    if isinstance(value, bytes) and info.mysql_type == "bit":
        value = int.from_bytes(value, "big")
    elif isinstance(value, bytes) and info.mysql_type == "json":
        value = value.decode()
    return ColumnValue(value, flags=flags, type_name=info.mysql_type)
