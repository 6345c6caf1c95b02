"""Statements that write many rows, bounded in rows and bytes. Pure.

A row is the text of a VALUES tuple, a key that of the key's columns alone (drainer/batch/work.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from drainer.batch.work import TableShape
from drainer.changes.net import joined
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
