"""Converts Python values to the datums in a row, with the casts of an INSERT into the column, and datums to text.

Accepted values by type: integers int or text; FLOAT and DOUBLE float, int or text; DECIMAL text, int or
decimal.Decimal; strings str or bytes; times text, date, datetime; TIME text or timedelta; ENUM a name or an index; SET
names joined by commas or a mask; BIT an int or bytes; JSON text, BinaryJSON, or any value that `encode_json` accepts.
Fractions are rounded half up to the column's precision. A value that does not fit raises ValueError with the type.

*Text* is what TiDB's MySQL text protocol shows: `str`, but `bytes` for binary strings and BIT, and None for NULL. Text
that is not UTF-8 keeps its bytes as lone surrogates (`surrogateescape`).
"""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable
from math import isfinite
from typing import TypeAlias, TypeVar

from binlog.errors import BinlogError, DecodeError

from .datum import Datum, Uint
from .decimal import Decimal, decode_decimal, encode_decimal
from .json import BinaryJSON, encode_json, number_text, parse_json
from .table import ColumnInfo
from .time import (
    DURATION_NS_MAX,
    Civil,
    date_text,
    datetime_text,
    duration_text,
    pack,
    parse_datetime,
    parse_duration,
    unpack,
)
from .types import FLOATS, INTEGERS, STRINGS, TIMES, FieldType, Tp
from .varint import UINT64_MAX

Text: TypeAlias = "str | bytes | None"
V = TypeVar("V")

_float32 = struct.Struct("<f")
_FLOAT32_NORMAL_MIN = 2.0**-126


def to_text(value: Datum, kind: FieldType) -> Text:
    """Return canonical text; TIMESTAMPs are shown in UTC. Raises DecodeError if the datum does not fit the type."""
    if value is None:
        return None
    show = _SHOW.get(kind.tp)
    if show is None:
        raise _not_held(value, kind)
    return show(value, kind)


def _not_held(value: object, kind: FieldType) -> DecodeError:
    return DecodeError(f"{kind.mysql_name} column", offset=0, detail=f"it cannot hold a {type(value).__name__}")


def to_float32(value: float) -> float:
    """Return the number that a FLOAT column holds; rows carry it widened. Raises DecodeError if it is too large."""
    try:
        return float(_float32.unpack(_float32.pack(value))[0])
    except OverflowError:
        raise DecodeError("float column", offset=0, detail=f"{value} is too large") from None


def double_text(value: float) -> str:
    """Format with the fewest digits; with an exponent (without `+`) from 1e15 up and below 1e-15. Raises DecodeError
    for NaN and infinity.
    """
    if not isfinite(value):
        raise DecodeError("double column", offset=0, detail=f"{value} is not a number in SQL")
    return number_text(value, repr(abs(value)), 1e-15, 1e15, "d")


def float_text(value: float) -> str:
    """Format as `double_text` does, with the fewest digits that give the same 32-bit number."""
    value = to_float32(value)
    if not isfinite(value):
        raise DecodeError("float column", offset=0, detail=f"{value} is not a number in SQL")
    size = abs(value)
    # For normal numbers, six digits are always exact, and `g` drops trailing zeros. Only subnormal numbers may need
    # fewer.
    for digits in range(6 if size >= _FLOAT32_NORMAL_MIN else 1, 9):
        shown = f"{size:.{digits}g}"
        if float(shown) < 3.5e38 and _float32.unpack(_float32.pack(float(shown)))[0] == size:
            break
    else:
        shown = f"{size:.9g}"
    return number_text(value, shown, to_float32(1e-15), to_float32(1e15), "d")


def enum_text(index: int, kind: FieldType) -> str:
    """Return the name of an index. An index without a name (0 is the error value, X-14) gives the empty string."""
    return kind.elems[index - 1] if 0 < index <= len(kind.elems) else ""


def set_text(mask: int, kind: FieldType) -> str:
    """Return the names joined by commas. Raises DecodeError for bits without a name."""
    elems = kind.elems
    if mask >> len(elems):
        raise DecodeError("set column", offset=0, detail=f"invalid number {mask} for Set {list(elems)}")
    return ",".join([name for bit, name in enumerate(elems) if mask >> bit & 1])


