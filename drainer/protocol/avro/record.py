"""Converts records of one schema to images of rows: names, TiDB's types, values, and the row's checksum. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any, Final

from binlog.tidb.time import datetime_text, from_zone, parse_datetime

from drainer.protocol.avro import checksum
from drainer.protocol.avro.reader import Document, branches, parse_schema, reader_of
from drainer.protocol.avro.schema import (
    BEFORE,
    CHECKSUM,
    CHECKSUM_VERSION,
    COMMIT_TS,
    CORRUPTED,
    OP,
    PHYSICAL_TIME,
)
from drainer.protocol.avro.types import allowed_names
from drainer.protocol.errors import MessageError
from drainer.protocol.event import ColumnValue, Image, Value

_NOT_COLUMNS: Final = frozenset({OP, COMMIT_TS, PHYSICAL_TIME, CHECKSUM, CORRUPTED, CHECKSUM_VERSION, BEFORE})
_WHOLE: Final = frozenset({"INT", "INT UNSIGNED", "BIGINT", "BIGINT UNSIGNED", "YEAR", "BIT"})
_REAL: Final = frozenset({"FLOAT", "DOUBLE"})


@dataclass(frozen=True, slots=True)
class RecordField:
    """A column's field. `type_name`: TiDB's type, "" if the schema has none. `allowed`: the names of an ENUM or SET."""

    name: str
    type_name: str
    allowed: tuple[str, ...]
    value: Callable[[Any], Value]

    def checksum_part(self, value: Value, zone: tzinfo) -> bytes:
        """Return the bytes of a value in its row's checksum. `zone`: the time zone of a TIMESTAMP's text. Raises
        ValueError for a value that is not of the column's type."""
        if value is None:
            return b""
        if isinstance(value, float) or self.type_name in _REAL:
            return checksum.real_part(float(value))
        if isinstance(value, int):
            return checksum.number_part(value)
        if isinstance(value, bytes):
            return checksum.bytes_part(value)
        if self.type_name == "ENUM":
            return checksum.number_part(self.allowed.index(value) + 1 if value else 0)
        if self.type_name == "SET":
            return checksum.number_part(sum(1 << self.allowed.index(one) for one in value.split(",")) if value else 0)
        if self.type_name == "TiDBVECTORFloat32":
            return checksum.vector_part(value)
        if self.type_name == "TIMESTAMP":
            value = _in_utc(value, zone)
        return checksum.bytes_part(value.encode())


class Record:
    """A parsed schema. Raises MessageError for a schema that TiCDC would not write."""

    def __init__(self, text: str) -> None:
        schema = parse_schema(text)
        self._read = reader_of(schema)
        namespace, self.table = _names(schema)
        self.schema = namespace.partition(".")[2]
        self.fields = _columns(schema)

    def read(self, data: bytes, begin: int) -> dict[str, Any]:
        """Read all fields, under their names in Avro. Raises MessageError."""
        return self._read(data, begin)

    def image(self, found: Mapping[str, Any]) -> Image:
        """Return the columns among the fields. Raises MessageError if a column is missing or its value is not of its
        type."""
        for field in self.fields:
            if field.name not in found:
                raise MessageError(f"Avro: a row of `{self.schema}`.`{self.table}` without {field.name}")
        return {f.name: ColumnValue(_converted(f, found[f.name]), type_name=f.type_name) for f in self.fields}

    def verify(self, found: Mapping[str, Any], image: Image, zone: tzinfo) -> None:
        """Compare the row's checksum, if it has one, with the checksum of its values. Raises MessageError if they
        differ."""
        said = found.get(CHECKSUM)
        if not said:
            return
        try:
            parts = [field.checksum_part(image[field.name].value, zone) for field in self.fields]
        except ValueError as error:
            raise MessageError(f"Avro: the row's checksum cannot be computed: {error}") from None
        actual = checksum.row_checksum(parts)
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


def _columns(schema: Document) -> Sequence[RecordField]:
    return [_field(field) for field in schema["fields"] if field["name"] not in _NOT_COLUMNS]


def _field(field: Document) -> RecordField:
    kind = next((one for one in branches(field["type"]) if one != "null"), "null")
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
    if type_name == "BIGINT UNSIGNED":
        return _unsigned
    return _as_it_is


def _as_it_is(raw: Any) -> Any:
    return raw


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
