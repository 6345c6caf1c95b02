"""Converts Python values to stored datums and back. A value that a column cannot hold exactly is an error; nothing is
rounded. Defaults of columns: as stored in TableInfo, as SQL text, and as the value of a row that leaves the column out.
Pure, except that the current time is passed in for `NOW`.

`encoder(FieldType)` makes a function for one column. It accepts any Python value except None and returns the flattened
datum (F-01), or raises ValueError with the reason. `decoder(FieldType)` makes the function for the way back; encoding
its result gives the same datum again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from binlog.tidb import decimal as tidb_decimal
from binlog.tidb.datum import Datum, Uint
from binlog.tidb.flatten import to_float32, to_text
from binlog.tidb.json import BinaryJSON, encode_json
from binlog.tidb.time import DURATION_NS_MAX, Civil, pack, parse_duration, unpack
from binlog.tidb.types import BLOBS, FLOATS, INTEGERS, STRINGS, FieldType, Tp

from pumpclient.sdk.errors import BadDeclaration, ValueRejected
from pumpclient.sdk.table import NO_DEFAULT, NOW, Column

Encoder = Callable[[object], Datum]

_BITS = {Tp.TINY: 8, Tp.SHORT: 16, Tp.INT24: 24, Tp.LONG: 32, Tp.LONGLONG: 64}
_TIMESTAMP_MIN = datetime(1970, 1, 1, 0, 0, 1)
_TIMESTAMP_MAX = datetime(2038, 1, 19, 3, 14, 7, 999_999)


def encoder(kind: FieldType) -> Encoder:
    """Return the encoder of one column. Raises ValueError for a type that the SDK does not write (VECTOR, GEOMETRY)."""
    maker = _MAKERS.get(kind.tp)
    if maker is None:
        raise ValueError(f"columns of type {kind.mysql_name} cannot be written")
    return maker(kind)


def _wrong_type(what: str, value: object) -> ValueError:
    return ValueError(f"expected {what}, got {type(value).__name__}")


def _integer(kind: FieldType) -> Encoder:
    bits = _BITS[kind.tp]
    low, high = (0, (1 << bits) - 1) if kind.is_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    make = Uint if kind.is_unsigned else int

    def encode(value: object) -> Datum:
        if not isinstance(value, int):
            raise _wrong_type("an int", value)
        if not low <= value <= high:
            raise ValueError(f"out of range {low} to {high}")
        return make(value)

    return encode


def _year(value: object) -> Datum:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong_type("an int", value)
    if value != 0 and not 1901 <= value <= 2155:
        raise ValueError("out of range: 0, or 1901 to 2155")
    return int(value)


def _float(kind: FieldType) -> Encoder:
    narrow = kind.tp is Tp.FLOAT

    def encode(value: object) -> Datum:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong_type("a float", value)
        try:
            number = float(value)
        except OverflowError:
            raise ValueError("out of range") from None
        if not math.isfinite(number):
            raise ValueError("NaN and infinity cannot be stored")
        if kind.is_unsigned and number < 0:
            raise ValueError("the column is unsigned")
        if narrow and abs(number) > 3.4028234663852886e38:
            raise ValueError("out of range of FLOAT")
        if kind.decimal >= 0 and abs(number) >= 10 ** (kind.flen - kind.decimal):
            raise ValueError(f"out of range of ({kind.flen},{kind.decimal})")
        return to_float32(number) if narrow else number

    return encode


def _decimal(kind: FieldType) -> Encoder:
    precision, scale = kind.flen, max(kind.decimal, 0)
    top = Decimal(10) ** (precision - scale)

    def encode(value: object) -> Datum:
        if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
            raise _wrong_type("a Decimal, int or str (a float is not exact)", value)
        try:
            number = Decimal(value)
        except ArithmeticError:
            raise ValueError("not a decimal number") from None
        if not number.is_finite():
            raise ValueError("NaN and infinity cannot be stored")
        if kind.is_unsigned and number < 0:
            raise ValueError("the column is unsigned")
        if number.copy_abs() >= top:  # abs() would round to the decimal context
            raise ValueError(f"out of range of DECIMAL({precision},{scale})")
        text = _fixed(number, scale)
        return tidb_decimal.Decimal(text, precision, scale)

    return encode


def _fixed(number: Decimal, scale: int) -> str:
    """Return the number with exactly `scale` fraction digits. Raises ValueError if that would round it."""
    whole, _, fraction = f"{number:f}".partition(".")
    if fraction[scale:].strip("0"):
        raise ValueError(f"more than {scale} digits after the point")
    text = f"{whole}.{fraction[:scale].ljust(scale, '0')}" if scale else whole
    return text.removeprefix("-") if not number else text


def _bit(kind: FieldType) -> Encoder:
    def encode(value: object) -> Datum:
        number = int.from_bytes(value, "big") if isinstance(value, bytes) else value
        if not isinstance(number, int):
            raise _wrong_type("an int or bytes", value)
        if not 0 <= number < 1 << kind.flen:
            raise ValueError(f"does not fit {kind.flen} bits")
        return Uint(number)

    return encode


def _date(value: object) -> Datum:
    if isinstance(value, str):
        value = date.fromisoformat(value)
    if isinstance(value, datetime):
        if value.time() != time(0):
            raise ValueError("expected a date, got a datetime with a time of day")
        value = value.date()
    if not isinstance(value, date):
        raise _wrong_type("a date", value)
    return Uint(pack(Civil(value.year, value.month, value.day)))


def _datetime(kind: FieldType) -> Encoder:
    instant = kind.tp is Tp.TIMESTAMP

    def encode(value: object) -> Datum:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        elif isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day)
        if not isinstance(value, datetime):
            raise _wrong_type("a datetime", value)
        if value.tzinfo is not None:
            if not instant:
                raise ValueError("DATETIME has no time zone; use a naive datetime")
            value = value.astimezone(UTC).replace(tzinfo=None)
        if instant and not _TIMESTAMP_MIN <= value <= _TIMESTAMP_MAX:
            raise ValueError(f"out of range {_TIMESTAMP_MIN} to {_TIMESTAMP_MAX} (UTC)")
        _check_fraction(value.microsecond, kind.fsp)
        return Uint(
            pack(Civil(value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond))
        )

    return encode


def _check_fraction(microsecond: int, fsp: int) -> None:
    if microsecond % 10 ** (6 - fsp):
        raise ValueError(f"{microsecond} microseconds do not fit {fsp} fractional digits")


def _duration(kind: FieldType) -> Encoder:
    def encode(value: object) -> Datum:
        if isinstance(value, str):
            ns = parse_duration(value)
        elif isinstance(value, timedelta):
            ns = (value.days * 86_400 + value.seconds) * 1_000_000_000 + value.microseconds * 1_000
        elif isinstance(value, time):
            if value.tzinfo is not None:
                raise ValueError("a TIME has no time zone")
            seconds = value.hour * 3600 + value.minute * 60 + value.second
            ns = seconds * 1_000_000_000 + value.microsecond * 1_000
        else:
            raise _wrong_type("a timedelta or time", value)
        if abs(ns) > DURATION_NS_MAX:
            raise ValueError("out of range -838:59:59 to 838:59:59")
        if ns % 1_000:
            raise ValueError("more precise than a microsecond")
        _check_fraction(abs(ns) // 1_000 % 1_000_000, kind.fsp)
        return ns

    return encode


def _text(kind: FieldType) -> Encoder:
    counted = kind.tp in (Tp.VARCHAR, Tp.VAR_STRING, Tp.STRING)  # length in characters; TEXT counts bytes
    trimmed = kind.tp is Tp.STRING
    highest = {"utf8": "\uffff", "ascii": "\x7f"}.get(kind.charset)

    def encode(value: object) -> Datum:
        if not isinstance(value, str):
            raise _wrong_type("a str", value)
        if trimmed:
            value = value.rstrip(" ")
        if highest is not None and value and max(value) > highest:
            raise ValueError(f"has a character outside {kind.charset}")
        try:
            data = value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"not Unicode text: {error.reason} at character {error.start}") from None
        length = len(value) if counted else len(data)
        if length > kind.flen:
            unit = "characters" if counted else "bytes"
            raise ValueError(f"{length} {unit} are more than {kind.flen}")
        return data

    return encode


def _binary(kind: FieldType) -> Encoder:
    padded = kind.flen if kind.tp is Tp.STRING else 0

    def encode(value: object) -> Datum:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise _wrong_type("bytes", value)
        data = bytes(value)
        if len(data) > kind.flen:
            raise ValueError(f"{len(data)} bytes are more than {kind.flen}")
        return data.ljust(padded, b"\x00")

    return encode


def _enum(kind: FieldType) -> Encoder:
    numbers = {name: Uint(number) for number, name in enumerate(kind.elems, 1)}

    def encode(value: object) -> Datum:
        if not isinstance(value, str):
            raise _wrong_type("a str, the name of a member", value)
        index = numbers.get(value)
        if index is None:
            raise ValueError(f"not one of {', '.join(map(repr, kind.elems[:20]))}")
        return index

    return encode


def _set(kind: FieldType) -> Encoder:
    masks = {name: 1 << number for number, name in enumerate(kind.elems)}

    def encode(value: object) -> Datum:
        if isinstance(value, str):
            names: list[object] = list(value.split(",")) if value else []
            if value in masks:  # this includes the empty name, if the type has one
                names = [value]
        elif isinstance(value, Iterable) and not isinstance(value, bytes):
            names = list(value)
        else:
            raise _wrong_type("a str or an iterable of names", value)
        mask = 0
        for name in names:
            if not isinstance(name, str) or name not in masks:
                raise ValueError(f"{name!r} is not one of {', '.join(map(repr, kind.elems))}")
            mask |= masks[name]
        return Uint(mask)

    return encode


def _json(value: object) -> Datum:
    if isinstance(value, BinaryJSON):
        return value
    try:
        return encode_json(value)
    except TypeError as error:
        raise ValueError(str(error)) from None


_MAKERS: dict[Tp, Callable[[FieldType], Encoder]] = {
    **dict.fromkeys(INTEGERS, _integer),
    **dict.fromkeys(STRINGS, lambda kind: _binary(kind) if kind.is_binary else _text(kind)),
    Tp.YEAR: lambda _: _year,
    Tp.FLOAT: _float,
    Tp.DOUBLE: _float,
    Tp.NEWDECIMAL: _decimal,
    Tp.BIT: _bit,
    Tp.DATE: lambda _: _date,
    Tp.DATETIME: _datetime,
    Tp.TIMESTAMP: _datetime,
    Tp.DURATION: _duration,
    Tp.ENUM: _enum,
    Tp.SET: _set,
    Tp.JSON: lambda _: _json,
}


# From a datum other than NULL, of the type that the column's encoder makes.
Decode = Callable[[Any], object]


def decoder(kind: FieldType) -> Decode:
    """Return the decoder of one column. The type must be one that `encoder` accepts."""
    if kind.tp in STRINGS:
        return _same if kind.is_binary else bytes.decode
    if kind.tp is Tp.ENUM:
        return lambda datum: kind.elems[datum - 1]
    if kind.tp is Tp.SET:
        return lambda datum: tuple(name for n, name in enumerate(kind.elems) if datum >> n & 1)
    return _DECODERS[kind.tp]


def _same(datum: Any) -> object:
    return datum


def _json_value(datum: BinaryJSON) -> object:
    """Return Python values, or a BinaryJSON if it contains what they cannot represent (dates, times, opaque bytes)."""
    value = datum.value()
    return value if bytes(encode_json(value)) == bytes(datum) else datum


_DECODERS: dict[Tp, Decode] = {
    **dict.fromkeys((*INTEGERS, Tp.BIT), int),
    **dict.fromkeys(FLOATS, _same),
    **dict.fromkeys((Tp.DATETIME, Tp.TIMESTAMP), lambda datum: datetime(*unpack(datum))),
    Tp.NEWDECIMAL: lambda datum: Decimal(str(datum)),
    Tp.DATE: lambda datum: date(*unpack(datum)[:3]),
    Tp.DURATION: lambda datum: timedelta(microseconds=datum // 1_000),
    Tp.JSON: _json_value,
}


CURRENT_TIMESTAMP = "CURRENT_TIMESTAMP"
_NO_LITERAL = BLOBS | {Tp.JSON}


@dataclass(frozen=True, slots=True)
class DefaultInfo:
    """A default. `text` and `bit`: as ColumnInfo stores it. `sql`: the text after DEFAULT, or None."""

    text: str | None = None
    bit: bytes | None = None
    sql: str | None = None


def default_info(table: str, column: Column) -> DefaultInfo:
    """Raises BadDeclaration for a default that the type cannot have, ValueRejected for a bad value."""
    kind, value = column.type, column.default
    if value is NO_DEFAULT or value is None:
        return DefaultInfo()
    if kind.tp in _NO_LITERAL:
        raise BadDeclaration(f"{table}.{column.name}: {kind.mysql_name} can only have the default NULL")
    if value is NOW:
        if kind.tp not in (Tp.TIMESTAMP, Tp.DATETIME):
            raise BadDeclaration(f"{table}.{column.name}: only TIMESTAMP and DATETIME can default to the current time")
        return DefaultInfo(CURRENT_TIMESTAMP, sql=f"{CURRENT_TIMESTAMP}({kind.fsp or ''})")
    try:
        datum = encoder(kind)(value)
    except ValueError as error:
        raise ValueRejected(table, column.name, value, f"as default: {error}") from None
    return literal_info(kind, datum)


def literal_info(kind: FieldType, datum: Datum) -> DefaultInfo:
    """Return the default for a datum other than NULL."""
    if kind.tp is Tp.BIT:
        assert isinstance(datum, int)
        data = datum.to_bytes((kind.flen + 7) // 8, "big")
        return DefaultInfo(data.decode("utf-8", errors="replace"), bit=data, sql=f"b'{datum:b}'")
    canonical = to_text(datum, kind)
    if isinstance(canonical, bytes):
        try:
            return DefaultInfo(canonical.decode(), sql=_bytes_literal(canonical))
        except UnicodeDecodeError:  # JSON cannot hold such text: the bytes are stored in the field of BIT defaults
            text = canonical.decode("utf-8", errors="replace")
            return DefaultInfo(text, bit=canonical, sql=_bytes_literal(canonical))
    assert canonical is not None
    if kind.tp in INTEGERS or kind.tp in FLOATS or kind.tp is Tp.NEWDECIMAL:
        return DefaultInfo(canonical, sql=canonical)
    return DefaultInfo(canonical, sql=string_literal(canonical))


def string_literal(text: str) -> str:
    """Return a string default in the form in which TiDB restores it (X-04)."""
    return "_UTF8MB4" + quoted(text)


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _bytes_literal(data: bytes) -> str:
    try:
        text = data.rstrip(b"\x00").decode("ascii")
    except UnicodeDecodeError:
        return f"x'{data.hex()}'"
    return string_literal(text) if text.isprintable() else f"x'{data.hex()}'"


def now_datum(kind: FieldType, moment: datetime) -> Datum:
    """Return CURRENT_TIMESTAMP, truncated to the column's precision."""
    step = 10 ** (6 - kind.fsp)
    moment = moment.astimezone(UTC).replace(tzinfo=None)
    return encoder(kind)(moment.replace(microsecond=moment.microsecond // step * step))


def stored_default(kind: FieldType, text: object, bit: bytes | None) -> Datum:
    """Return the datum of a literal default from a TableInfo. Raises ValueError if the type cannot hold it."""
    assert isinstance(text, str)
    if kind.tp is Tp.BIT:
        return encoder(kind)(bit if bit is not None else text.encode())
    if kind.tp in INTEGERS:
        return encoder(kind)(int(text))
    if kind.tp in FLOATS:
        return encoder(kind)(float(text))
    if kind.tp in STRINGS and kind.is_binary:
        return encoder(kind)(bit if bit is not None else text.encode("utf-8", errors="surrogateescape"))
    return encoder(kind)(text)
