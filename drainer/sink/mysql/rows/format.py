"""Rows as the text of VALUES tuples: `(1,'a',NULL)`; and statements that write many rows, bounded in rows and bytes.
Pure.

A packed row ends with a comma, so that consecutive rows of a buffer are the body of a statement. A key is the tuple of
the key's columns alone (drainer/batch/work.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from drainer.batch.work import Key, Literals, Row, TableShape
from drainer.changes.net import joined
from drainer.changes.texts import as_string, data_of, text_of
from drainer.row.column_type import NUMBERS, ColumnType, TypeClass, is_utf8, shown_as
from drainer.row.fast_path import Cells
from drainer.sink.mysql.config import StatementLimits

# One literal: quoted text (with an introducer or x/b before it), or anything up to the next comma. Every repetition is
# possessive: one that may be given back keeps a record of each step, which is a hundred times the text.
_LITERAL = re.compile(
    rb"(?:[^,'\"()]*+'[^'\\]*+(?:(?:\\.|'')[^'\\]*+)*+'|[^,'()]*+(?:\([^()]*+\))?+[^,'()]*+)", re.DOTALL
)


def quote(name: str) -> bytes:
    """A name in back-quotes."""
    return b"`" + name.replace("`", "``").encode() + b"`"


def qualified(schema: str, table: str) -> bytes:
    return quote(schema) + b"." + quote(table)


def columns_of(shape: TableShape) -> bytes:
    return b"(" + b",".join(quote(name) for name in shape.columns) + b")"


def split_row(row: bytes) -> list[bytes]:
    """The literals of a VALUES tuple. `(1,'a''b',x'00',NULL)` → [1, 'a''b', x'00', NULL].

    Raises ValueError when the text is not one tuple."""
    if row[:1] != b"(" or row[-1:] != b")":
        raise ValueError(f"not a VALUES tuple: {row[:80]!r}")
    literals: list[bytes] = []
    position, end = 1, len(row) - 1
    while True:
        match = _LITERAL.match(row, position, end)
        if match is None or (match.end() < end and row[match.end() : match.end() + 1] != b","):
            raise ValueError(f"not a VALUES tuple at byte {position}: {row[:80]!r}")
        literals.append(match.group())
        if match.end() >= end:
            return literals
        position = match.end() + 1


def key_of(row: bytes, key: Sequence[int]) -> bytes:
    """The key tuple of a row."""
    literals = split_row(row)
    return b"(" + b",".join(literals[at] for at in key) + b")"


@dataclass(frozen=True, slots=True)
class Statement:
    """`sql` writes or deletes `tuples`; for an INSERT or REPLACE these are its rows in order."""

    sql: bytes
    tuples: Sequence[bytes]


def bounded(
    head: bytes, tail: bytes, tuples: Sequence[bytes], limits: StatementLimits, between: bytes = b","
) -> Iterator[Statement]:
    """Divide tuples into statements. A tuple that is larger than the limit of bytes gets a statement of its own."""
    rows_max = limits.statement_rows_max
    room = limits.statement_bytes_max - len(head) - len(tail)
    for start in range(0, len(tuples), rows_max):
        part = tuples[start : start + rows_max]
        body = joined(part, between)
        if len(body) <= room or len(part) == 1:
            yield Statement(head + body + tail, part)
            continue
        yield from _by_bytes(head, tail, part, room, between)


def _by_bytes(head: bytes, tail: bytes, part: Sequence[bytes], room: int, between: bytes) -> Iterator[Statement]:
    first = 0
    size = 0
    for at, row in enumerate(part):
        if at > first and size + len(row) > room:
            yield Statement(head + joined(part[first:at], between) + tail, part[first:at])
            first, size = at, 0
        size += len(row) + len(between)
    yield Statement(head + joined(part[first:], between) + tail, part[first:])


def _written(way: bytes, shape: TableShape, rows: Sequence[bytes], limits: StatementLimits) -> Iterator[Statement]:
    head = way + b" INTO " + qualified(shape.schema, shape.table) + columns_of(shape) + b" VALUES "
    return bounded(head, b"", rows, limits)


replaces = partial(_written, b"REPLACE")  # of many rows
inserts = partial(_written, b"INSERT")


def deletes(
    shape: TableShape, keys: Sequence[bytes], limits: StatementLimits, *, by: Sequence[int] = ()
) -> Iterator[Statement]:
    """DELETE … WHERE (key) IN (…). With the column's own comparison: all rows that compare equal are deleted (rule 10:
    equal keys). `by`: indexes of the key's columns, if it is not the fold key."""
    names = b",".join(quote(shape.columns[at]) for at in by or shape.key)
    head = b"DELETE FROM " + qualified(shape.schema, shape.table) + b" WHERE (" + names + b") IN ("
    return bounded(head, b")", keys, limits)


# Values as SQL, in a session without NO_BACKSLASH_ESCAPES. Pure.

# The text before and after the text of a value (row/column_type.py); empty for numbers, decimals and floats.
QUOTES: Final = {
    TypeClass.TEXT: (b"'", b"'"),
    TypeClass.JSON: (b"'", b"'"),
    TypeClass.BYTES: (b"X'", b"'"),
    TypeClass.DATE: (b"'", b"'"),
    TypeClass.DATETIME: (b"'", b"'"),
    TypeClass.TIME: (b"'", b"'"),
}
ESCAPED: Final = frozenset({TypeClass.TEXT, TypeClass.JSON})


def escape(text: bytes) -> bytes:
    """The content of a quoted string. Only these two characters must be escaped: a query has a length, so NUL and
    control characters need no escape."""
    return text.replace(b"\\", b"\\\\").replace(b"'", b"\\'")


