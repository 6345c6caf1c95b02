"""Decodes TiCDC's Avro: rows, deletes, and the two events that only `avro_enable_watermark` writes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, tzinfo
from io import BytesIO
from math import isfinite
from typing import Any, Final
from zlib import crc32

import fastavro
from binlog.errors import DecodeError
from binlog.runtime.log import get_logger
from binlog.tidb.time import datetime_text, from_zone, parse_datetime
from fastavro.schema import SchemaParseException

from drainer.protocol.avro.encoder import DDL_LEAD, RESOLVED_LEAD
from drainer.protocol.avro.schema import (
    BEFORE,
    CHECKSUM,
    CHECKSUM_VERSION,
    COMMIT_TS,
    CORRUPTED,
    OP,
    PHYSICAL_TIME,
    allowed_names,
)
from drainer.protocol.encoder import HEADER_BYTES, read_header
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, ColumnValue, DdlEvent, Event, Image, ResolvedEvent, RowEvent, Value
from drainer.protocol.json_read import parse
from drainer.protocol.registry import ProtocolOptions

Document = dict[str, Any]

_PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
# What fastavro raises for bytes that are not of the schema.
_NOT_OF_SCHEMA: Final = (
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
)


def read_record(schema: Any, data: bytes, begin: int, what: str) -> Any:
    """Read the record that begins at `begin` and must end where the data ends. `schema`: as fastavro has parsed it;
    `what`: the message's name in errors. Raises MessageError."""
    source = BytesIO(data)
    source.seek(begin)
    try:
        found = fastavro.schemaless_reader(source, schema, None)
    except _NOT_OF_SCHEMA as error:
        why = f"{type(error).__name__} {error}"
        raise MessageError(f"{what}: not Avro of its schema at byte {source.tell()}: {why}") from None
    if source.tell() != len(data):
        raise MessageError(f"{what}: {len(data) - source.tell()} bytes after the record")
    return found


def parse_schema(text: str) -> Document:
    """Parse the schema of a record. Raises MessageError."""
    found = parse(text.encode("utf-8", "surrogatepass"), "Avro: a schema").document
    if found.get("type") != "record" or not isinstance(found.get("fields"), list):
        raise MessageError(f"Avro: the schema of a record is expected, not {text[:80]}")
    return found


def readable(schema: Document) -> Any:
    """Return the schema for `read_record`. Raises MessageError for a type that TiCDC does not use."""
    try:
        return fastavro.parse_schema(_plain(schema))
    except (SchemaParseException, LookupError, RecursionError, TypeError, ValueError) as error:
        raise MessageError(f"Avro: no schema that TiCDC writes: {type(error).__name__} {error}") from None


def _plain(kind: Any) -> Any:
    """Return a type with only what its bytes depend on. fastavro refuses defaults that TiCDC writes, and would convert
    decimals. A name of another type is refused: a record that has itself as a field would end the process."""
    if isinstance(kind, list):
        return [_plain(branch) for branch in kind]
    if not isinstance(kind, dict):
        if kind not in _PRIMITIVES:
            raise TypeError(f"the type {kind!r:.80}")
        return kind
    if kind["type"] != "record":
        return _plain(kind["type"])
    names = {name: kind[name] for name in ("name", "namespace") if name in kind}
    return {"type": "record", **names, "fields": [_plain_field(field) for field in kind["fields"]]}


def _plain_field(field: Document) -> Document:
    if not isinstance(field["name"], str):
        raise TypeError(f"the name {field['name']!r:.80}")
    return {"name": field["name"], "type": _plain(field["type"])}


_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


def _vector(text: str) -> bytes:
    """Return the bytes of a vector of 32-bit floats, from `[1,2,3]`. Raises ValueError for any other text."""
    if not (text.startswith("[") and text.endswith("]")):
        raise ValueError(f"{text!r} is not a vector")
    inner = text[1:-1].strip()
    numbers = [float(one) for one in inner.split(",")] if inner else []
    return struct.pack(f"<I{len(numbers)}f", len(numbers), *numbers)


# Converts records of one schema to images of rows: names, TiDB's types, values, and the row's checksum. Pure.
_NOT_COLUMNS: Final = frozenset({OP, COMMIT_TS, PHYSICAL_TIME, CHECKSUM, CORRUPTED, CHECKSUM_VERSION, BEFORE})
_REAL: Final = frozenset({"FLOAT", "DOUBLE"})


