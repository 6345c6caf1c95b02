"""Columns of carriers (row/carrier.py) as columns of JSON: what stands in a document for each value, without quotes.

A fragment is compiled once for a column. It takes an Arrow array of carriers and gives a `binary` array of the same
length, NULL for NULL. It raises DecodeError for what no column of that type holds; which row it was is found by whoever
calls it (json_rows.py).
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
from drainer.row.family import Family
from drainer.row.form import Form
from drainer.row.scalar import float_text

Fragment = Callable[[Any], Any]

# What JSON text escapes beside the control characters, of bytes below 128; U+2028 and U+2029 begin with the other.
_ESCAPED: Final = (b'"', b"\\", b"<", b">", b"&")
_SEPARATORS: Final = b"\xe2\x80"
_ESCAPED_REGEX: Final = '["\\\\\x00-\x1f<>&\u2028\u2029]'


def each(text: Callable[[Any], bytes]) -> Fragment:
    """`text` is called for each value."""

    def run(array: Any) -> Any:
        return pa.array([None if value is None else text(value) for value in array.to_pylist()], pa.binary())

    return run


def distinct(text: Callable[[Any], bytes]) -> Fragment:
    """One call for each different value of a batch."""

    def run(array: Any) -> Any:
        encoded = array.dictionary_encode()
        return each(text)(encoded.dictionary).take(encoded.indices)

    return run


def utf8_text(array: Any) -> Any:
    """Of a TEXT column, whose bytes must be UTF-8."""
    try:
        strings = array.cast(pa.string())
    except pa.ArrowInvalid:
        raise DecodeError("text", offset=0, detail="not UTF-8") from None
    return escaped(strings)


def escaped(strings: Any) -> Any:
    """Of strings that are UTF-8. Most have nothing to escape, which one look at all their bytes tells."""
    if not has_escaped(data_of(strings)):
        return as_binary(strings)
    marked = pc.fill_null(pc.match_substring_regex(strings, _ESCAPED_REGEX), False)
    quoted = json_strings(strings.filter(marked).to_pylist())
    return as_binary(pc.replace_with_mask(strings, marked, pa.array(quoted, pa.string())))


def has_escaped(octets: Octets) -> bool:
    """Whether JSON text escapes something in these bytes. Perhaps: U+2010 to U+203F count too."""
    data = octets.tobytes()
    if not data:
        return False
    if octets.min() < 32 or any(char in data for char in _ESCAPED):
        return True
    return not data.isascii() and _SEPARATORS in data


def plain_double(form: Form) -> Fragment:
    """Of a FLOAT or DOUBLE: the shortest digits, never with an exponent (Go's format 'f')."""
    return _double(form, lambda shown, _: _plain(shown))


def short_double(form: Form) -> Fragment:
    """The same with an exponent below 1e-6 and from 1e21, as Go's encoding/json writes it."""
    return _double(form, _short)


def _double(form: Form, shape: Callable[[str, float], str]) -> Fragment:
    single = form.kind.tp is Tp.FLOAT
    digits = single_digits if single else lambda value: repr(_finite(value))

    def slowly(value: float) -> bytes:
        return shape(digits(value), abs(value)).encode()

    def run(array: Any) -> Any:
        """Arrow writes the shortest digits too; only what it writes with an exponent, or as no number, differs."""
        shown = (array.cast(pa.float32(), safe=False) if single else array).cast(pa.string())
        data = data_of(shown).tobytes()
        if b"e" in data or b"n" in data:
            return each(slowly)(array)
        return as_binary(shown)

    return run


def single_digits(value: float) -> str:
    """The shortest digits that give the same single, as Go's strconv finds them. Servers read those of the largest
    single as a number beyond it, so statements have others (row.scalar.float_text)."""
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


def text(form: Form, zone: tzinfo) -> Fragment:
    """Dates, times, decimals and whole numbers, ENUMs, SETs and BITs as numbers; a TIMESTAMP in `zone`; JSON's text."""
    if form.family is Family.JSON:
        return lambda array: json_texts(array, json_strings)
    if form.kind.tp is Tp.TIMESTAMP and zone is not UTC:
        shift = text_of(form, zone)
        return distinct(lambda value: shift(value).encode())
    return lambda array: column_text(form, array)
