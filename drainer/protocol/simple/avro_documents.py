"""Converts between Simple's Avro and documents with the structure of Simple's JSON."""

from __future__ import annotations

import struct
from io import BytesIO
from typing import Any, Final

import fastavro
from binlog.errors import DecodeError

from drainer.protocol.errors import MessageError
from drainer.protocol.simple.avro_schema import DDL_KINDS, named, parsed

Document = dict[str, object]

_UNSIGNED: Final = frozenset(
    {"tinyint", "smallint", "mediumint", "int", "bigint", "float", "double", "bit", "year", "decimal"}
)


def write_document(document: Document) -> bytes:
    """Encode a watermark, a bootstrap message or a DDL."""
    kind = document["type"]
    payload = {name: value for name, value in document.items() if name not in ("database", "table")}
    for name in ("tableSchema", "preTableSchema"):
        if name in payload:
            payload[name] = _schema(document[name])
    record = {"WATERMARK": "Watermark", "BOOTSTRAP": "Bootstrap"}.get(str(kind), "DDL")
    message = {"type": "DDL" if record == "DDL" else kind, "payload": (named(record), payload)}
    out = BytesIO()
    fastavro.schemaless_writer(out, parsed(), (named("Message"), message))
    return out.getvalue()


def _schema(table: Any) -> Document:
    columns = [
        column
        | {
            "dataType": _data_type(column["dataType"]),
            "default": None if column["default"] is None else str(column["default"]),
        }
        for column in table["columns"]
    ]
    return {"database": table["schema"]} | {n: v for n, v in table.items() if n != "schema"} | {"columns": columns}


def _data_type(kind: dict[str, object]) -> Document:
    """Describe a type: `decimal` only for DECIMALs, `elements` for ENUMs and SETs, the two flags for numbers."""
    name = kind["mysqlType"]
    found = {member: kind[member] for member in ("mysqlType", "charset", "collate")}
    found |= {"length": kind.get("length", 0)}
    if name == "decimal":
        found["decimal"] = kind.get("decimal", 0)
    if name in ("enum", "set"):
        found["elements"] = kind.get("elements", [])
    if name in _UNSIGNED:
        found |= {"unsigned": kind.get("unsigned", False), "zerofill": kind.get("zerofill", False)}
    return found


def read_document(data: bytes) -> Document:
    """Decode a message. Values of rows become Python values: int, float, str, bytes, None, and dicts for records.
    Raises MessageError."""
    source = BytesIO(data)
    try:
        message: Any = fastavro.schemaless_reader(source, parsed(), None)
    except (
        ArithmeticError,
        AssertionError,
        DecodeError,
        EOFError,
        LookupError,
        MemoryError,
        RecursionError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        raise MessageError(f"Simple message: not Avro of its schema: {type(error).__name__} {error}") from None
    if source.tell() != len(data):
        raise MessageError(f"Simple message: {len(data) - source.tell()} bytes after the message")
    if not isinstance(message, dict) or not isinstance(message.get("payload"), dict):
        raise MessageError("Simple message: another record of the schema than a message")
    kind, payload = message["type"], message["payload"]
    found: Document = {name: value for name, value in payload.items() if value is not None}
    expected = {"DDL": DDL_KINDS, "DML": ("INSERT", "UPDATE", "DELETE")}.get(kind)
    if expected is None:
        found["type"] = kind
    if "type" not in found or (expected is not None and found["type"] not in expected):
        raise MessageError(f"Simple message: the payload is not a {kind}")
    for name in ("commitTs", "schemaVersion"):
        if name in found:
            found[name] = payload[name] & 0xFFFF_FFFF_FFFF_FFFF
    for name in ("tableSchema", "preTableSchema"):
        if name in found:
            found[name] = _read_schema(payload[name])
    return found | ({"commitTs": 0} if kind == "BOOTSTRAP" else {})


def _read_schema(table: dict[str, Any]) -> Document:
    columns = [
        column | {"dataType": {name: value for name, value in column["dataType"].items() if value is not None}}
        for column in table["columns"]
    ]
    rest = {name: value for name, value in table.items() if name != "database"}
    return {"schema": table["database"]} | rest | {"columns": columns, "version": table["version"] & (1 << 64) - 1}
