"""JSON text in the exact form of Go's encoding/json, which readers of TiCDC's messages may compare byte by byte: single
texts and documents, and columns of decoded values (row/column_type.py).

A fragment is compiled once for a column: what a document contains for each value, without quotes. It converts an Arrow
array of decoded values to a `binary` array of the same length, with NULL for NULL. It raises DecodeError for a value
that a column of its type cannot hold; the caller finds the row that has the value (json_rows.py).
"""

from __future__ import annotations

import json
import re
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.tidb.json import plain_notation, shortest_digits
from binlog.tidb.types import Tp

from drainer.changes.json_texts import ESCAPED_REGEX, has_escaped, json_texts
from drainer.changes.texts import as_binary, binary_of, data_of, offsets_of, text_of
from drainer.changes.vector import Ints
from drainer.protocol.column_text import texts_of, utf8
from drainer.row.column_type import ColumnType, TypeClass
from drainer.row.text import double_text, float_text

Fragment = Callable[[Any], Any]

_BETWEEN: Final = "\ufdd0"
_SPECIAL: Final = re.compile("[<>&\u2028\u2029]")
_ESCAPES: Final = [(char, f"\\u{ord(char):04x}") for char in "<>&\u2028\u2029"]


def json_string(text: str) -> str:
    """Return the text as a JSON string with quotes. `<`, `>`, `&`, U+2028 and U+2029 are escaped; other characters
    beyond ASCII are not.

    A text with lone surrogates is not refused here. Encoding the result then raises UnicodeEncodeError.
    """
    quoted = json.dumps(text, ensure_ascii=False)
    return _escaped_characters(quoted) if _SPECIAL.search(quoted) else quoted


def json_strings(texts: Sequence[str]) -> list[str]:
    """Return what `json_string` returns for each text, without the quotes. For speed, the texts are joined and escaped
    in one call. The separator is a code point that is not a character."""
    joined = _BETWEEN.join(texts)
    if joined.count(_BETWEEN) >= max(len(texts), 1):  # a text contains the separator
        return [json_string(text)[1:-1] for text in texts]
    return json_string(joined)[1:-1].split(_BETWEEN) if texts else []


def json_document(document: object) -> str:
    """Return a document of dicts, lists, strings, integers, booleans and None as JSON. Members keep their order, and no
    spaces are added."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return _escaped_characters(text) if _SPECIAL.search(text) else text


def _escaped_characters(text: str) -> str:
    for char, escape in _ESCAPES:
        text = text.replace(char, escape)
    return text


def json_double(value: float) -> str:
    """Return the shortest digits that identify a double: without an exponent from 1e-6 to below 1e21, else with one."""
    return json_number(repr(value))


def json_number(digits: str) -> str:
    """Convert the shortest digits of a number from Python's or Arrow's notation to Go's."""
    size = abs(float(digits))
    if size == 0 or 1e-6 <= size < 1e21:
        return _plain(digits)
    digits, sign = digits.lstrip("-"), "-" if digits[0] == "-" else ""
    digits, exponent = shortest_digits(digits)
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{exponent - 1:+d}"


def _plain(shown: str) -> str:
    """Return the number without an exponent."""
    sign, size = ("-", shown[1:]) if shown[0] == "-" else ("", shown)
    digits, exponent = shortest_digits(size)
    return f"{sign}0" if digits == "0" else sign + plain_notation(digits, exponent)


def utf8_text(array: Any) -> Any:
    """Convert the values of a TEXT column. Raises DecodeError if the bytes are not UTF-8."""
    return escaped(utf8(array))


def escaped(strings: Any) -> Any:
    """Escape UTF-8 strings for JSON. Most columns have nothing to escape: one scan of all their bytes shows this."""
    if not has_escaped(data_of(strings)):
        return as_binary(strings)
    marked = pc.fill_null(pc.match_substring_regex(strings, ESCAPED_REGEX), False)
    quoted = json_strings(strings.filter(marked).to_pylist())
    return as_binary(pc.replace_with_mask(strings, marked, pa.array(quoted, pa.string())))


def plain_double(column_type: ColumnType) -> Fragment:
    """Return the fragment of a FLOAT or DOUBLE: the shortest digits, never with an exponent (Go's format 'f')."""
    return _double(column_type, _plain)


