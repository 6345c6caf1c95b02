"""Decodes Debezium JSON.

The message's schema says how to read a value. Without a schema, values stay as JSON has them: a date is a number of
days, a binary string is base64. If the schema contains TiDB's types (enable-tidb-extension), binary strings become
bytes again, and unsigned BIGINTs above 2^63-1 are restored.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import isfinite
from typing import Final

from binlog.errors import DecodeError
from binlog.tidb.time import duration_text

from drainer.protocol.debezium.values import DECIMAL
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, ColumnValue, DdlEvent, Event, Image, ResolvedEvent, RowEvent, Value
from drainer.protocol.json_read import Reader, parse
from drainer.protocol.options import ProtocolOptions

_CHANGES: Final = {"c": Change.INSERT, "u": Change.UPDATE, "d": Change.DELETE, "r": Change.INSERT}
_WATERMARK: Final = "m"
_EPOCH: Final = datetime(1970, 1, 1)
_UNSIGNED_BIGINT: Final = "bigint unsigned"


@dataclass(frozen=True, slots=True)
class Field:
    """One column's schema. `tidb`: TiDB's type, "" without the extension."""

    type: str
    semantic: str
    tidb: str


@dataclass(frozen=True, slots=True)
class DebeziumDecoder:
    """Decodes Debezium JSON. Keeps no state between messages."""

    options: ProtocolOptions

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
        fields = _image_fields(message)
        deleted = change is Change.DELETE
        before = payload.needed("before") if deleted else payload.child("before")
        after = payload.child("after") if deleted else payload.needed("after")
        source = payload.needed("source")
        return RowEvent(
            change,
            source.integer("commit_ts", 0),
            source.text("db"),
            source.text("table"),
            old=None if before is None else _image(before, fields),
            new=None if after is None else _image(after, fields),
            key=self._key(key),
        )

    def _key(self, key: bytes | None) -> Image | None:
        if not key:  # TiCDC 8.1 writes empty keys
            return None
        message = parse(key, "Debezium key", self.options.large_message_handle_compression)
        schema = message.child("schema")
        return _image(message.needed("payload"), {} if schema is None else _fields(schema))


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
    try:
        return _text(found, field) if isinstance(found, str) else _number(found, field)
    except (ValueError, OverflowError, DecodeError):
        row.wrong(name, f"a value of type {field.semantic or field.type}")


def _number(value: float, field: Field) -> Value:
    if field.type in ("float", "double"):
        return float(value)
    if isinstance(value, float) or field.type in ("string", "bytes", "boolean"):
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
    if field.semantic == "io.debezium.data.Bits":
        return int.from_bytes(base64.b64decode(value, validate=True), "little")
    if field.semantic == DECIMAL:  # always an integer: only BIGINT UNSIGNED is written so
        return int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
    if "blob" in field.tidb or "binary" in field.tidb:
        return base64.b64decode(value, validate=True)
    if field.type not in ("string", "bytes"):
        raise ValueError(value)
    return value
