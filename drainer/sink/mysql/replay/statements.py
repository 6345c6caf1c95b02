"""Statements for rows of files, as upstream's loader makes them (`D-LD-10`, `D-LD-11`). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, starmap
from typing import Final

from binlog.tidb.types import Tp

from drainer.batch.work import Match
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, ColumnValue, Image, RowEvent
from drainer.sink.mysql.config import StatementLimits
from drainer.sink.mysql.rows.format import bounded, qualified, quote, string_literal
from drainer.sink.mysql.rows.ordered import condition

LIMITS: Final = StatementLimits()
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
    """`rows`: how many rows it must find or write, -1: any number. `columns` and `tuples`: what it writes, as tuples of
    VALUES, for what the server's warnings are about."""

    sql: bytes
    rows: int
    schema: str
    table: str
    columns: tuple[str, ...] = ()
    tuples: Sequence[bytes] = ()


def literal(name: str, cell: ColumnValue) -> bytes:
    """A value in a session without NO_BACKSLASH_ESCAPES. `name`: the column's, for the error. MessageError for what is
    no value of the column's type."""
    value = cell.value
    if value is None:
        return b"NULL"
    if isinstance(value, float):
        return repr(value).encode()
    if isinstance(value, int):
        return b"%d" % value
    data = value.encode() if isinstance(value, str) else value
    if cell.type_code == Tp.NEWDECIMAL:
        if not _DECIMAL.fullmatch(data):
            raise MessageError(f"column {name} holds {data!r:.80}, which is no DECIMAL")
        return data
    if "blob" in cell.type_name or "binary" in cell.type_name:
        return b"X'%b'" % data.hex().encode()
    return string_literal(data)


def _match(cell: ColumnValue) -> Match:
    if cell.type_code == Tp.FLOAT:
        return Match.EXACT_FLOAT
    if cell.type_code == Tp.JSON:
        return Match.JSON
    return Match.BINARY_TEXT if cell.type_name.endswith(("char", "text")) else Match.PLAIN


def where(old: Image, there: TableThere, flavour: str) -> bytes:
    """The first unique key whose columns the old image has and that are not NULL, else all columns, exactly."""
    cells = {name.lower(): (name, cell) for name, cell in old.items()}
    for key in there.keys:
        parts = [cells[name] for name in key if name in cells and cells[name][1].value is not None]
        if len(parts) == len(key):
            conditions = [condition(quote(n), literal(n, cell), _plain(_match(cell)), flavour) for n, cell in parts]
            return b" WHERE " + b" AND ".join(conditions) + b" LIMIT 1"
    written = _written(old, there).items()
    conditions = [condition(quote(name), literal(name, cell), _match(cell), flavour) for name, cell in written]
    return b" WHERE " + b" AND ".join(conditions) + b" LIMIT 1"


def _plain(match: Match) -> Match:
    """In a unique key strings compare as the key does."""
    return match if match is Match.EXACT_FLOAT else Match.PLAIN


def statements(
    events: Sequence[RowEvent], tables: Mapping[tuple[str, str], TableThere], flavour: str, *, safe: bool
) -> Iterator[RowStatement]:
    """Yield statements in the order of the events. The values have the types of the destination's columns. Consecutive
    inserts into one table share statements. `safe`: rows may be there already, or be missing. Raises MessageError."""
    for (is_insert, schema, table, _), run in groupby(events, key=_shared):
        there = tables[schema, table]
        if is_insert:
            yield from _inserts(list(run), there, replace=safe)
        else:
            yield from chain.from_iterable(_change(event, there, flavour, safe=safe) for event in run)


def _shared(event: RowEvent) -> tuple[bool, str, str, list[str]]:
    """What inserts that share a statement have in common."""
    return event.change is Change.INSERT, event.schema, event.table, [*(event.new or ())]


def _change(event: RowEvent, there: TableThere, flavour: str, *, safe: bool) -> Iterator[RowStatement]:
    name = qualified(event.schema, event.table)
    table = (event.schema, event.table)
    row = where(event.old or {}, there, flavour)
    if event.change is Change.DELETE or safe:
        yield RowStatement(b"DELETE FROM " + name + row, -1 if safe else 1, *table)
        if event.change is Change.UPDATE:
            yield from _inserts([event], there, replace=True)
        return
    written = _written(event.new or {}, there)
    values = tuple(starmap(literal, written.items()))
    pairs = b",".join(quote(column) + b"=" + value for column, value in zip(written, values, strict=True))
    row_text = b"(" + b",".join(values) + b")"
    yield RowStatement(b"UPDATE " + name + b" SET " + pairs + row, 1, *table, tuple(written), (row_text,))


def _written(image: Image, there: TableThere) -> Image:
    return {name: cell for name, cell in image.items() if name.lower() not in there.generated}


def _inserts(events: Sequence[RowEvent], there: TableThere, *, replace: bool) -> Iterator[RowStatement]:
    first = events[0]
    names = tuple(_written(first.new or {}, there))
    head = b"REPLACE INTO " if replace else b"INSERT INTO "
    head += qualified(first.schema, first.table) + b"(" + b",".join(map(quote, names)) + b") VALUES "
    rows = [b"(" + b",".join(starmap(literal, _written(one.new or {}, there).items())) + b")" for one in events]
    for found in bounded(head, b"", rows, LIMITS):
        count = -1 if replace else len(found.tuples)
        yield RowStatement(found.sql, count, first.schema, first.table, names, found.tuples)
