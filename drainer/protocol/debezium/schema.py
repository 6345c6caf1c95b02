"""The types of Debezium's MySQL connector, the values of its payload, and the Kafka Connect schemas of messages."""

from __future__ import annotations

import re
from binascii import b2a_base64
from dataclasses import dataclass
from datetime import UTC
from math import isfinite
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError
from binlog.tidb.time import parse_datetime, parse_duration, unpack
from binlog.tidb.types import FieldType, Tp

from drainer.changes.texts import text_of as column_text
from drainer.changes.vector import Ints, Words
from drainer.protocol.avro.schema import avro_name
from drainer.protocol.column_text import distinct, each, names_of
from drainer.protocol.json_text import Fragment, base64, json_string, short_double, text, utf8_text
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import Column, Table
from drainer.row.column_type import ColumnType, TypeClass, bit_number

DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
EPOCH: Final = b"1970-01-01T00:00:00Z"
_DAY_US: Final = 86_400_000_000
_INTEGERS: Final = {Tp.TINY: "int16", Tp.SHORT: "int16", Tp.INT24: "int32", Tp.LONG: "int32", Tp.LONGLONG: "int64"}
_LARGER: Final = {Tp.SHORT: "int32", Tp.LONG: "int64"}


@dataclass(frozen=True, slots=True)
class Value:
    """How a column's values are written. `type`: Connect's type; `semantic`: the semantic type, "" if there is none."""

    fragment: Fragment
    type: str
    semantic: str = ""

    @property
    def is_quoted(self) -> bool:
        """Whether values are JSON strings."""
        return self.type in ("string", "bytes")


def value_of(column_type: ColumnType, options: ProtocolOptions) -> Value:
    kind = column_type.kind
    precise = options.debezium_bigint_unsigned_handling_mode == "precise"
    match column_type.type_class:
        case TypeClass.INT if kind.tp is Tp.YEAR:
            return Value(_whole, "int32", "io.debezium.time.Year")
        case TypeClass.INT if kind.tp is Tp.LONGLONG and kind.is_unsigned and precise:
            return Value(each(_unscaled), "bytes", DECIMAL)
        case TypeClass.INT:
            return Value(_whole, (_LARGER if kind.is_unsigned and kind.tp in _LARGER else _INTEGERS)[kind.tp])
        case TypeClass.DECIMAL:
            double = short_double(ColumnType(FieldType(Tp.DOUBLE), TypeClass.FLOAT))
            return Value(lambda array: double(array.cast(pa.float64())), "double")
        case TypeClass.FLOAT:
            return Value(short_double(column_type), "float" if kind.tp is Tp.FLOAT and kind.decimal < 0 else "double")
        case TypeClass.TEXT:
            return Value(utf8_text, "string")
        case TypeClass.BYTES:
            return Value(base64, "string")
        case TypeClass.ENUM | TypeClass.SET:
            names = names_of(column_type)
            shown = distinct(lambda value: json_string(names(value))[1:-1].encode())
            return Value(shown, "string", f"io.debezium.data.{'Enum' if kind.tp is Tp.ENUM else 'EnumSet'}")
        case TypeClass.BIT:
            return _bit(kind)
        case TypeClass.DATE:
            return Value(_since_1970(_DAY_US, kind), "int32", "io.debezium.time.Date")
        case TypeClass.DATETIME if kind.tp is Tp.TIMESTAMP:
            return Value(lambda array: _zoned(column_type, array), "string", "io.debezium.time.ZonedTimestamp")
        case TypeClass.DATETIME:
            step, semantic = (1, "MicroTimestamp") if kind.decimal > 3 else (1000, "Timestamp")
            return Value(_since_1970(step, kind), "int64", f"io.debezium.time.{semantic}")
        case TypeClass.TIME:
            return Value(
                lambda array: _text(pc.divide(array, pa.scalar(1000, pa.int64()))),
                "int64",
                "io.debezium.time.MicroTime",
            )
        case TypeClass.JSON:
            return Value(text(column_type, UTC), "string", "io.debezium.data.Json")
        case _:
            return Value(text(column_type, UTC), "string")


def _text(array: Any) -> Any:
    return array.cast(pa.string()).cast(pa.binary())


def _whole(array: Any) -> Any:
    """Convert integers. An unsigned BIGINT above 2^63-1 becomes negative, because Connect has only int64."""
    return _text(array.view(pa.int64()) if array.type == pa.uint64() else array)


def _unscaled(value: int) -> bytes:
    """Convert an unsigned number to Connect's Decimal of scale 0: base64 of its bytes in two's complement, the highest
    first."""
    return b2a_base64(value.to_bytes((value.bit_length() >> 3) + 1, "big"), newline=False)


