"""Converts flattened datums to canonical text (`flatten` is the reverse).

*Text* is what TiDB's MySQL text protocol shows: `str`, but `bytes` for binary strings and BIT, and None for NULL. Text
that is not UTF-8 keeps its bytes as lone surrogates (`surrogateescape`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import isfinite
from typing import TypeAlias, TypeVar

from binlog.errors import DecodeError

from .datum import Datum
from .decimal import Decimal
from .json import BinaryJSON, plain_notation, shortest_digits
from .time import date_text, datetime_text, duration_text
from .types import INTEGERS, STRINGS, FieldType, Tp

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
        raise _unfit(value, kind)
    return show(value, kind)


def _unfit(value: object, kind: FieldType) -> DecodeError:
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
    shown = repr(abs(value))
    return _sql_notation(value, shown, 1e15, 1e-15)


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
    return _sql_notation(value, shown, to_float32(1e15), to_float32(1e-15))


def _sql_notation(value: float, shown: str, big: float, small: float) -> str:
    sign = "-" if str(value)[0] == "-" else ""
    if value == 0:
        return f"{sign}0"
    digits, exponent = shortest_digits(shown)
    if small <= abs(value) < big:
        return sign + plain_notation(digits, exponent)
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{exponent - 1}"


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
        raise _unfit(value, kind)
    return value if kind.charset == "binary" else value.decode("utf-8", "surrogateescape")


def _typed(kind_of_value: type[V], show: Callable[[V, FieldType], str | bytes]) -> _Show:
    """Return a function that shows a value of one Python type, and refuses any other."""

    def shown(value: Datum, kind: FieldType) -> str | bytes:
        if not isinstance(value, kind_of_value):
            raise _unfit(value, kind)
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
