"""A table's two schemas, as the text that TiCDC registers: members in TiCDC's order, without spaces.

`avro_defaults` = "ticdc" writes the defaults of fields as TiCDC does: bytes are base64 text, CURRENT_TIMESTAMP is a
text like any other, the default of a TIMESTAMP is in UTC, and a DECIMAL in the precise form has none. A reader that
fills fields with these defaults does not always get the column's default. "avro" writes what Avro's specification
requires, and no default if it is not constant.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any, Final, Literal

from binlog.tidb.table import ColumnInfo
from binlog.tidb.time import from_zone, parse_datetime, timestamp_text
from binlog.tidb.types import Tp

from drainer.protocol.errors import EncodeError
from drainer.protocol.json_text import json_document, json_double, json_string
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import Column, ColumnFlag, Table
from drainer.row.column_type import ColumnType, TypeClass

# The Avro type of a column.

Primitive = Literal["int", "long", "float", "double", "string", "bytes", "boolean"]

_DECIMAL_PRECISION: Final = 10  # for a DECIMAL whose type does not state it
_NAMES: Final = {
    TypeClass.DECIMAL: "DECIMAL",
    TypeClass.TEXT: "TEXT",
    TypeClass.BYTES: "BLOB",
    TypeClass.DATE: "DATE",
    TypeClass.TIME: "TIME",
    TypeClass.ENUM: "ENUM",
    TypeClass.SET: "SET",
    TypeClass.BIT: "BIT",
    TypeClass.JSON: "JSON",
}


@dataclass(frozen=True, slots=True)
class AvroType:
    """An Avro type. `parameters`: the members of `connect.parameters`, sorted by name. `precision` and `scale`: those
    of a decimal whose bytes are its unscaled number, else None."""

    primitive: Primitive
    parameters: tuple[tuple[str, str], ...]
    precision: int | None = None
    scale: int | None = None

    @property
    def document(self) -> dict[str, object]:
        """Return the type as a document, with members in TiCDC's order."""
        found: dict[str, object] = {"type": self.primitive, "connect.parameters": dict(self.parameters)}
        if self.precision is not None:
            found |= {"logicalType": "decimal", "precision": self.precision, "scale": self.scale}
        return found


def avro_type(column_type: ColumnType, options: ProtocolOptions) -> AvroType:
    """Return the Avro type of a column's values."""
    type_class, kind = column_type.type_class, column_type.kind
    name = ("tidb_type", _tidb_type(column_type))
    if type_class is TypeClass.DECIMAL and options.avro_decimal_handling_mode == "precise":
        precision = kind.flen if kind.flen >= 0 else _DECIMAL_PRECISION
        return AvroType("bytes", (name,), precision, max(kind.decimal, 0))
    if type_class is TypeClass.BIT:
        return AvroType("bytes", (("length", str(kind.flen if kind.flen >= 0 else 1)), name))
    if type_class in (TypeClass.ENUM, TypeClass.SET):
        return AvroType("string", (("allowed", allowed_text(kind.elems)), name))
    return AvroType(_primitive(column_type, options), (name,))


def _primitive(column_type: ColumnType, options: ProtocolOptions) -> Primitive:
    type_class, kind = column_type.type_class, column_type.kind
    if type_class is TypeClass.INT:
        if kind.tp is Tp.LONGLONG:
            as_text = kind.is_unsigned and options.avro_bigint_unsigned_handling_mode == "string"
            return "string" if as_text else "long"
        return "long" if kind.tp is Tp.LONG and kind.is_unsigned else "int"
    if type_class is TypeClass.FLOAT:
        return "float" if kind.tp is Tp.FLOAT else "double"
    return "bytes" if type_class is TypeClass.BYTES else "string"


def _tidb_type(column_type: ColumnType) -> str:
    type_class, kind = column_type.type_class, column_type.kind
    if kind.tp is Tp.VECTOR:
        return "TiDBVECTORFloat32"
    if type_class is TypeClass.INT:
        if kind.tp is Tp.YEAR:
            return "YEAR"
        name = "BIGINT" if kind.tp is Tp.LONGLONG else "INT"
        return f"{name} UNSIGNED" if kind.is_unsigned else name
    if type_class is TypeClass.FLOAT:
        return "FLOAT" if kind.tp is Tp.FLOAT else "DOUBLE"
    if type_class is TypeClass.DATETIME:
        return "TIMESTAMP" if kind.tp is Tp.TIMESTAMP else "DATETIME"
    return _NAMES[type_class]


def allowed_text(names: tuple[str, ...]) -> str:
    """Join the names of an ENUM or SET. Only commas inside names are escaped: `allowed_names` can undo no more."""
    return ",".join(name.replace(",", "\\,").replace("\\'", "'").replace("''", "'") for name in names)


