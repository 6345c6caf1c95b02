"""Decodes Debezium JSON.

The message's schema says how to read a value. Without a schema, values stay as JSON has them: a date is a number of
days, a binary string is base64. If the schema contains TiDB's types (enable-tidb-extension), binary strings become
bytes again, and unsigned BIGINTs above 2^63-1 are restored.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import isfinite
from typing import Final

from binlog.errors import BinlogError, DecodeError
from binlog.tidb.table import ColumnInfo, TableInfo
from binlog.tidb.time import duration_text
from binlog.tidb.types import Tp

from drainer.protocol.debezium.schema import DECIMAL, EPOCH, tidb_type, value_of
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, ColumnValue, DdlEvent, Event, Image, ResolvedEvent, RowEvent, Value
from drainer.protocol.json_read import Reader, parse
from drainer.protocol.registry import ProtocolOptions
from drainer.row.column_type import ColumnType

_CHANGES: Final = {"c": Change.INSERT, "u": Change.UPDATE, "d": Change.DELETE, "r": Change.INSERT}
_WATERMARK: Final = "m"
_EPOCH: Final = datetime(1970, 1, 1)
_UNSIGNED_BIGINT: Final = "bigint unsigned"
_INSTEAD: Final = "let TiCDC write open-protocol, canal-json or simple"
_DIGITS_MAX: Final = 15  # a decimal of so many digits is the shortest one of its double
# Types that a table's definition tells from double and string: values are texts as in the column.
_TYPES: Final = {Tp.NEWDECIMAL: "decimal", Tp.TIMESTAMP: "timestamp"}


@dataclass(frozen=True, slots=True)
class Field:
    """One column's schema. `tidb`: TiDB's type, "" without the extension. `unclear`: what TiCDC writes for several
    values; None: nothing is known."""

    type: str
    semantic: str
    tidb: str
    unclear: int | str | None = None


@dataclass(frozen=True, slots=True)
class DebeziumDecoder:
    """Decodes Debezium JSON. `table_of`: returns a row's table from database, table and commit_ts, whose definition is
    used in place of schemas in messages. Then values are exactly those of the columns, or raise MessageError, and
    updates without old values do, too."""

    options: ProtocolOptions
    table_of: Callable[[str, str, int], TableInfo | None] | None = None
    _known: dict[int, tuple[TableInfo, Mapping[str, Field]]] = field(default_factory=dict)

    def decode(self, key: bytes | None, value: bytes | None) -> list[Event]:
        message = parse(value, "Debezium value", self.options.large_message_handle_compression)
        payload = message.needed("payload")
        source = payload.needed("source")
        commit_ts = source.integer("commit_ts", 0)
        if "op" not in payload.document:
            return [DdlEvent(commit_ts, source.text("db"), source.text("table", ""), payload.text("ddl"))]
        operation = payload.text("op")
        if operation == _WATERMARK:
            return [ResolvedEvent(source.integer("commit_ts"))]
        if operation not in _CHANGES:
            raise MessageError(f"{payload.where}: op {operation!r} is none of {', '.join(_CHANGES)}, {_WATERMARK}")
        return [self._row(key, message, payload, _CHANGES[operation])]

    def _row(self, key: bytes | None, message: Reader, payload: Reader, change: Change) -> RowEvent:
        source = payload.needed("source")
        schema, table, commit_ts = source.text("db"), source.text("table"), source.integer("commit_ts", 0)
        fields = _image_fields(message) if self.table_of is None else self._fields_of(schema, table, commit_ts)
        deleted = change is Change.DELETE
        before = payload.needed("before") if deleted else payload.child("before")
        if before is None and change is Change.UPDATE and self.table_of is not None:
            raise MessageError(f"{payload.where}: an update without before; the changefeed needs output-old-value=true")
        after = payload.child("after") if deleted else payload.needed("after")
        return RowEvent(
            change,
            commit_ts,
            schema,
            table,
            old=None if before is None else _image(before, fields),
            new=None if after is None else _image(after, fields),
            key=self._key(key),
        )

    def _fields_of(self, schema: str, table: str, commit_ts: int) -> Mapping[str, Field]:
        info = None if self.table_of is None else self.table_of(schema, table, commit_ts)
        if info is None:
            return {}
        if id(info) not in self._known:
            try:
                fields = {one.name: _field_of(one, self.options) for one in info.public_columns if not one.is_virtual}
            except BinlogError as error:
                raise MessageError(f"`{schema}`.`{table}` at commit_ts {commit_ts}: {error}; {_INSTEAD}") from error
            self._known[id(info)] = info, fields  # the table, too, so that no other one gets its id
        return self._known[id(info)][1]

    def _key(self, key: bytes | None) -> Image | None:
        """Return the key's columns. None: the table has none, or TiCDC 8.1 wrote the message, whose keys are empty."""
        if not key:
            return None
        message = parse(key, "Debezium key", self.options.large_message_handle_compression)
        schema = message.child("schema")
        return _image(message.needed("payload"), {} if schema is None else _fields(schema)) or None