@dataclass(frozen=True, slots=True)
class RecordField:
    """A column's field. `type_name`: TiDB's type, "" if the schema has none. `allowed`: the names of an ENUM or SET."""

    name: str
    type_name: str
    allowed: tuple[str, ...]
    value: Callable[[Any], Value]

    def checksum_part(self, value: Value, zone: tzinfo) -> bytes:
        """Return the bytes that this column adds to its row's checksum: TiDB's CRC-32 of all columns, ordered by id.
        `zone`: the time zone of a TIMESTAMP's text. Raises ValueError for a value that is not of the column's type."""
        if value is None:
            return b""
        if isinstance(value, float) or self.type_name in _REAL:
            number = float(value)
            return struct.pack("<d", number if isfinite(number) else 0.0)
        if isinstance(value, str):
            match self.type_name:
                case "ENUM":
                    value = self.allowed.index(value) + 1 if value else 0
                case "SET":
                    value = sum(1 << self.allowed.index(one) for one in value.split(",")) if value else 0
                case "TiDBVECTORFloat32":
                    return _vector(value)
                case name:
                    value = (_in_utc(value, zone) if name == "TIMESTAMP" else value).encode()
        if isinstance(value, int):
            return (value & _MASK).to_bytes(8, "little")
        return len(value).to_bytes(4, "little") + value


class Record:
    """A parsed schema. Raises MessageError for a schema that TiCDC would not write."""

    def __init__(self, text: str) -> None:
        schema = parse_schema(text)
        self._schema = readable(schema)
        namespace, self.table = _names(schema)
        self.schema = namespace.partition(".")[2]
        self.fields = [_field(field) for field in schema["fields"] if field["name"] not in _NOT_COLUMNS]

    def read(self, data: bytes, begin: int) -> dict[str, Any]:
        """Read all fields, under their names in Avro. Raises MessageError."""
        found: dict[str, Any] = read_record(self._schema, data, begin, "Avro")
        return found

    def image(self, found: Mapping[str, Any]) -> Image:
        """Return the columns among the fields. Raises MessageError if a column is missing or its value is not of its
        type."""
        for field in self.fields:
            if field.name not in found:
                raise MessageError(f"Avro: a row of `{self.schema}`.`{self.table}` without {field.name}")
        return {f.name: ColumnValue(_converted(f, found[f.name]), type_name=f.type_name) for f in self.fields}

    def verify(self, found: Mapping[str, Any], image: Image, zone: tzinfo) -> None:
        """Raise MessageError if the row has a checksum that differs from that of its values."""
        said = found.get(CHECKSUM)
        if not said:
            return
        try:
            parts = [field.checksum_part(image[field.name].value, zone) for field in self.fields]
        except ValueError as error:
            raise MessageError(f"Avro: the row's checksum cannot be computed: {error}") from None
        actual = crc32(b"".join(parts))
        if said != str(actual):
            raise MessageError(f"Avro: the row of `{self.schema}`.`{self.table}` has checksum {actual}, not {said}")


def _names(schema: Document) -> tuple[str, str]:
    """Return (namespace, name). A name with dots contains its namespace."""
    name, namespace = schema.get("name"), schema.get("namespace", "")
    if not isinstance(name, str) or not isinstance(namespace, str):
        raise MessageError(f"Avro: a record's name and namespace are texts, not {name!r:.80} and {namespace!r:.80}")
    if "." in name:
        namespace, _, name = name.rpartition(".")
    return namespace, name


def _field(field: Document) -> RecordField:
    branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
    kind = next((one for one in branches if one != "null"), "null")
    document = kind if isinstance(kind, dict) else {"type": kind}
    parameters = document.get("connect.parameters") or {}
    if not isinstance(parameters, dict):
        raise MessageError(f"Avro: connect.parameters of {field['name']}: {parameters!r:.80}")
    type_name = str(parameters.get("tidb_type", ""))
    allowed = allowed_names(str(parameters["allowed"])) if "allowed" in parameters else ()
    return RecordField(field["name"], type_name, allowed, _value_of(document, type_name))


def _value_of(document: Document, type_name: str) -> Callable[[Any], Value]:
    if document.get("logicalType") == "decimal":
        scale = document.get("scale", 0)
        if not isinstance(scale, int) or scale < 0:
            raise MessageError(f"Avro: {scale!r} is not the scale of a decimal")
        return lambda raw: _decimal_text(raw, scale)
    if type_name == "BIT":
        return lambda raw: int.from_bytes(raw, "big")
    return _unsigned if type_name == "BIGINT UNSIGNED" else lambda raw: raw


def _unsigned(raw: Any) -> int:
    """Convert a long, in which numbers above 2^63-1 are negative, or a text."""
    number = int(raw)
    return number + (1 << 64) if number < 0 and isinstance(raw, int) else number