def allowed_names(text: str) -> tuple[str, ...]:
    """Split `allowed_text` into names. An empty text, which may stand for no name, too, is one empty name."""
    return tuple(name.replace("\0", ",") for name in text.replace("\\,", "\0").split(","))


Json = int | float | str | None
_WRAP: Final = 1 << 64


def default_of(info: ColumnInfo, column_type: ColumnType, made: AvroType, options: ProtocolOptions) -> Json:
    """Return the default of a field, None if it has none. `made`: the Avro type of `column_type`."""
    strict = options.avro_defaults == "avro"
    raw = _raw(info)
    if raw is None or (strict and info.default_is_expr):
        return None
    try:
        if isinstance(raw, bytes):
            return _bytes(raw, column_type, strict=strict)
        if isinstance(raw, bool):
            raw = int(raw)
        if made.precision is not None:
            return _unscaled(str(raw), made) if strict else None
        match made.primitive:
            case "int":
                return _whole(int(raw), 32)
            case "long":  # a number above 2^63-1 becomes negative, as values do
                number = int(raw)
                wraps = column_type.kind.is_unsigned and number >= 1 << 63
                return _whole(number - _WRAP if wraps else number, 64)
            case "float":
                (single,) = struct.unpack("<f", struct.pack("<f", float(raw)))
                return _finite(single)
            case "double":
                return _finite(float(raw))
            case "bytes" if column_type.type_class is TypeClass.BIT and isinstance(raw, int):
                return _bytes(raw.to_bytes(8, "big").lstrip(b"\0") or b"\0", column_type, strict=strict)
            case "bytes":
                return _bytes(str(raw).encode("utf-8", "surrogateescape"), column_type, strict=strict)
            case _:
                return _text(str(raw), column_type, options.zone) if strict else str(raw)
    except (ValueError, InvalidOperation, OverflowError):
        return None


def _raw(info: ColumnInfo) -> Any:
    """Return the current default, or, if there is none, the value that rows older than the column have."""
    is_bytes = info.type.tp is Tp.BIT or info.type.is_binary
    for value, octets in ((info.default, info.default_bit), (info.origin_default, info.origin_default_bit)):
        if octets is not None and is_bytes:
            return octets
        if value is not None:
            return value.encode("utf-8", "surrogateescape") if is_bytes and isinstance(value, str) else value
    return None


def _bytes(raw: bytes, column_type: ColumnType, *, strict: bool) -> str:
    if not strict:
        return base64.b64encode(raw).decode()
    if column_type.type_class is TypeClass.BIT:
        raw = raw.lstrip(b"\0") or b"\0"
    return raw.decode("latin-1")  # one code point for each byte


def _unscaled(text: str, made: AvroType) -> str:
    assert made.scale is not None
    scaled = Decimal(text).scaleb(made.scale)
    number = int(scaled)
    if number != scaled:
        raise ValueError(f"{text} has more digits than the column")
    return twos_complement(number).decode("latin-1")


def twos_complement(number: int) -> bytes:
    """Return a big-endian number with as few bytes as possible, as Java and goavro write decimals."""
    return number.to_bytes(((number if number >= 0 else ~number).bit_length() >> 3) + 1, "big", signed=True)


def _whole(number: int, bits: int) -> int:
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"{number} has more than {bits} bits")
    return number


def _finite(number: float) -> float:
    if not isfinite(number):
        raise ValueError(f"{number} is not a number")
    return number


def _text(text: str, column_type: ColumnType, zone: tzinfo) -> str:
    if column_type.type_class is TypeClass.ENUM and text not in column_type.kind.elems:
        raise ValueError(f"{text!r} is none of the names")
    if column_type.type_class in (TypeClass.DATE, TypeClass.DATETIME):
        packed = parse_datetime(text, column_type.kind.fsp)  # refuses CURRENT_TIMESTAMP
        if column_type.kind.tp is Tp.TIMESTAMP:
            return timestamp_text(from_zone(packed, UTC), column_type.kind.fsp, zone)
    return text


# Names in schemas, and the subjects under which a registry stores schemas.

_LETTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_DIGITS: Final = frozenset("0123456789")


def avro_name(name: str) -> str:
    """Replace each character that Avro's names do not have by `_`, and put `_` in front of a leading digit. Different
    names may become the same."""
    if not name:
        return ""
    first, rest = name[0], name[1:]
    head = first if first in _LETTERS else f"_{first}" if first in _DIGITS else "_"
    return head + "".join(c if c in _LETTERS or c in _DIGITS else "_" for c in rest)