def _bit(kind: FieldType) -> Value:
    """Convert BITs. BIT(1) is a boolean. A longer one is the bytes of its number, lowest first."""
    width = max(kind.flen, 1)
    if width == 1:
        return Value(each(lambda value: b"true" if bit_number(value, 1) else b"false"), "boolean")
    size = (width + 7) // 8
    return Value(
        distinct(lambda value: b2a_base64(bit_number(value, width).to_bytes(size, "little"), newline=False)),
        "bytes",
        "io.debezium.data.Bits",
    )


def _zoned(column_type: ColumnType, array: Any) -> Any:
    """Convert TIMESTAMPs to UTC, the zone of the decoded value. The zero timestamp is shown as the epoch."""
    shown = pc.binary_replace_slice(column_text(column_type, array), 10, 11, b"T")
    shown = pc.binary_join_element_wise(shown, b"Z", b"")
    return pc.if_else(pc.equal(array, pa.scalar(0, pa.uint64())), EPOCH, shown)


def _civil(array: Any) -> tuple[npt.NDArray[np.datetime64], Ints, Ints, Ints]:
    """Return the first day of the month, the numbers of month and day, and the time in microseconds. Years below 100
    become 1970 to 2069, as in Debezium."""
    packed: Words = pc.fill_null(array, 0).to_numpy(zero_copy_only=False)
    bits = (packed >> np.uint64(24)).astype(np.int64)
    ymd, hour, minute, second = bits >> 17, bits >> 12 & 31, bits >> 6 & 63, bits & 63
    micros = (packed & np.uint64(0xFFFFFF)).astype(np.int64)
    wrong = (ymd >= 4_160_000) | (hour > 23) | (minute > 59) | (second > 59) | (micros > 999_999)
    for bad in packed[wrong][:1].tolist():
        unpack(bad)
    year, month = np.divmod(ymd >> 5, 13)
    year = np.where(year < 70, year + 2000, np.where(year < 100, year + 1900, year))
    first = ((year - 1970) * 12 + month - 1).astype("datetime64[M]").astype("datetime64[D]")
    return first, month, ymd & 31, ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros


def _since_1970(unit_us: int, kind: FieldType) -> Fragment:
    """Write times as numbers of units since 1970, without a zone. A date that does not exist (a zero month, February
    30th) becomes null, or 0 in a column that is NOT NULL. Raises DecodeError for a value that no column can hold."""

    def run(array: Any) -> Any:
        first, month, day, time_us = _civil(array)
        date = first + (day - 1)
        is_day = (month > 0) & (day > 0) & (date.astype("datetime64[M]") == first.astype("datetime64[M]"))
        shown = _text(pa.array((date.astype(np.int64) * _DAY_US + time_us) // unit_us))
        absent = np.asarray(array.is_null()) | ~is_day
        if absent.any():
            other = pc.if_else(array.is_null(), None, b"0") if kind.is_not_null else pa.scalar(None, pa.binary())
            return pc.if_else(pa.array(absent), other, shown)
        return shown

    return run


# Defaults of columns in a Connect schema.
NO_DEFAULT: Final = object()
_NOW: Final = "CURRENT_TIMESTAMP"


def default_of(column: Column, options: ProtocolOptions) -> object:
    """Return the default. NO_DEFAULT if the column has none, if it is an expression, or if Connect's type cannot
    express it."""
    info, column_type = column.info, column.column_type
    if info.default is None or info.default_is_expr:
        return NO_DEFAULT
    if column_type.type_class is TypeClass.BIT:
        return _shown(column_type, int.from_bytes(info.default_bit, "big"), options) if info.default_bit else NO_DEFAULT
    if not isinstance(info.default, str | int | float):
        return NO_DEFAULT
    try:
        return _default(column_type, str(info.default), options)
    except (ValueError, OverflowError, DecodeError):
        return NO_DEFAULT


def _default(column_type: ColumnType, text: str, options: ProtocolOptions) -> object:
    kind = column_type.kind
    match column_type.type_class:
        case TypeClass.INT:
            number = int(text)
            if kind.tp is Tp.YEAR and number < 100:
                return number + (2000 if number < 70 else 1900)
            return _shown(column_type, number, options)
        case TypeClass.FLOAT | TypeClass.DECIMAL:
            value = float(text)
            return value if isfinite(value) else NO_DEFAULT
        case TypeClass.DATETIME if text.upper().startswith(_NOW):
            if kind.tp is Tp.DATETIME:
                return 0
            return EPOCH.decode() if kind.is_not_null else NO_DEFAULT
        case TypeClass.DATE | TypeClass.DATETIME:
            return _shown(column_type, parse_datetime(text, kind.fsp), options)
        case TypeClass.TIME:
            return parse_duration(text) // 1000
        case _:
            return text


def _shown(column_type: ColumnType, decoded_value: int, options: ProtocolOptions) -> object:
    """Return the default as the value of a row would be written."""
    value = value_of(column_type, options)
    (shown,) = value.fragment(pa.array([decoded_value], column_type.decoded_type)).to_pylist()
    if shown is None:
        return NO_DEFAULT
    found: str = shown.decode()
    if value.is_quoted:
        return found
    return found == "true" if found in ("true", "false") else int(found)


Document = dict[str, object]

_NOT_IN_TOPICS: Final = re.compile(r"[^A-Za-z0-9_.]")
# TiCDC adds nothing to the names of these types, neither in tidb_type (TypeToStr) nor in DDLs.
NEVER_UNSIGNED: Final = frozenset({Tp.YEAR, Tp.BIT, Tp.VARCHAR, Tp.STRING, Tp.NEWDECIMAL})


def schema_name(namespace: str, schema: str, table: str) -> str:
    """Return `<cluster>.<database>.<table>`, limited to the characters that such names may have."""
    return f"{avro_name(namespace)}.{avro_name(schema)}.{_NOT_IN_TOPICS.sub('_', table)}"


def key_schema(table: Table, options: ProtocolOptions) -> Document:
    return {
        "type": "struct",
        "name": f"{schema_name(options.namespace, table.schema, table.name)}.Key",
        "optional": False,
        "fields": [field_schema(table.columns[column_index], options) for column_index in table.handle],
    }


def envelope_schema(table: Table, options: ProtocolOptions) -> Document:
    name = schema_name(options.namespace, table.schema, table.name)
    fields = [field_schema(column, options) for column in table.columns]
    images: list[Document] = [
        {"type": "struct", "optional": True, "name": f"{name}.Value", "field": which, "fields": fields}
        for which in ("before", "after")
    ]
    return _envelope(name, images)


def watermark_schemas(namespace: str) -> tuple[Document, Document]:
    """Return the schemas of key and value."""
    name = f"{avro_name(namespace)}.watermark"
    return {"type": "struct", "name": f"{name}.Key", "optional": False, "fields": []}, _envelope(name, [])


def _envelope(name: str, images: list[Document]) -> Document:
    transaction = fields_of(id="string", total_order="int64", data_collection_order="int64")
    return {
        "type": "struct",
        "optional": False,
        "name": f"{name}.Envelope",
        "version": 1,
        "fields": [
            *images,
            source_schema(),
            *fields_of(op="string", ts_ms="int64?"),
            {
                "type": "struct",
                "fields": transaction,
                "optional": True,
                "name": "event.block",
                "version": 1,
                "field": "transaction",
            },
        ],
    }


def fields_of(**types: str) -> list[Document]:
    """Return fields by name and type. A question mark after the type: optional."""
    return [{"type": type_.rstrip("?"), "optional": "?" in type_, "field": name} for name, type_ in types.items()]


def source_schema() -> Document:
    snapshot: Document = {
        "type": "string",
        "optional": True,
        "name": "io.debezium.data.Enum",
        "version": 1,
        "parameters": {"allowed": "true,last,false,incremental"},
        "default": "false",
        "field": "snapshot",
    }
    fields = [
        *fields_of(version="string", connector="string", name="string", ts_ms="int64"),
        snapshot,
        *fields_of(db="string", sequence="string?", table="string?", server_id="int64", gtid="string?", file="string"),
        *fields_of(pos="int64", row="int32", thread="int64?", query="string?"),
    ]
    return {
        "type": "struct",
        "fields": fields,
        "optional": False,
        "name": "io.debezium.connector.mysql.Source",
        "field": "source",
    }


def field_schema(column: Column, options: ProtocolOptions) -> Document:
    """Return a column's schema. With the extension it includes TiDB's type, from which a reader learns what Connect's
    types do not say (binary, unsigned)."""
    kind = column.column_type.kind
    found: Document = {"tidb_type": tidb_type(kind)} if options.enable_tidb_extension else {}
    value = value_of(column.column_type, options)
    found |= {"type": value.type, "optional": not kind.is_not_null}
    if value.semantic:
        found |= {"name": value.semantic, "version": 1}
    parameters = {"scale": "0"} if value.semantic == DECIMAL else _parameters(kind)
    if parameters:
        found["parameters"] = parameters
    found["field"] = column.name
    default = default_of(column, options)
    if default is not NO_DEFAULT:
        found["default"] = default
    return found


def tidb_type(kind: FieldType) -> str:
    unsigned = kind.is_unsigned and kind.tp not in NEVER_UNSIGNED
    return kind.mysql_name + (" unsigned" if unsigned else "")


def _parameters(kind: FieldType) -> dict[str, str]:
    if kind.tp is Tp.ENUM:
        return {"allowed": ",".join(name.replace(",", "\\,") for name in kind.elems)}
    if kind.tp is Tp.SET:
        return {"allowed": ",".join(kind.elems)}
    return {"length": str(kind.flen)} if kind.tp is Tp.BIT and kind.flen > 1 else {}