def short_double(column_type: ColumnType) -> Fragment:
    """Return the fragment of a FLOAT or DOUBLE in the format of Go's encoding/json: the shortest digits, with an
    exponent below 1e-6 and from 1e21."""
    return _double(column_type, json_number)


def _double(column_type: ColumnType, shape: Callable[[str], str]) -> Fragment:
    single = column_type.kind.tp is Tp.FLOAT
    checked = single_digits if single else double_text

    def run(array: Any) -> Any:
        """Convert with Arrow, which also writes the shortest digits. `shape` converts those with an exponent."""
        shown = (array.cast(pa.float32(), safe=False) if single else array).cast(pa.string())
        data = data_of(shown).tobytes()
        if b"n" in data:  # inf or nan
            for value in array.drop_null().to_pylist():
                checked(value)
        if b"e" not in data:
            return as_binary(shown)
        powers = pc.fill_null(pc.match_substring(shown, "e"), False)
        shaped = [shape(digits) for digits in shown.filter(powers).to_pylist()]
        return as_binary(pc.replace_with_mask(shown, powers, pa.array(shaped, pa.string())))

    return run


def single_digits(value: float) -> str:
    """Return the shortest digits that identify a 32-bit float, as Go's strconv does. Servers read these digits of the
    largest 32-bit float as a number out of range, so SQL statements use other digits (row.text.float_text)."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    if not np.isfinite(single):
        float_text(value)  # raises
    return str(single)


def text(column_type: ColumnType, zone: tzinfo) -> Fragment:
    """Return the fragment of any other type: dates, times, decimals and integers as text, ENUMs, SETs and BITs as
    numbers, a TIMESTAMP in `zone`, JSON as its text."""
    if column_type.type_class is TypeClass.JSON:
        return lambda array: json_texts(array, json_strings)
    if column_type.kind.tp is Tp.TIMESTAMP:
        return lambda array: texts_of(column_type, array, zone)
    return lambda array: text_of(column_type, array)


# Columns with longer values on average are converted value by value, because the vectorised way needs an index for each
# byte.
_SHORT_BYTES_MAX: Final = 256
_LATIN1_BYTES: Final = np.array([len(json_string(chr(code)).encode()) - 2 for code in range(256)], np.uint8)


def base64(column: Any) -> Any:
    """Convert a `binary` array to base64 with the standard alphabet and padding. All values are encoded in one call:
    zero bytes after each value fill its last group of three, and the padding characters then replace their text."""
    data = data_of(column)
    if len(data) > _SHORT_BYTES_MAX * len(column):
        values = column.to_pylist()
        return pa.array([None if v is None else b2a_base64(v, newline=False) for v in values], pa.binary())
    lengths: Ints = np.diff(offsets_of(column)).astype(np.int64)
    rest = lengths % 3
    ends = np.cumsum((lengths + 2) // 3)  # in groups of three bytes, which are four characters
    one_more, two_more = ends[rest != 0], ends[rest == 1]
    taken = np.ones(3 * int(ends[-1]) if len(ends) else 0, np.bool_)
    taken[3 * one_more - 1] = False
    taken[3 * two_more - 2] = False
    padded = np.zeros(len(taken), np.uint8)
    padded[taken] = data
    text = bytearray(b2a_base64(padded.data, newline=False))
    chars = np.frombuffer(text, np.uint8)
    chars[4 * one_more - 1] = ord("=")
    chars[4 * two_more - 2] = ord("=")
    return binary_of(text, np.concatenate([[0], 4 * ends]), column)


def latin1_text(column: Any) -> Any:
    """Convert a `binary` array: each byte becomes the character of ISO 8859-1 with its number, escaped for JSON."""
    data = data_of(column)
    text = json_string(data.tobytes().decode("iso-8859-1"))[1:-1].encode()
    offsets = offsets_of(column).astype(np.int64)
    offsets -= offsets[0]
    sizes = np.add.reduceat(np.append(np.take(_LATIN1_BYTES, data), np.uint8(0)), offsets[:-1], dtype=np.int64)
    sizes[np.diff(offsets) == 0] = 0
    return binary_of(text, np.concatenate([[0], np.cumsum(sizes)]), column)
