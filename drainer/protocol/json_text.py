"""JSON text in the exact form of Go's encoding/json, which readers of TiCDC's messages may compare byte by byte: single
texts and documents, and columns of decoded values (row/column_type.py).

A fragment is compiled once for a column: what a document contains for each value, without quotes. It converts an Arrow
array of decoded values to a `binary` array of the same length, with NULL for NULL. It raises DecodeError for a value
that a column of its type cannot hold; the caller finds the row that has the value (`fragments_of`).

Rows are built from constants and columns: what is the same in all messages of a table is built once.

rows = Rows(['{"a":', Slot(0), ',"b":', Slot(1, quoted=True), "}"])
rows.build([numbers, texts])      → an array of b'{"a":1,"b":"x"}', b'{"a":2,"b":null}'
"""

from __future__ import annotations

import json
import re
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from math import inf
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.tidb.json import number_text
from binlog.tidb.types import Tp

from drainer.changes.decode import Columns
from drainer.changes.json_texts import ESCAPED_REGEX, has_escaped, json_texts
from drainer.changes.texts import as_binary, binary_of, data_of, offsets_of, text_of
from drainer.changes.vector import Ints
from drainer.protocol.column_text import texts_of, utf8
from drainer.protocol.errors import converted
from drainer.protocol.table import RowChanges
from drainer.row.column_type import ColumnType, TypeClass, double_text, float_text

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
    return number_text(float(digits), digits.lstrip("-"), 1e-6, 1e21, "+d")


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
    return _double(column_type, lambda digits: number_text(float(digits), digits.lstrip("-"), 0, inf, "d"))


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


# The most bytes of rows that are joined at a time: an Arrow `binary` array is limited to 2 GiB.
JOINED_BYTES_MAX: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Slot:
    """The position `at` of a column in the list that `Rows.join` gets. `quoted`: quotes surround its values. `head` and
    `tail`: text in front of and after a value that is not NULL."""

    at: int
    quoted: bool = False
    head: str = ""
    tail: str = ""

    @property
    def around(self) -> tuple[bytes, bytes]:
        quote = '"' if self.quoted else ""
        return (self.head + quote).encode(), (quote + self.tail).encode()


Parts = Sequence[str | Slot]


class Rows:
    """The constant parts and slots of one kind of document, compiled. It must have at least one slot."""

    def __init__(self, parts: Parts) -> None:
        self._parts = [part if isinstance(part, Slot) else part.encode() for part in parts]
        self._constant = sum(len(part) for part in self._parts if isinstance(part, bytes))

    def build(self, columns: Sequence[Any]) -> Any:
        """Return one document for each row as `large_binary`. `columns`: `binary` arrays of the same length. NULL is
        written as null."""
        count = max(len(column) for column in columns)
        size = sum(column.nbytes for column in columns) + count * self._constant
        if size <= JOINED_BYTES_MAX or count < 2:
            return self.join(columns).cast(pa.large_binary())
        half = count // 2
        return pa.concat_arrays(
            [
                self.build([column[:half] if len(column) else column for column in columns]),
                self.build([column[half:] if len(column) else column for column in columns]),
            ]
        )

    def join(self, columns: Sequence[Any]) -> Any:
        """Return the same documents as one `binary` array."""
        pieces: list[Any] = []
        for part in self._parts:
            if isinstance(part, bytes):
                _add(pieces, part)
            else:
                _add_values(pieces, columns[part.at], *part.around)
        if len(pieces) == 1 and isinstance(pieces[0], bytes):  # all columns are NULL in all rows
            return constant(pieces[0], max(len(column) for column in columns))
        return pc.binary_join_element_wise(*pieces, b"")


def _add(pieces: list[Any], constant: bytes) -> None:
    if pieces and isinstance(pieces[-1], bytes):
        pieces[-1] += constant
    else:
        pieces.append(constant)


def _add_values(pieces: list[Any], column: Any, head: bytes, tail: bytes) -> None:
    if len(column) and column.null_count == len(column):
        _add(pieces, b"null")
    elif column.null_count:
        pieces.append(or_null(column, head, tail))
    else:
        _add(pieces, head)
        pieces.append(column)
        _add(pieces, tail)


def or_null(column: Any, head: bytes, tail: bytes) -> Any:
    """Return complete JSON values: `column` between head and tail, and `null` for NULL."""
    whole = pc.binary_join_element_wise(head, column, tail, b"") if head or tail else column
    return pc.fill_null(whole, b"null")


def joined(parts: Sequence[Parts]) -> list[str | Slot]:
    """Join the parts with commas."""
    found: list[str | Slot] = []
    for part in parts:
        if found:
            found.append(",")
        found.extend(part)
    return found


def numbers(values: Any) -> Any:
    """Convert a numpy array of integers to text."""
    return pa.array(values).cast(pa.string()).cast(pa.binary())


def constant(text: bytes, count: int) -> Any:
    """Return an array with the same text for every row."""
    return pa.repeat(pa.scalar(text, pa.binary()), count)


def fragments_of(
    changes: RowChanges, image: Columns, fragments: Sequence[Fragment], column_indexes: Sequence[int]
) -> list[Any]:
    """Convert the columns at `column_indexes`, in that order. Raises EncodeError naming table, column and commit_ts."""
    return [_column(changes, image, fragments, column_index) for column_index in column_indexes]


def old_fragments(
    changes: RowChanges, fragments: Sequence[Fragment], column_indexes: Sequence[int], new: Sequence[Any]
) -> list[Any]:
    """Convert the columns of the old image of updates, as `fragments_of` does. `new`: the result of `fragments_of` for
    the new image. A column whose old and new values are equal in all rows is copied from `new`."""
    old, image = changes.old, changes.new
    assert old is not None and image is not None
    return [
        text if _alike(old[column_index], image[column_index]) else _column(changes, old, fragments, column_index)
        for column_index, text in zip(column_indexes, new, strict=True)
    ]


def _alike(old: Any, new: Any) -> bool:
    """Return whether all values are identical. Floats are compared by bits: 0 and -0 are equal but have other texts."""
    if pa.types.is_floating(old.type):
        old, new = old.view(pa.int64()), new.view(pa.int64())
    alike: bool = old.equals(new)
    return alike


def _column(changes: RowChanges, image: Columns, fragments: Sequence[Fragment], column_index: int) -> Any:
    where = f"column {changes.table.column_name(column_index)}"
    return converted(where, changes.commit_ts, fragments[column_index], image[column_index])
