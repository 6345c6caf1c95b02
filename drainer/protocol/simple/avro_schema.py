"""The Avro schema of Simple's messages. Every reader must have it, because messages do not refer to it.

The schema is a union of all its records. A message is always the last record; the record's payload says of which kind
the message is.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import fastavro

NAMESPACE: Final = "com.pingcap.simple.avro"
KINDS: Final = ("WATERMARK", "BOOTSTRAP", "DDL", "DML")
DDL_KINDS: Final = ("CREATE", "ALTER", "ERASE", "RENAME", "TRUNCATE", "CINDEX", "DINDEX", "QUERY")
CHANGES: Final = ("INSERT", "UPDATE", "DELETE")

Field = dict[str, object]


def named(name: str) -> str:
    return f"{NAMESPACE}.{name}"


def _field(name: str, kind: object) -> Field:
    return {"name": name, "type": kind}


def _maybe(name: str, kind: object, *, default: bool = True) -> Field:
    return {"name": name, "type": ["null", kind]} | ({"default": None} if default else {})


def _list(items: str) -> Field:
    return {"type": "array", "items": items}


def _record(name: str, *fields: Field) -> Field:
    return {"namespace": NAMESPACE, "name": name, "type": "record", "fields": [*fields]}


def _enum(name: str, symbols: tuple[str, ...]) -> Field:
    return {"type": "enum", "name": name, "symbols": [*symbols]}


# The branches of the union of values, in their order. The value of a row's column is one of these.
VALUES: Final = ("null", "long", "float", "double", "string", "bytes", named("Timestamp"), named("UnsignedBigint"))


_VERSION: Final = _field("version", "int")
_COMMIT: Final = _field("commitTs", "long")
_BUILD: Final = _field("buildTs", "long")


def document() -> list[Field]:
    return [*_of_schemas(), *_of_events(), *_of_rows()]


def _of_schemas() -> list[Field]:
    return [
        _record(
            "DataType",
            _field("mysqlType", "string"),
            _field("charset", "string"),
            _field("collate", "string"),
            _field("length", "long"),
            _maybe("decimal", "int"),
            _maybe("elements", _list("string")),
            _maybe("unsigned", "boolean"),
            _maybe("zerofill", "boolean"),
        ),
        _record(
            "ColumnSchema",
            _field("name", "string"),
            _field("dataType", named("DataType")),
            _field("nullable", "boolean"),
            _maybe("default", "string", default=False),
        ),
        _record(
            "IndexSchema",
            _field("name", "string"),
            _field("unique", "boolean"),
            _field("primary", "boolean"),
            _field("nullable", "boolean"),
            _field("columns", _list("string")),
        ),
        _record(
            "TableSchema",
            _field("database", "string"),
            _field("table", "string"),
            _field("tableID", "long"),
            _field("version", "long"),
            _field("columns", _list(named("ColumnSchema"))),
            _field("indexes", _list(named("IndexSchema"))),
        ),
    ]


def _of_events() -> list[Field]:
    return [
        _record(
            "Checksum",
            _VERSION,
            _field("corrupted", "boolean"),
            _field("current", "long"),
            _field("previous", "long"),
        ),
        _record("Watermark", _VERSION, _COMMIT, _BUILD),
        _record("Bootstrap", _VERSION, _BUILD, _field("tableSchema", named("TableSchema"))),
        _record(
            "DDL",
            _VERSION,
            _field("type", _enum("DDLType", DDL_KINDS)),
            _field("sql", "string"),
            _COMMIT,
            _BUILD,
            _maybe("tableSchema", named("TableSchema")),
            _maybe("preTableSchema", named("TableSchema")),
        ),
    ]


def _of_rows() -> list[Field]:
    image = {"type": "map", "values": [*VALUES], "default": None}
    return [
        _record("Timestamp", _field("location", "string"), _field("value", "string")),
        _record("UnsignedBigint", _field("value", "long")),
        _record(
            "DML",
            _VERSION,
            _field("database", "string"),
            _field("table", "string"),
            _field("tableID", "long"),
            _field("type", _enum("DMLType", CHANGES)),
            _COMMIT,
            _BUILD,
            _field("schemaVersion", "long"),
            _maybe("claimCheckLocation", "string"),
            _maybe("handleKeyOnly", "boolean"),
            _maybe("checksum", named("Checksum")),
            _maybe("data", image),
            _maybe("old", image),
        ),
        _record(
            "Message",
            _field("type", _enum("MessageType", KINDS)),
            _field("payload", [named("Watermark"), named("Bootstrap"), named("DDL"), named("DML")]),
        ),
    ]


@cache
def parsed() -> Any:
    return fastavro.parse_schema(document())
