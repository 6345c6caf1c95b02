"""Columns of decoded values (row/decoded_value.py) as JSON text: what a document contains for each value, without
quotes.

A fragment is compiled once for a column. It converts an Arrow array of decoded values to a `binary` array of the same
length, with NULL for NULL. It raises DecodeError for a value that a column of its type cannot hold; the caller finds
the row that has the value (json_rows.py).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, tzinfo
from math import isfinite
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError
from binlog.tidb.json import plain_notation, shortest_digits
from binlog.tidb.types import Tp

from drainer.changes.json_texts import json_texts
from drainer.changes.texts import Octets, as_binary, data_of
from drainer.changes.texts import text_of as column_text
from drainer.protocol.column_text import text_of
from drainer.protocol.json_text import json_strings
from drainer.row.column_type import ColumnType
from drainer.row.scalar import float_text
from drainer.row.type_class import TypeClass

Fragment = Callable[[Any], Any]

# ASCII bytes, besides control characters, that JSON text escapes. The UTF-8 of U+2028 and U+2029 begins with
# _SEPARATORS.
_ESCAPED: Final = (b'"', b"\\", b"<", b">", b"&")
_SEPARATORS: Final = b"\xe2\x80"
_ESCAPED_REGEX: Final = '["\\\\\x00-\x1f<>&\u2028\u2029]'


def each(text: Callable[[Any], bytes]) -> Fragment:
    """Return a fragment that calls `text` for each value."""

    def run(array: Any) -> Any:
        return pa.array([None if value is None else text(value) for value in array.to_pylist()], pa.binary())

    return run


def distinct(text: Callable[[Any], bytes]) -> Fragment:
    """Return a fragment that calls `text` once for each distinct value of a batch."""

    def run(array: Any) -> Any:
        encoded = array.dictionary_encode()
        return each(text)(encoded.dictionary).take(encoded.indices)

    return run


def utf8_text(array: Any) -> Any:
    """Convert the values of a TEXT column. Raises DecodeError if the bytes are not UTF-8."""
    try:
        strings = array.cast(pa.string())
    except pa.ArrowInvalid:
        raise DecodeError("text", offset=0, detail="not UTF-8") from None
    return escaped(strings)


def escaped(strings: Any) -> Any:
    """Escape UTF-8 strings for JSON. Most columns have nothing to escape: one scan of all their bytes shows this."""
    if not has_escaped(data_of(strings)):
        return as_binary(strings)
    marked = pc.fill_null(pc.match_substring_regex(strings, _ESCAPED_REGEX), False)
    quoted = json_strings(strings.filter(marked).to_pylist())
    return as_binary(pc.replace_with_mask(strings, marked, pa.array(quoted, pa.string())))


def has_escaped(octets: Octets) -> bool:
    """Return whether JSON text may escape something in these bytes. May be True without need: for U+2010 to U+203F."""
    data = octets.tobytes()
    if not data:
        return False
    if octets.min() < 32 or any(char in data for char in _ESCAPED):
        return True
    return not data.isascii() and _SEPARATORS in data


def plain_double(column_type: ColumnType) -> Fragment:
    """Return the fragment of a FLOAT or DOUBLE: the shortest digits, never with an exponent (Go's format 'f')."""
    return _double(column_type, lambda shown, _: _plain(shown))


def short_double(column_type: ColumnType) -> Fragment:
    """Return the fragment of a FLOAT or DOUBLE in the format of Go's encoding/json: the shortest digits, with an
    exponent below 1e-6 and from 1e21."""
    return _double(column_type, _short)


def _double(column_type: ColumnType, shape: Callable[[str, float], str]) -> Fragment:
    single = column_type.kind.tp is Tp.FLOAT
    digits = single_digits if single else lambda value: repr(_finite(value))

    def slowly(value: float) -> bytes:
        return shape(digits(value), abs(value)).encode()

    def run(array: Any) -> Any:
        """Convert with Arrow, which also writes the shortest digits. Convert in Python if Arrow writes an exponent or a
        value is not finite."""
        shown = (array.cast(pa.float32(), safe=False) if single else array).cast(pa.string())
        data = data_of(shown).tobytes()
        if b"e" in data or b"n" in data:
            return each(slowly)(array)
        return as_binary(shown)

    return run


def single_digits(value: float) -> str:
    """Return the shortest digits that identify a 32-bit float, as Go's strconv does. Servers read these digits of the
    largest 32-bit float as a number out of range, so SQL statements use other digits (row.scalar.float_text)."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    if not np.isfinite(single):
        float_text(value)  # raises
    return str(single)


def _finite(value: float) -> float:
    if not isfinite(value):
        raise DecodeError("double", offset=0, detail=f"{value} is no column value")
    return value


def _plain(shown: str) -> str:
    sign, size = ("-", shown[1:]) if shown[0] == "-" else ("", shown)
    digits, exponent = shortest_digits(size)
    return f"{sign}0" if digits == "0" else sign + plain_notation(digits, exponent)


def _short(shown: str, size: float) -> str:
    if size == 0 or 1e-6 <= size < 1e21:
        return _plain(shown)
    digits, exponent = shortest_digits(shown.lstrip("-"))
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{'-' if shown[0] == '-' else ''}{digits[0]}{tail}e{exponent - 1:+d}"


def text(column_type: ColumnType, zone: tzinfo) -> Fragment:
    """Return the fragment of any other type: dates, times, decimals and integers as text, ENUMs, SETs and BITs as
    numbers, a TIMESTAMP in `zone`, JSON as its text."""
    if column_type.type_class is TypeClass.JSON:
        return lambda array: json_texts(array, json_strings)
    if column_type.kind.tp is Tp.TIMESTAMP and zone is not UTC:
        shift = text_of(column_type, zone)
        return distinct(lambda value: shift(value).encode())
    return lambda array: column_text(column_type, array)
