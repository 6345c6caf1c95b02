"""Cases of column types: what each protocol says of their values, as tests/cases/protocol/README.md describes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import fastavro
from binlog.tidb.json import parse_json
from binlog.tidb.time import parse_datetime, parse_duration
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.protocol.registry import ProtocolOptions, make_encoder
from drainer.protocol.table import Table
from drainer.row.column_type import DecodedValue
from tests.support.avro_tables import TOPIC, ready
from tests.support.encoded import encoded_rows
from tests.support.row_changes import make_changes, make_table

FILE: Final = Path(__file__).resolve().parents[1] / "cases" / "protocol" / "types.txt"
_KEY: Final = ("id", FieldType(Tp.LONG, Flag.NOT_NULL, 11))
_TYPE: Final = re.compile(r"(\w+)(?:\(([^)]*)\))?((?: unsigned| not null)*)")
_TYPES: Final = {
    "tinyint": Tp.TINY,
    "smallint": Tp.SHORT,
    "mediumint": Tp.INT24,
    "int": Tp.LONG,
    "bigint": Tp.LONGLONG,
    "year": Tp.YEAR,
    "float": Tp.FLOAT,
    "double": Tp.DOUBLE,
    "decimal": Tp.NEWDECIMAL,
    "bit": Tp.BIT,
    "date": Tp.DATE,
    "datetime": Tp.DATETIME,
    "timestamp": Tp.TIMESTAMP,
    "time": Tp.DURATION,
    "enum": Tp.ENUM,
    "set": Tp.SET,
    "json": Tp.JSON,
}
_TEXTS: Final = {
    "char": Tp.STRING,
    "varchar": Tp.VARCHAR,
    "tinytext": Tp.TINY_BLOB,
    "text": Tp.BLOB,
    "mediumtext": Tp.MEDIUM_BLOB,
    "longtext": Tp.LONG_BLOB,
}
_BYTES: Final = {
    "binary": Tp.STRING,
    "varbinary": Tp.VARCHAR,
    "tinyblob": Tp.TINY_BLOB,
    "blob": Tp.BLOB,
    "mediumblob": Tp.MEDIUM_BLOB,
    "longblob": Tp.LONG_BLOB,
}
_FRACTIONS: Final = (Tp.DATETIME, Tp.TIMESTAMP, Tp.DURATION)


@dataclass(frozen=True, slots=True)
class TypeCase:
    """A column type: `described`, the line of each protocol for it, and `values`, a line each."""

    name: str
    described: tuple[str, ...]
    values: tuple[str, ...]


def read_cases() -> Iterator[TypeCase]:
    text = "".join(line for line in FILE.read_text().splitlines(keepends=True) if not line.startswith("#"))
    for block in text.strip().split("\n\n"):
        name, *lines = block.splitlines()
        yield TypeCase(name.removeprefix("== "), tuple(lines[:5]), tuple(lines[5:]))


def written(case: TypeCase) -> TypeCase:
    """The case as the encoders write it now."""
    kind = field_type(case.name)
    values = []
    described: set[tuple[str, ...]] = set()
    for line in case.values:
        value = line.split(" | ")[0].rstrip()
        said = said_of(kind, decoded_value(kind, value))
        described.add(tuple(f"{protocol:<9} {type_}" for protocol, (type_, _) in said.items()))
        values.append(" | ".join([value, *(text for _, text in said.values())]))
    (types,) = described
    return TypeCase(case.name, types, tuple(values))


def field_type(text: str) -> FieldType:
    """The type that a CREATE TABLE would make of `bigint unsigned not null`, `datetime(3)`, `enum(a;b,c)`, …"""
    match = _TYPE.fullmatch(text)
    assert match, text
    name, size, words = match[1], match[2], match[3]
    flag = (Flag.UNSIGNED if "unsigned" in words else 0) | (Flag.NOT_NULL if "not null" in words else 0)
    if name in _TEXTS:
        return FieldType(_TEXTS[name], flag, int(size or -1), charset="utf8mb4", collate="utf8mb4_bin")
    if name in _BYTES:
        return FieldType(_BYTES[name], flag | Flag.BINARY, int(size or -1))
    tp = _TYPES[name]
    if tp in (Tp.ENUM, Tp.SET):
        return FieldType(tp, flag, charset="utf8mb4", collate="utf8mb4_bin", elems=tuple(size.split(";")))
    if tp in _FRACTIONS:
        return FieldType(tp, flag, decimal=int(size or 0))
    if tp is Tp.YEAR:
        flag |= Flag.UNSIGNED
    length, _, decimals = (size or "").partition(",")
    return FieldType(tp, flag, int(length or -1), int(decimals or -1))


def decoded_value(kind: FieldType, text: str) -> DecodedValue:
    """A value as a row holds it: bytes and text as JSON strings, of bytes in latin1, ENUM, SET and BIT as numbers."""
    if kind.tp in (Tp.DATE, Tp.DATETIME, Tp.TIMESTAMP):
        return parse_datetime(text) if text.strip("0-: ") else 0
    if kind.tp is Tp.DURATION:
        return parse_duration(text)
    if kind.tp is Tp.JSON:
        return bytes(parse_json(text))
    if kind.tp is Tp.NEWDECIMAL:
        return text
    value: Any = json.loads(text)
    return value.encode("latin1" if kind.is_binary else "utf-8") if isinstance(value, str) else value


def null_of(kind: FieldType) -> dict[str, str]:
    """For each protocol: what it says of NULL in a column of this type."""
    return {protocol: text.split(" ")[-1] for protocol, (_, text) in said_of(kind, None).items()}


def said_of(kind: FieldType, value: DecodedValue) -> dict[str, tuple[str, str]]:
    """For each protocol: what it says of the type, and of the value."""
    table = make_table("shop", "t", [_KEY, ("v", kind)], primary=["id"])
    opened = _document(ProtocolOptions("open-protocol"), table, value)["u"]["v"]
    canal = _document(ProtocolOptions("canal-json"), table, value)
    debezium = _document(ProtocolOptions("debezium", enable_tidb_extension=True), table, value)
    field = debezium["schema"]["fields"][1]["fields"][1]
    assert (field.pop("field"), field.pop("optional")) == ("v", not kind.is_not_null)
    (bootstrap,) = make_encoder(ProtocolOptions("simple")).bootstrap(table, 5)
    simple = json.loads(bootstrap.value or b"")["tableSchema"]["columns"][1]["dataType"]
    text = _document(ProtocolOptions("simple"), table, value)["data"]["v"]
    return {
        "open": (_json({"t": opened["t"], "f": opened["f"]}), _json(opened["v"])),
        "canal": (_json(canal["mysqlType"]["v"]), f"{canal['sqlType']['v']} {_json(canal['data'][0]['v'])}"),
        "debezium": (_json(field), _json(debezium["payload"]["after"]["v"])),
        "simple": (_json(simple), _json(text)),
        "avro": _avro(table, value),
    }


def _document(options: ProtocolOptions, table: Table, value: DecodedValue) -> Any:
    (row,) = encoded_rows(make_encoder(options).table(table), make_changes(table, Kind.INSERT, new=[(1, value)]))
    return json.loads(row.value or b"")


def _avro(table: Table, value: DecodedValue) -> tuple[str, str]:
    """The value is what fastavro reads; bytes as text in latin1."""
    encoder, schemas = ready(table, ProtocolOptions("avro"))
    (row,) = encoded_rows(encoder.table(table, TOPIC), make_changes(table, Kind.INSERT, new=[(1, value)]))
    schema = json.loads(schemas(2))
    found: Any = fastavro.schemaless_reader(BytesIO((row.value or b"")[5:]), fastavro.parse_schema(schema), None)
    kind = schema["fields"][1]["type"]
    if isinstance(kind, list):
        kind = next(one for one in kind if one != "null")
    read = found["v"]
    if isinstance(read, Decimal):
        read = format(read, "f")
    return _json(kind), _json(read.decode("latin1") if isinstance(read, bytes) else read)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