def bit_bytes(value: int, kind: FieldType) -> bytes:
    """Return big-endian bytes, as many as BIT(n) has. Raises DecodeError if the value does not fit."""
    size = (max(kind.flen, 1) + 7) // 8
    if value < 0 or value >> 8 * size:
        raise DecodeError("bit column", offset=0, detail=f"{value} does not fit BIT({kind.flen})")
    return value.to_bytes(size, "big")


_Show: TypeAlias = "Callable[[Datum, FieldType], str | bytes]"


def _show_string(value: Datum, kind: FieldType) -> str | bytes:
    if not isinstance(value, bytes) or isinstance(value, BinaryJSON):
        raise _not_held(value, kind)
    return value if kind.charset == "binary" else value.decode("utf-8", "surrogateescape")


def _typed(kind_of_value: type[V], show: Callable[[V, FieldType], str | bytes]) -> _Show:
    """Return a function that shows a value of one Python type, and refuses any other."""

    def shown(value: Datum, kind: FieldType) -> str | bytes:
        if not isinstance(value, kind_of_value):
            raise _not_held(value, kind)
        return show(value, kind)

    return shown


_SHOW: dict[Tp, _Show] = {
    **dict.fromkeys(INTEGERS, _typed(int, lambda value, _kind: str(int(value)))),
    **dict.fromkeys(STRINGS, _show_string),
    Tp.YEAR: _typed(int, lambda value, _kind: f"{value:04d}"),
    Tp.FLOAT: _typed(float, lambda value, _kind: float_text(value)),
    Tp.DOUBLE: _typed(float, lambda value, _kind: double_text(value)),
    Tp.NEWDECIMAL: _typed(Decimal, lambda value, _kind: str(value)),
    **dict.fromkeys((Tp.DATE, Tp.NEWDATE), _typed(int, lambda value, _kind: date_text(value))),
    **dict.fromkeys((Tp.DATETIME, Tp.TIMESTAMP), _typed(int, lambda value, kind: datetime_text(value, kind.fsp))),
    Tp.DURATION: _typed(int, lambda value, kind: duration_text(value, kind.fsp)),
    Tp.ENUM: _typed(int, enum_text),
    Tp.SET: _typed(int, set_text),
    Tp.BIT: _typed(int, bit_bytes),
    Tp.JSON: _typed(BinaryJSON, lambda value, _kind: value.text()),
}


INTEGER_BITS = {Tp.TINY: 8, Tp.SHORT: 16, Tp.INT24: 24, Tp.LONG: 32, Tp.LONGLONG: 64}
_YEARS = range(1901, 2156)
_DIGITS = decimal.Context(prec=200, rounding=decimal.ROUND_HALF_UP)


def flatten(value: object, kind: FieldType) -> Datum:
    """Return the datum of `value` in a column of this type. TIMESTAMPs are in UTC."""
    if value is None:
        return None
    cast = _CAST.get(kind.tp)
    if cast is None:
        raise ValueError(f"nothing can be written to a {kind.mysql_name} column")
    return cast(value, kind)


def _unfit(value: object, kind: FieldType) -> ValueError:
    return ValueError(f"{value!r} does not fit a {kind.mysql_name} column")


def _rounded(value: object, kind: FieldType) -> int:
    if isinstance(value, int):
        return int(value)
    try:
        if isinstance(value, str | decimal.Decimal):
            return int(_DIGITS.create_decimal(value).to_integral_value(decimal.ROUND_HALF_UP))
        if isinstance(value, float):
            return int(decimal.Decimal(value).to_integral_value(decimal.ROUND_HALF_EVEN))
    except (decimal.InvalidOperation, ValueError, OverflowError):
        pass
    raise _unfit(value, kind)


def _cast_int(value: object, kind: FieldType) -> Datum:
    number = _rounded(value, kind)
    bits = INTEGER_BITS[kind.tp]
    if kind.is_unsigned:
        if not 0 <= number < 1 << bits:
            raise _unfit(value, kind)
        return Uint(number)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise _unfit(value, kind)
    return number


