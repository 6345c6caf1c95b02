"""Statements for rows of files, as upstream's loader makes them (`D-LD-10`, `D-LD-11`). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from binlog.tidb.types import Tp

from drainer.batch.work import Match
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change
from drainer.protocol.pb_file.decoder import FileColumn, FileEvent, PlainValue
from drainer.sink.mysql.rows.format import string_literal
from drainer.sink.mysql.rows.full_row_match import condition
from drainer.sink.mysql.rows.statements import qualified, quote

ROWS_MAX: Final = 500
BYTES_MAX: Final = 1 << 20
_DECIMAL: Final = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class TableThere:
    """A table as the destination has it. `keys`: the columns of each unique key, the primary one first; `generated`:
    columns that are not written; `types`: names of the columns' types, `varbinary`. All is in lower case."""

    keys: tuple[tuple[str, ...], ...]
    generated: frozenset[str] = frozenset()
    types: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowStatement:
    """`rows`: how many rows it must find or write, -1: any number. `columns` and `tuples`: what it writes, for what the
    server's warnings are about."""

    sql: bytes
    rows: int
    schema: str
    table: str
    columns: tuple[str, ...] = ()
    tuples: tuple[tuple[bytes, ...], ...] = ()


def literal(column: FileColumn, value: PlainValue) -> bytes:
    """A value in a session without NO_BACKSLASH_ESCAPES. MessageError for what is no value of the column's type."""
    if value is None:
        return b"NULL"
    if isinstance(value, float):
        return repr(value).encode()
    if isinstance(value, int):
        return b"%d" % value
    data = value.encode() if isinstance(value, str) else value
    if column.type_code == Tp.NEWDECIMAL:
        if not _DECIMAL.fullmatch(data):
            raise MessageError(f"column {column.name} holds {data!r:.80}, which is no DECIMAL")
        return data
    if "blob" in column.type_name or "binary" in column.type_name:
        return b"X'%b'" % data.hex().encode()
    return string_literal(data)


def _match(column: FileColumn) -> Match:
    if column.type_code == Tp.FLOAT:
        return Match.EXACT_FLOAT
    if column.type_code == Tp.JSON:
        return Match.JSON
    is_text = column.type_name.endswith(("char", "text")) or column.type_name == "var_string"
    return Match.BINARY_TEXT if is_text else Match.PLAIN


def where(event: FileEvent, there: TableThere, flavour: str) -> bytes:
    """The first unique key whose columns the old image has and that are not NULL, else all columns, exactly."""
    columns = {column.name.lower(): column for column in event.columns}
    for key in there.keys:
        parts = [columns.get(name) for name in key]
        found = [part for part in parts if part is not None and part.value is not None]
        if len(found) == len(key):
            conditions = [
                condition(quote(part.name), literal(part, part.value), _plain(_match(part)), flavour) for part in found
            ]
            return b" WHERE " + b" AND ".join(conditions) + b" LIMIT 1"
    conditions = [
        condition(quote(column.name), literal(column, column.value), _match(column), flavour)
        for column in event.columns
        if column.name.lower() not in there.generated
    ]
    return b" WHERE " + b" AND ".join(conditions) + b" LIMIT 1"


def _plain(match: Match) -> Match:
    """In a unique key strings compare as the key does."""
    return match if match is Match.EXACT_FLOAT else Match.PLAIN


def statements(
    events: Sequence[FileEvent], tables: Mapping[tuple[str, str], TableThere], flavour: str, *, safe: bool
) -> Iterator[RowStatement]:
    """In the order of the events; inserts into one table that follow one another share statements. `safe`: rows may be
    there, or missing. Raises MessageError."""
    at = 0
    while at < len(events):
        event = events[at]
        end = at + 1
        if event.change is Change.INSERT:
            while end < len(events) and _shares(event, events[end]):
                end += 1
            yield from _inserts(events[at:end], tables[event.schema, event.table], replace=safe)
        else:
            yield from _change(event, tables[event.schema, event.table], flavour, safe=safe)
        at = end


def _shares(first: FileEvent, other: FileEvent) -> bool:
    return (
        other.change is Change.INSERT
        and (other.schema, other.table) == (first.schema, first.table)
        and [column.name for column in other.columns] == [column.name for column in first.columns]
    )


def _change(event: FileEvent, there: TableThere, flavour: str, *, safe: bool) -> Iterator[RowStatement]:
    name = qualified(event.schema, event.table)
    table = (event.schema, event.table)
    if event.change is Change.DELETE or safe:
        yield RowStatement(b"DELETE FROM " + name + where(event, there, flavour), -1 if safe else 1, *table)
        if event.change is Change.UPDATE:
            yield from _inserts([event], there, replace=True)
        return
    written = _written(event, there)
    values = tuple(literal(column, column.changed) for column in written)
    pairs = b",".join(quote(column.name) + b"=" + value for column, value in zip(written, values, strict=True))
    sql = b"UPDATE " + name + b" SET " + pairs + where(event, there, flavour)
    yield RowStatement(sql, 1, *table, tuple(column.name for column in written), (values,))


def _written(event: FileEvent, there: TableThere) -> list[FileColumn]:
    return [column for column in event.columns if column.name.lower() not in there.generated]


def _inserts(events: Sequence[FileEvent], there: TableThere, *, replace: bool) -> Iterator[RowStatement]:
    first = events[0]
    names = tuple(column.name for column in _written(first, there))
    head = b"REPLACE INTO " if replace else b"INSERT INTO "
    head += qualified(first.schema, first.table) + b"(" + b",".join(map(quote, names)) + b") VALUES "
    tuples: list[tuple[bytes, ...]] = []
    texts: list[bytes] = []
    size = 0

    def made() -> RowStatement:
        rows = -1 if replace else len(tuples)
        return RowStatement(head + b",".join(texts), rows, first.schema, first.table, names, tuple(tuples))

    for event in events:
        is_update = event.change is Change.UPDATE
        values = tuple(literal(c, c.changed if is_update else c.value) for c in _written(event, there))
        text = b"(" + b",".join(values) + b")"
        if texts and (len(texts) >= ROWS_MAX or size + len(text) > BYTES_MAX):
            yield made()
            tuples, texts, size = [], [], 0
        tuples.append(values)
        texts.append(text)
        size += len(text) + 1
    yield made()
