"""Statements for tables that upsert and stay in order (rule 21: one outcome wherever a stream is cut). Pure.

Consecutive rows share a REPLACE, which writes them one after another: a later one may replace an earlier one of the
same statement. Consecutive deletes share a DELETE if the table has a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from drainer.batch.work import KeyChange, Kind, Literals, TableShape, replaces, upsert
from drainer.sink.mysql.config import StatementLimits
from drainer.sink.mysql.rows import statements
from drainer.sink.mysql.rows.format import sql_of
from drainer.sink.mysql.rows.full_row_match import Flavour, Step, where
from drainer.sink.mysql.rows.statements import Statement, qualified
from drainer.sink.mysql.rows.unique_keys import Handling


def steps(changes: Sequence[KeyChange], limits: StatementLimits, flavour: Flavour) -> Iterator[Step]:
    """In order; every change is of a table that upserts. A DELETE removes at most as many rows as it has tuples."""
    for (shape, kind), run in groupby(_parts(changes), key=lambda part: part[:2]):
        rows = [literals for _, _, literals in run]
        if kind is Kind.INSERT:
            write = statements.replaces if replaces(shape) else statements.inserts
            for statement in write(shape, [_tuple(row) for row in rows], limits):
                yield Step(shape, kind, statement)
        elif shape.row_key:
            keys = [_tuple(tuple(row[at] for at in shape.row_key)) for row in rows]
            for statement in statements.deletes(shape, keys, limits, by=shape.row_key):
                yield Step(shape, kind, statement)
        else:
            yield from (_by_all_columns(shape, row, flavour) for row in rows)


def _parts(changes: Sequence[KeyChange]) -> Iterator[tuple[TableShape, Kind, Literals]]:
    for change in changes:
        gone, put = upsert(change)
        if gone is not None:
            yield change.shape, Kind.DELETE, gone
        if put is not None:
            yield change.shape, Kind.INSERT, put


def _by_all_columns(shape: TableShape, row: Literals, flavour: Flavour) -> Step:
    head, image = b"DELETE FROM " + qualified(shape.schema, shape.table), [sql_of(value) for value in row]
    loose = head + where(shape, image, flavour, loose=True) if flavour == "mariadb" else None
    statement = Statement(head + where(shape, image, flavour), (_tuple(row),))
    return Step(shape, Kind.DELETE, statement, loose)


def _tuple(row: Literals) -> bytes:
    return b"(" + b",".join(map(sql_of, row)) + b")"


def refusal(shape: TableShape, handling: Handling) -> str:
    """Why REPLACE would remove a row that exists upstream, '' if it would not."""
    if not replaces(shape):
        return ""
    if handling.coarse:
        return f"column {', '.join(handling.coarse)} compares strings more coarsely here than upstream"
    if len(shape.unique) != len(shape.secondary_unique):
        return ""  # a key on a prefix or on a generated column: its definition here is not known
    known = [{shape.columns[at].lower() for at in columns} for columns in shape.unique]
    strange = [key.name for key in handling.keys if {part.column.lower() for part in key.parts} not in known]
    return f"unique key {', '.join(strange)} is not there upstream" if strange else ""