def _cast_year(value: object, kind: FieldType) -> Datum:
    number = _rounded(value, kind)
    if number != 0 and number not in _YEARS:
        raise _unfit(value, kind)
    return number


def _cast_float(value: object, kind: FieldType) -> Datum:
    if not isinstance(value, int | float | str | decimal.Decimal):
        raise _unfit(value, kind)
    try:
        number = float(value)
    except ValueError:
        raise _unfit(value, kind) from None
    if number - number != 0:
        raise _unfit(value, kind)
    return to_float32(number) if kind.tp == Tp.FLOAT else number


def _cast_decimal(value: object, kind: FieldType) -> Datum:
    precision, frac = kind.flen, max(kind.decimal, 0)
    if not isinstance(value, int | str | decimal.Decimal):
        raise _unfit(value, kind)
    try:
        number = _DIGITS.create_decimal(value)
        if precision > 0:
            number = number.quantize(decimal.Decimal(1).scaleb(-frac), context=_DIGITS)
        text = format(number, "f")
        return decode_decimal(encode_decimal(text, max(precision, 0), frac))[0]
    except (decimal.InvalidOperation, ValueError):
        raise _unfit(value, kind) from None


def _cast_string(value: object, kind: FieldType) -> Datum:
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _unfit(value, kind)
    data = bytes(value)
    # BINARY(n) is stored padded to n.
    return data.ljust(max(kind.flen, 0), b"\x00") if kind.tp == Tp.STRING and kind.charset == "binary" else data


def _cast_time(value: object, kind: FieldType) -> Datum:
    fsp = 0 if kind.tp in (Tp.DATE, Tp.NEWDATE) else kind.fsp
    if isinstance(value, datetime.datetime):
        packed = pack(Civil(*value.timetuple()[:6], value.microsecond))
    elif isinstance(value, datetime.date):
        packed = pack(Civil(value.year, value.month, value.day))
    elif isinstance(value, str):
        packed = parse_datetime(value)
    else:
        raise _unfit(value, kind)
    rounded = _round_time(packed, fsp)
    return Uint(rounded >> 41 << 41 if kind.tp in (Tp.DATE, Tp.NEWDATE) else rounded)


