"""Converts Python values to the datums in a row, with the casts that an INSERT into the column makes.

Accepted values by type: integers int or text; FLOAT and DOUBLE float, int or text; DECIMAL text, int or
decimal.Decimal; strings str or bytes; times text, date, datetime; TIME text or timedelta; ENUM a name or an index; SET
names joined by commas or a mask; BIT an int or bytes; JSON text, BinaryJSON, or any value that `encode_json` accepts.
Fractions are rounded half up to the column's precision. A value that does not fit raises ValueError with the type.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import TypeAlias

from .datum import Datum, Uint
from .decimal import decode_decimal, encode_decimal
from .json import BinaryJSON
from .json_encode import encode_json, parse_json
from .time import DURATION_NS_MAX, Civil, pack, parse_datetime, parse_duration, unpack
from .types import INTEGERS, STRINGS, FieldType, Tp
from .unflatten import to_float32
from .varint import UINT64_MAX

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
    Tp.FLOAT: _cast_float,
    Tp.DOUBLE: _cast_float,
    Tp.NEWDECIMAL: _cast_decimal,
    Tp.DATE: _cast_time,
    Tp.NEWDATE: _cast_time,
    Tp.DATETIME: _cast_time,
    Tp.TIMESTAMP: _cast_time,
    Tp.DURATION: _cast_duration,
    Tp.ENUM: _cast_enum,
    Tp.SET: _cast_set,
    Tp.BIT: _cast_bit,
    Tp.JSON: _cast_json,
}