def _decimal_text(raw: bytes, scale: int) -> str:
    if not raw:
        raise ValueError("a decimal without bytes")
    number = int.from_bytes(raw, "big", signed=True)
    sign, digits = "-" if number < 0 else "", str(abs(number)).rjust(scale + 1, "0")
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits


def _converted(field: RecordField, raw: Any) -> Value:
    if raw is None:
        return None
    try:
        return field.value(raw)
    except (ValueError, TypeError) as error:
        raise MessageError(f"Avro: {field.name}: no value of {field.type_name or 'its type'}: {error}") from None


def _in_utc(text: str, zone: tzinfo) -> str:
    fraction = len(text.partition(".")[2])
    packed = parse_datetime(text)
    return datetime_text(from_zone(packed, zone) if packed and zone is not UTC else packed, fraction)


_log = get_logger(__name__)
_CHANGES: Final = {"c": Change.INSERT, "u": Change.UPDATE, "d": Change.DELETE, "": Change.UPSERT}
_RESOLVED_BYTES: Final = 9


class AvroDecoder:
    """Decodes Avro. Names of tables, databases and columns are those of the schemas, in which `_` replaces characters
    that Avro's names do not have. Each schema is requested once. A row's checksum, if it has one, is verified."""

    def __init__(self, options: ProtocolOptions, schemas: Callable[[int], str] | None = None) -> None:
        """`schemas`: returns the text of the schema of an id, or raises LookupError. Without it only watermark and DDL
        events can be read (`avro_enable_watermark`)."""
        self._schemas: Callable[[int], str] = schemas or dict[int, str]().__getitem__
        self._zone = options.zone
        self._records: dict[int, Record] = {}

    def decode(self, key: bytes | None, value: bytes | None) -> list[Event]:
        """Decode one message, which has exactly one event. Raises MessageError. Errors that `schemas` raises because it
        cannot be reached are passed on."""
        if not key:
            if not value:
                raise MessageError("Avro: a message with neither key nor value")
            if value[:1] == DDL_LEAD:
                return [_ddl(value[1:])]
            if value[:1] == RESOLVED_LEAD:
                return [_resolved(value)]
            return [self._row(None, value)]
        return [self._row(key, value)] if value else [self._delete(key)]

    def _delete(self, key: bytes) -> RowEvent:
        record, found = self._read(key)
        image = record.image(found)
        return RowEvent(Change.DELETE, 0, record.schema, record.table, old=image, key=image)

    def _row(self, key: bytes | None, value: bytes) -> RowEvent:
        record, found = self._read(value)
        of_key = None
        if key is not None:
            key_record, key_found = self._read(key)
            of_key = key_record.image(key_found)
        operation, commit_ts, before = found.get(OP, ""), found.get(COMMIT_TS, 0), found.get(BEFORE)
        if not isinstance(operation, str) or operation not in _CHANGES:
            raise MessageError(f"Avro: {OP} is {operation!r}, not c, u or d")
        if not isinstance(commit_ts, int) or not (before is None or isinstance(before, dict)):
            raise MessageError(f"Avro: {COMMIT_TS} is {commit_ts!r:.80}, and {BEFORE} is {before!r:.80}")
        change, image = _CHANGES[operation], record.image(found)
        record.verify(found, image, self._zone)
        if found.get(CORRUPTED):
            _log.warning(
                "row whose checksum was wrong upstream", schema=record.schema, table=record.table, key=str(of_key)
            )
        old = None if before is None else record.image(before)
        deleted = change is Change.DELETE
        return RowEvent(
            change,
            commit_ts & _MASK,
            record.schema,
            record.table,
            old=old if old is not None or not deleted else image,
            new=None if deleted else image,
            key=of_key,
        )

    def _read(self, data: bytes) -> tuple[Record, dict[str, Any]]:
        schema_id = read_header(data)
        record = self._records.get(schema_id)
        if record is None:
            try:
                text = self._schemas(schema_id)
            except LookupError:
                raise MessageError(f"Avro: no schema has the id {schema_id}") from None
            record = self._records[schema_id] = Record(text)
        return record, record.read(data, HEADER_BYTES)


def _ddl(data: bytes) -> DdlEvent:
    document = parse(data, "Avro DDL event")
    return DdlEvent(
        document.integer("commitTs"),
        document.text("schema"),
        document.text("table"),
        document.text("query"),
        document.integer("type"),
    )


def _resolved(value: bytes) -> ResolvedEvent:
    if len(value) != _RESOLVED_BYTES:
        raise MessageError(f"Avro: a resolved event has {_RESOLVED_BYTES} bytes, and this one {len(value)}")
    return ResolvedEvent(int.from_bytes(value[1:], "big"))