def _round_time(packed: int, fsp: int) -> int:
    """Round half up to fsp digits, with carry into the seconds. With a zero month, the digits are truncated instead."""
    unit: int = 10 ** (6 - fsp)
    microsecond = packed & 0xFFFFFF
    rounded = (microsecond + unit // 2) // unit * unit
    if rounded < 1_000_000:
        return packed - microsecond + rounded
    try:
        whole = datetime.datetime(*unpack(packed)[:6]) + datetime.timedelta(seconds=1)
    except (ValueError, OverflowError):
        return packed - microsecond + microsecond // unit * unit
    return pack(Civil(*whole.timetuple()[:6]))


def _cast_duration(value: object, kind: FieldType) -> Datum:
    if isinstance(value, datetime.timedelta):
        ns = (value.days * 86_400 + value.seconds) * 1_000_000_000 + value.microseconds * 1000
    elif isinstance(value, str):
        ns = parse_duration(value)
    else:
        raise _unfit(value, kind)
    unit: int = 10 ** (9 - kind.fsp)
    rounded = (abs(ns) + unit // 2) // unit * unit
    if rounded > DURATION_NS_MAX:
        raise _unfit(value, kind)
    return -rounded if ns < 0 else rounded


def _name_index(name: str, kind: FieldType) -> int | None:
    """Return the position of an ENUM or SET name: exact, or ignoring case if the collation does."""
    wanted = name.rstrip(" ")
    if wanted in kind.elems:
        return kind.elems.index(wanted)
    folded = [elem.rstrip(" ") for elem in kind.elems]
    if kind.collate.endswith("_ci"):
        folded, wanted = [elem.casefold() for elem in folded], wanted.casefold()
    return folded.index(wanted) if wanted in folded else None


def _cast_enum(value: object, kind: FieldType) -> Datum:
    if isinstance(value, str):
        index = _name_index(value, kind)
        if index is None and value:
            raise _unfit(value, kind)
        return Uint(0 if index is None else index + 1)  # the error value (0) is shown as ""
    if not isinstance(value, int) or not 0 <= value <= len(kind.elems):
        raise _unfit(value, kind)
    return Uint(value)


def _cast_set(value: object, kind: FieldType) -> Datum:
    if isinstance(value, str):
        mask = 0
        for name in value.split(",") if value else ():
            index = _name_index(name, kind)
            if index is None:
                raise _unfit(value, kind)
            mask |= 1 << index
        return Uint(mask)
    if not isinstance(value, int) or value < 0 or value >> len(kind.elems):
        raise _unfit(value, kind)
    return Uint(value)


def _cast_bit(value: object, kind: FieldType) -> Datum:
    number = int.from_bytes(value, "big") if isinstance(value, bytes) else value
    if not isinstance(number, int) or not 0 <= number <= UINT64_MAX or number >> max(kind.flen, 1):
        raise _unfit(value, kind)
    return Uint(number)


def _cast_json(value: object, _kind: FieldType) -> Datum:
    if isinstance(value, str) and not isinstance(value, BinaryJSON):
        return parse_json(value)
    return encode_json(value)


_Cast: TypeAlias = "Callable[[object, FieldType], Datum]"
_CAST: dict[Tp, _Cast] = {
    **dict.fromkeys(INTEGERS, _cast_int),
    **dict.fromkeys(STRINGS, _cast_string),
    Tp.YEAR: _cast_year,
    **dict.fromkeys(FLOATS, _cast_float),
    Tp.NEWDECIMAL: _cast_decimal,
    **dict.fromkeys(TIMES, _cast_time),
    Tp.DURATION: _cast_duration,
    Tp.ENUM: _cast_enum,
    Tp.SET: _cast_set,
    Tp.BIT: _cast_bit,
    Tp.JSON: _cast_json,
}


_JSON_NULL = BinaryJSON(b"\x04\x00")


def missing_value(column: ColumnInfo) -> Datum:
    """Return the value of a column that a row does not contain (D-TR-03): such a row is older than the column, or its
    NULL was left out. Raises DecodeError with the column's name if its origin default is not a value of its type.

    It is the first that applies: `origin_default`; NULL if the column is nullable; the first name of an ENUM; the
    type's zero value. A TIMESTAMP's default is in UTC, as its datum is; only its text needs a time zone.
    """
    if column.origin_default_bit is not None and column.type.tp == Tp.BIT:
        return Uint(int.from_bytes(column.origin_default_bit, "big"))
    if column.origin_default_bit is not None and column.type.tp in STRINGS and column.type.is_binary:
        return flatten(column.origin_default_bit, column.type)
    if column.origin_default is not None:
        return _origin_default(column)
    if not column.is_not_null:
        return None
    if column.type.tp == Tp.ENUM:
        return Uint(1 if column.type.elems else 0)
    return zero_value(column.type)


def _origin_default(column: ColumnInfo) -> Datum:
    value = column.origin_default
    if isinstance(value, bool):
        value = int(value)
    if column.type.tp == Tp.BIT and isinstance(value, str):
        return Uint(int.from_bytes(value.encode("utf-8", "surrogateescape"), "big"))
    try:
        return flatten(value, column.type)
    except (ValueError, TypeError, BinlogError) as err:
        raise DecodeError(f"column {column.name}", offset=0, detail=f"bad origin default: {err}") from None


def zero_value(kind: FieldType) -> Datum:
    """Return the value of a NOT NULL column without a default."""
    tp = kind.tp
    if tp in STRINGS:
        return bytes(max(kind.flen, 0)) if tp == Tp.STRING and kind.charset == "binary" else b""
    if tp in FLOATS:
        return 0.0
    if tp == Tp.NEWDECIMAL:
        return flatten(0, kind)
    if tp == Tp.JSON:
        return _JSON_NULL
    if tp in TIMES or tp in (Tp.BIT, Tp.SET, Tp.ENUM) or (kind.is_unsigned and tp not in (Tp.YEAR, Tp.DURATION)):
        return Uint(0)
    return 0