def _field_of(column: ColumnInfo, options: ProtocolOptions) -> Field:
    """Return how TiCDC writes a column. Raises MessageError if its messages do not say NULL or the digits of a value,
    and DecodeError for a type that rows cannot carry."""
    kind, default = column.type, column.default if column.default_bit is None else column.default_bit
    if kind.tp is Tp.NEWDECIMAL and kind.flen > _DIGITS_MAX:
        raise MessageError(f"column {column.name}: DECIMAL({kind.flen}) is a double, which has {_DIGITS_MAX} digits")
    is_now = default == "CURRENT_TIMESTAMP" and kind.tp in (Tp.TIMESTAMP, Tp.DATETIME)  # null, or 0
    if default is not None and not kind.is_not_null and not is_now:
        raise MessageError(f"column {column.name}: TiCDC writes its default {default!r} for NULL")
    is_day = kind.tp in (Tp.DATE, Tp.NEWDATE, Tp.DATETIME)
    unclear = 0 if is_day and (kind.is_not_null or is_now) else "" if "" in kind.elems else None
    value = value_of(ColumnType.of(kind), options)
    return Field(_TYPES.get(kind.tp, value.type), value.semantic, tidb_type(kind), unclear)


def _image_fields(message: Reader) -> Mapping[str, Field]:
    """Return the schemas of the row's columns, which both images share. Empty if the message has no schema."""
    schema = message.child("schema")
    if schema is None:
        return {}
    for part in schema.objects("fields"):
        if part.text("field", "") == "after":
            return _fields(part)
    raise MessageError(f"{schema.where}: fields has none for 'after'")


def _fields(schema: Reader) -> Mapping[str, Field]:
    return {
        part.text("field"): Field(part.text("type"), part.text("name", ""), part.text("tidb_type", ""))
        for part in schema.objects("fields")
    }


def _image(row: Reader, fields: Mapping[str, Field]) -> Image:
    found = {}
    for name in row.document:
        field = fields.get(name)
        if fields and field is None:
            raise MessageError(f"{row.where}: {name} is not in the schema")
        type_name = "" if field is None else field.tidb or field.semantic or field.type
        found[name] = ColumnValue(_value(row, name, field), type_name=type_name)
    return found


def _value(row: Reader, name: str, field: Field | None) -> Value:
    found = row.document[name]
    if found is None:
        return None
    if isinstance(found, bool):
        return int(found)
    if not isinstance(found, int | str) and not (isinstance(found, float) and isfinite(found)):
        row.wrong(name, "a number, a string or a boolean")
    if field is None:
        return found
    if field.unclear is not None and found == field.unclear:
        others = "a day that does not exist, NULL, or a number without a name"
        raise MessageError(f"{row.where}: {name} is {found!r}, which TiCDC also writes for {others}; {_INSTEAD}")
    try:
        return _text(found, field) if isinstance(found, str) else _number(found, field)
    except (ValueError, OverflowError, DecodeError):
        row.wrong(name, f"a value of type {field.semantic or field.type}")


def _number(value: int | float, field: Field) -> Value:
    if field.type == "decimal":
        return repr(value)
    if field.type in ("float", "double"):
        return float(value)
    if isinstance(value, float) or field.type in ("string", "bytes", "boolean", "timestamp"):
        raise ValueError(value)
    match field.semantic:
        case "io.debezium.time.Date":
            return (_EPOCH + timedelta(days=value)).date().isoformat()
        case "io.debezium.time.Timestamp":
            return _moment(value * 1000)
        case "io.debezium.time.MicroTimestamp":
            return _moment(value)
        case "io.debezium.time.MicroTime":
            return duration_text(value * 1000, 6).removesuffix(".000000")
        case _:
            return value + (1 << 64) if value < 0 and field.tidb == _UNSIGNED_BIGINT else value


def _moment(micros: int) -> str:
    """Return a time as text. The fraction is left out if it is zero and otherwise has six digits: the schema does not
    say how many the column has."""
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(" ")


def _text(value: str, field: Field) -> Value:
    if field.type == "timestamp" and value.endswith("Z"):  # no TIMESTAMP is the epoch
        return "0000-00-00 00:00:00" if value == EPOCH.decode() else value[:-1]
    if field.semantic == "io.debezium.data.Bits":
        return int.from_bytes(base64.b64decode(value, validate=True), "little")
    if field.semantic == DECIMAL:  # always an integer: only BIGINT UNSIGNED is written so
        return int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
    if "blob" in field.tidb or "binary" in field.tidb:
        return base64.b64decode(value, validate=True)
    if field.type not in ("string", "bytes"):
        raise ValueError(value)
    return value