def record_namespace(namespace: str, schema: str) -> str:
    """Return the namespace of a record, from the changefeed's namespace and the database's name."""
    if not schema:
        return avro_name(namespace)
    return f"{avro_name(namespace)}.{avro_name(schema)}"


def subjects(options: ProtocolOptions, topic: str) -> tuple[str, str]:
    """Return the subjects of the topic's key and value schemas: of TiCDC, which replaces every `.` by `_`, or of
    Confluent's TopicNameStrategy."""
    prefix = topic.replace(".", "_") if options.avro_subject_names == "ticdc" else topic
    return f"{prefix}-key", f"{prefix}-value"


OP = "_tidb_op"
COMMIT_TS = "_tidb_commit_ts"
PHYSICAL_TIME = "_tidb_commit_physical_time"
CHECKSUM = "_tidb_row_level_checksum"
CORRUPTED = "_tidb_corrupted"
CHECKSUM_VERSION = "_tidb_checksum_version"
# Newer versions of TiCDC use this name. In every other respect the field is an extension of this project.
BEFORE = "_ticdc_before"

_OP_FIELD: Final[dict[str, object]] = {"default": "", "name": OP, "type": "string"}
_TIME_FIELDS: Final[tuple[dict[str, object], ...]] = (
    {"default": 0, "name": COMMIT_TS, "type": "long"},
    {"default": 0, "name": PHYSICAL_TIME, "type": "long"},
)


@dataclass(frozen=True, slots=True)
class Field:
    """One column. `null_first`: whether null is the first branch of a nullable column's union; None: it is no union."""

    name: str
    type: AvroType
    null_first: bool | None
    document: dict[str, object]


@dataclass(frozen=True, slots=True)
class TableSchemas:
    """The schemas of a table. `fields`: parallel to `table.columns`. `key`: None if the table has no handle key."""

    fields: tuple[Field, ...]
    key: str | None
    value: str


def table_schemas(table: Table, options: ProtocolOptions) -> TableSchemas:
    """Return the schemas. Raises EncodeError if two names are the same in Avro, or if a name becomes empty."""
    name, namespace = avro_name(table.name), record_namespace(options.namespace, table.schema)
    fields = tuple(_field(column, options) for column in table.columns)
    extra = _extra_fields(options)
    _check_names(table, [*extra, {"name": BEFORE}] if options.avro_output_old_row else extra)
    documents = [field.document for field in fields]
    value: list[dict[str, object]] = [*documents, *extra]
    if options.avro_output_old_row:
        before = {"type": "record", "name": f"{name}_before", "fields": documents}
        value.append({"default": None, "name": BEFORE, "type": ["null", before]})
    key = None
    if table.handle:
        key = _record(name, namespace, [fields[column_index].document for column_index in table.handle])
    return TableSchemas(fields, key, _record(name, namespace, value))


def _record(name: str, namespace: str, fields: Sequence[dict[str, object]]) -> str:
    return compact_json({"type": "record", "name": name, "namespace": namespace, "fields": list(fields)})


def _extra_fields(options: ProtocolOptions) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    if options.enable_tidb_extension or options.avro_output_old_row:
        found.append(_OP_FIELD)
    if options.enable_tidb_extension:
        found += _TIME_FIELDS
    return found


def _field(column: Column, options: ProtocolOptions) -> Field:
    name, made = avro_name(column.name), avro_type(column.column_type, options)
    default = default_of(column.info, column.column_type, made, options)
    # A row may have been written before its column became NOT NULL.
    nullable = bool(column.flags & ColumnFlag.NULLABLE) or not column.column_type.kind.is_not_null
    if not nullable:
        document: dict[str, object] = {"name": name, "type": made.document}
        if default is not None:
            document = {"default": default, **document}
        return Field(name, made, None, document)
    union = ["null", made.document] if default is None else [made.document, "null"]
    return Field(name, made, default is None, {"default": default, "name": name, "type": union})


def _check_names(table: Table, extra: Sequence[dict[str, object]]) -> None:
    taken = {str(field["name"]): "a field that messages have besides columns" for field in extra}
    for column in table.columns:
        name = avro_name(column.name)
        if name in taken:
            raise EncodeError(
                f"`{table.schema}`.`{table.name}`: the column `{column.name}` is called {name} in Avro, which has only "
                f"letters, digits and _, and so is {taken[name]}: rename one of them, or use another protocol"
            )
        taken[name] = f"the column `{column.name}`"


def compact_json(value: object) -> str:
    """Return JSON as Go's encoding/json writes it. Members keep their order."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json_string(name)}:{compact_json(of)}" for name, of in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(compact_json, value)) + "]"
    return json_double(value) if isinstance(value, float) else json_document(value)