def string_literal(text: bytes) -> bytes:
    """Quoted and escaped; bytes that are not UTF-8 as a hexadecimal literal. It is not written like that of a binary
    column (X), because LOAD DATA can load only those."""
    return b"'%b'" % escape(text) if is_utf8(text) else b"x'%b'" % text.hex().encode()


def placeholder(type_class: TypeClass) -> bytes:
    """The placeholder for the text of a value that needs no escaping, or for its number."""
    before, after = QUOTES.get(type_class, (b"", b""))
    return before + (b"%d" if type_class in NUMBERS else b"%b") + after


def literal_writer(column_type: ColumnType) -> Callable[[Any], bytes]:
    """Returns a function from a decoded value that is not NULL to its literal."""
    if column_type.type_class is TypeClass.TEXT:
        return string_literal
    show, shape = shown_as(column_type), placeholder(column_type.type_class)
    if column_type.type_class is TypeClass.JSON:
        return lambda value: string_literal(show(value))
    return lambda value: shape % (show(value),)


def column_of(column_type: ColumnType, values: Sequence[Any]) -> tuple[bytes, Sequence[object]]:
    """Return (placeholder, values) of one column. All its text is searched for what needs escaping in one step."""
    type_class = column_type.type_class
    if None in values:
        write = literal_writer(column_type)
        return b"%b", [b"NULL" if value is None else write(value) for value in values]
    if type_class is TypeClass.INT:
        return b"%d", values
    show = shown_as(column_type)
    texts = values if type_class is TypeClass.TEXT else [show(value) for value in values]
    if type_class not in ESCAPED:
        return placeholder(type_class), texts
    whole = b"\n".join(texts)
    if not (whole.isascii() or is_utf8(whole)):
        return b"%b", [string_literal(text) for text in texts]
    return b"'%b'", [escape(text) for text in texts] if b"'" in whole or b"\\" in whole else texts


_BACKSLASH, _QUOTE, _ASCII = 92, 39, 128


@dataclass(frozen=True, slots=True)
class SQLText:
    """See row.codec.Format."""

    def rows(self, column_types: Sequence[ColumnType], columns: Sequence[Sequence[Any]]) -> list[Row]:
        parts = [column_of(column_type, values) for column_type, values in zip(column_types, columns, strict=True)]
        shape = b"(" + b",".join([part for part, _ in parts]) + b")"
        return [shape % row for row in zip(*[values for _, values in parts], strict=True)]

    def packed_rows(self, column_types: Sequence[ColumnType], columns: Sequence[Any]) -> Any:
        """Return a tuple for each row."""
        parts: list[Any] = []
        constant = b"("
        for number, (column_type, column) in enumerate(zip(column_types, columns, strict=True)):
            before, text, after = _quoted(column_type.type_class, text_of(column_type, column))
            parts += [pa.scalar(constant + (b"," if number else b"") + before, pa.binary()), text]
            constant = after
        ends = pa.scalar(constant + b"),", pa.binary()), pa.scalar(b"", pa.binary())
        return pc.binary_join_element_wise(*parts, *ends)

    def literals(self, column_type: ColumnType, values: Sequence[Any]) -> list[object]:
        shape, texts = column_of(column_type, values)
        return [shape % (text,) for text in texts]

    def key_writer(self, column_types: Sequence[ColumnType]) -> Callable[[Cells], Key]:
        writers = [literal_writer(column_type) for column_type in column_types]
        if len(writers) == 1:
            (write,) = writers
            return lambda cells: b"(%b)" % write(cells[0])
        return lambda cells: b"(" + b",".join([write(c) for write, c in zip(writers, cells, strict=True)]) + b")"

    def pack(self, row: Row) -> bytes:
        return sql_of(row) + b","

    def unpack(self, packed: bytes) -> bytes:
        return packed[:-1]

    def split(self, packed: bytes) -> Literals:
        return tuple(split_row(packed[:-1]))


SQL_TEXT: Final = SQLText()


def sql_of(value: object) -> bytes:
    """Return a row, a key or a value as the SQL that it must be in this destination."""
    if not isinstance(value, bytes):
        raise TypeError(f"rows for MySQL must be SQL, not {type(value).__name__}")
    return value


def _quoted(type_class: TypeClass, text: Any) -> tuple[bytes, Any, bytes]:
    """(text before each value, texts without NULLs, text after each value)."""
    before, after = QUOTES.get(type_class, (b"", b""))
    if type_class in ESCAPED:
        escaped = _escaped(text)
        if escaped is None:
            shown = [b"NULL" if value is None else string_literal(value) for value in text.to_pylist()]
            return b"", pa.array(shown, pa.binary()), b""
        text = escaped
    if not text.null_count:
        return before, text, after
    if before:
        text = pc.binary_join_element_wise(
            pa.scalar(before, pa.binary()), text, pa.scalar(after, pa.binary()), pa.scalar(b"", pa.binary())
        )
    return b"", pc.fill_null(text, pa.scalar(b"NULL", pa.binary())), b""


def _escaped(text: Any) -> Any | None:
    """The content of quoted strings (`escape`); None if not all of them are UTF-8."""
    data = data_of(text)
    if data.size and data.max() >= _ASCII:
        try:
            as_string(text).validate(full=True)
        except pa.ArrowInvalid:
            return None
    if (data == _BACKSLASH).any():
        text = pc.replace_substring(text, "\\", "\\\\")
    if (data == _QUOTE).any():
        text = pc.replace_substring(text, "'", "\\'")
    return text
