"""The types of Debezium's MySQL connector, and the values of its payload."""

from __future__ import annotations

from binascii import b2a_base64
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from binlog.tidb.time import unpack
from binlog.tidb.types import FieldType, Tp

from drainer.changes.texts import text_of as column_text
from drainer.changes.vector import Ints, Mask, Words
from drainer.protocol.column_text import distinct, each, names_of
from drainer.protocol.json_text import Fragment, base64, json_string, short_double, text, utf8_text
from drainer.protocol.options import ProtocolOptions
from drainer.row.column_type import ColumnType, TypeClass
from drainer.row.text import bit_number

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
    """Convert integers. An unsigned BIGINT above 2^63-1 becomes negative: Connect's int64 cannot express it
    otherwise."""
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


def _micros(array: Any) -> Ints:
    """Return microseconds since 1970 without a zone. The result is arbitrary for a date that does not exist (a zero
    month, February 30th). Raises DecodeError for a value that no column can hold."""
    first, _, day, time = _civil(array)
    days: Ints = (first + (day - 1)).astype(np.int64)
    return days * _DAY_US + time


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
    """Write times as numbers of units. A date that does not exist becomes null, or 0 in a column that is NOT NULL."""

    def run(array: Any) -> Any:
        shown = _text(pa.array(_micros(array) // unit_us))
        absent = np.asarray(array.is_null()) | ~_is_day(array)
        if absent.any():
            other = pc.if_else(array.is_null(), None, b"0") if kind.is_not_null else pa.scalar(None, pa.binary())
            return pc.if_else(pa.array(absent), other, shown)
        return shown

    return run


def _is_day(array: Any) -> Mask:
    first, month, day, _ = _civil(array)
    of_month = (first + (day - 1)).astype("datetime64[M]") == first.astype("datetime64[M]")
    found: Mask = (month > 0) & (day > 0) & of_month
    return found
