"""The Avro schema of Simple's messages. Every reader must have it, because messages do not refer to it.

The schema is a union of all its records. A message is always the last record; the record's payload says of which kind
the message is.
"""

from __future__ import annotations

from functools import cache
from io import BytesIO
from typing import Any, Final

import fastavro

from drainer.protocol.avro.decoder import read_record
from drainer.protocol.errors import MessageError

NAMESPACE: Final = "com.pingcap.simple.avro"
KINDS: Final = ("WATERMARK", "BOOTSTRAP", "DDL", "DML")
DDL_KINDS: Final = ("CREATE", "ALTER", "ERASE", "RENAME", "TRUNCATE", "CINDEX", "DINDEX", "QUERY")
CHANGES: Final = ("INSERT", "UPDATE", "DELETE")

Field = dict[str, object]


def named(name: str) -> str:
    return f"{NAMESPACE}.{name}"


def _maybe(kind: object) -> tuple[object, ...]:
    """Return the union type of a nullable field, whose default is null."""
    return "null", kind


def _list(items: str) -> Field:
    return {"type": "array", "items": items}


def _record(name: str, /, **fields: object) -> Field:
    """`fields`: the type of each."""
    made = [
        {"name": of, "type": [*kind], "default": None} if isinstance(kind, tuple) else {"name": of, "type": kind}
        for of, kind in fields.items()
    ]
    return {"namespace": NAMESPACE, "name": name, "type": "record", "fields": made}


def _enum(name: str, symbols: tuple[str, ...]) -> Field:
    return {"type": "enum", "name": name, "symbols": [*symbols]}


# The branches of the union of values, in their order. The value of a row's column is one of these.
VALUES: Final = ("null", "long", "float", "double", "string", "bytes", named("Timestamp"), named("UnsignedBigint"))


_IMAGE: Final = {"type": "map", "values": [*VALUES], "default": None}
DOCUMENT: Final = [
    _record(
        "DataType",
        mysqlType="string",
        charset="string",
        collate="string",
        length="long",
        decimal=_maybe("int"),
        elements=_maybe(_list("string")),
        unsigned=_maybe("boolean"),
        zerofill=_maybe("boolean"),
    ),
    _record("ColumnSchema", name="string", dataType=named("DataType"), nullable="boolean", default=["null", "string"]),
    _record(
        "IndexSchema",
        name="string",
        unique="boolean",
        primary="boolean",
        nullable="boolean",
        columns=_list("string"),
    ),
    _record(
        "TableSchema",
        database="string",
        table="string",
        tableID="long",
        version="long",
        columns=_list(named("ColumnSchema")),
        indexes=_list(named("IndexSchema")),
    ),
    _record("Checksum", version="int", corrupted="boolean", current="long", previous="long"),
    _record("Watermark", version="int", commitTs="long", buildTs="long"),
    _record("Bootstrap", version="int", buildTs="long", tableSchema=named("TableSchema")),
    _record(
        "DDL",
        version="int",
        type=_enum("DDLType", DDL_KINDS),
        sql="string",
        commitTs="long",
        buildTs="long",
        tableSchema=_maybe(named("TableSchema")),
        preTableSchema=_maybe(named("TableSchema")),
    ),
    _record("Timestamp", location="string", value="string"),
    _record("UnsignedBigint", value="long"),
    _record(
        "DML",
        version="int",
        database="string",
        table="string",
        tableID="long",
        type=_enum("DMLType", CHANGES),
        commitTs="long",
        buildTs="long",
        schemaVersion="long",
        claimCheckLocation=_maybe("string"),
        handleKeyOnly=_maybe("boolean"),
        checksum=_maybe(named("Checksum")),
        data=_maybe(_IMAGE),
        old=_maybe(_IMAGE),
    ),
    _record(
        "Message",
        type=_enum("MessageType", KINDS),
        payload=[named("Watermark"), named("Bootstrap"), named("DDL"), named("DML")],
    ),
]


@cache
def parsed() -> Any:
    return fastavro.parse_schema(DOCUMENT)


# Converts between Simple's Avro and documents with the structure of Simple's JSON.

Document = dict[str, object]


def write_document(document: Document) -> bytes:
    """Encode a watermark, a bootstrap message or a DDL."""
    kind = document["type"]
    payload = {name: value for name, value in document.items() if name not in ("database", "table")}
    record = {"WATERMARK": "Watermark", "BOOTSTRAP": "Bootstrap"}.get(str(kind), "DDL")
    message = {"type": "DDL" if record == "DDL" else kind, "payload": (named(record), payload)}
    out = BytesIO()
    fastavro.schemaless_writer(out, parsed(), (named("Message"), message))
    return out.getvalue()


def read_document(data: bytes) -> Document:
    """Decode a message. Values of rows become Python values: int, float, str, bytes, None, and dicts for records.
    Raises MessageError."""
    message = read_record(parsed(), data, 0, "Simple message")
    if not isinstance(message, dict) or not isinstance(message.get("payload"), dict):
        raise MessageError("Simple message: another record of the schema than a message")
    kind, payload = message["type"], message["payload"]
    found: Document = {name: value for name, value in payload.items() if value is not None}
    expected = {"DDL": DDL_KINDS, "DML": CHANGES}.get(kind)
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
