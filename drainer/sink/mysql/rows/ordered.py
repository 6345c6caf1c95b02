"""Statements for changes that are written in order. Pure.

Rows of tables without a key are found by comparing all columns exactly (correctness rule 11: tables without keys).

In tables that upsert (rule 21: one outcome wherever a stream is cut) consecutive rows share a REPLACE, which writes
them one after another: a later one may replace an earlier one of the same statement. Consecutive deletes share a DELETE
if the table has a key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from drainer.batch.work import KeyChange, Kind, Literals, Match, TableShape, replaces, upsert
from drainer.sink.mysql.config import StatementLimits
from drainer.sink.mysql.rows.format import Statement, bounded, deletes, inserts, qualified, quote, split_row, sql_of
from drainer.sink.mysql.rows.format import replaces as replace_statements
from drainer.sink.mysql.rows.unique_keys import Handling

Flavour = str


@dataclass(frozen=True, slots=True)
class Step:
    """A statement for ordered changes. `kind`: INSERT writes `statement.tuples`; of DELETE and UPDATE they are the rows
    that it finds or writes. `loose`: the statement to try if it finds none, because the destination may store the same
    JSON as another text; None: nothing else may match. `change`: of an UPDATE or DELETE that must find its row."""

    shape: TableShape
    kind: Kind
    statement: Statement
    loose: bytes | None = None
    change: KeyChange | None = None


def exact_single(literal: bytes) -> bytes:
    """The literal of the double that a FLOAT column holding this number widens to.

    A FLOAT is compared as the double it widens to, so `c = 0.1` is never true; 0.10000000149011612e0 is."""
    try:
        single = struct.unpack("<f", struct.pack("<f", float(literal)))[0]
    except OverflowError:  # beyond FLOAT, so no row can match
        return literal
    return repr(single).encode() + (b"" if "e" in repr(single) else b"e0")


def condition(name: bytes, literal: bytes, match: Match, flavour: Flavour) -> bytes:
    """Return the condition that compares one column. NULL equals NULL."""
    if match is Match.ANY:
        return b"TRUE"
    if literal == b"NULL":
        return name + b" IS NULL"
    if match is Match.EXACT_FLOAT:
        return name + b"<=>" + exact_single(literal)
    if match is Match.JSON and flavour != "mariadb":
        # JSON compares 1 and 1.0 as equal; their texts, normalised by the same server, do not.
        return b"CAST(" + name + b" AS CHAR)=CAST(CAST(" + literal + b" AS JSON) AS CHAR)"
    if match in (Match.BINARY_TEXT, Match.JSON) and literal[:1] == b"'":
        # The plain comparison first, so that an index can be used; then by bytes, including trailing spaces.
        plain = name + b"<=>" + literal + b" AND " if match is Match.BINARY_TEXT else b""
        text = b"CAST(CONVERT(" + name + b" USING utf8mb4) AS BINARY)"
        return plain + text + b"<=>CAST(" + literal + b" AS BINARY)"
    return name + b"<=>" + literal


def where(shape: TableShape, image: Sequence[bytes], flavour: Flavour, *, loose: bool = False) -> bytes:
    """All columns. `loose`: JSON by value instead of by text (MariaDB keeps JSON as the text it was given)."""
    parts: list[bytes] = []
    for column, literal, match in zip(shape.columns, image, shape.match, strict=True):
        name = quote(column)
        if loose and match is Match.JSON and literal != b"NULL":
            parts.append(b"JSON_NORMALIZE(" + name + b")=JSON_NORMALIZE(" + literal + b")")
        else:
            parts.append(condition(name, literal, match, flavour))
    return b" WHERE " + b" AND ".join(parts) + b" LIMIT 1"


def exact_deletes(
    shape: TableShape, keys: Sequence[bytes], limits: StatementLimits, flavour: Flavour
) -> Iterator[Statement]:
    """DELETE by the key, strings by bytes: for columns whose own comparison would delete other rows, too."""
    head = b"DELETE FROM " + qualified(shape.schema, shape.table) + b" WHERE "
    parts = [(quote(shape.columns[at]), shape.match[at]) for at in shape.key]

    def one(key: bytes) -> bytes:
        literals = zip(parts, split_row(key), strict=True)
        return b"(" + b" AND ".join(condition(name, literal, how, flavour) for (name, how), literal in literals) + b")"

    return bounded(head, b"", [one(key) for key in keys], limits, b" OR ")


def one_by_one(changes: Sequence[KeyChange], limits: StatementLimits, flavour: Flavour) -> Iterator[Step]:
    """The statements of ordered changes, in order; consecutive inserts of one table share a statement."""
    for (kind, _), run in groupby(changes, key=lambda change: (change.kind, id(change.shape))):
        same = list(run)
        if kind is Kind.INSERT:
            rows = [b"(" + b",".join(map(sql_of, one.new or ())) + b")" for one in same]
            for statement in inserts(same[0].shape, rows, limits):
                yield Step(same[0].shape, kind, statement)
        else:
            yield from (_change_one(change, flavour) for change in same)


def _change_one(change: KeyChange, flavour: Flavour) -> Step:
    shape = change.shape
    old = [sql_of(value) for value in change.old or ()]
    table = qualified(shape.schema, shape.table)
    row = b""
    if change.kind is Kind.DELETE:
        head = b"DELETE FROM " + table
    else:
        new = [sql_of(value) for value in change.new or ()]
        # Every column is set, or the destination's ON UPDATE CURRENT_TIMESTAMP would fill those left out.
        pairs = zip(shape.columns, new, strict=True)
        head = b"UPDATE " + table + b" SET " + b",".join(quote(name) + b"=" + value for name, value in pairs)
        row = b"(" + b",".join(new) + b")"
    statement = Statement(head + where(shape, old, flavour), (row,) if row else ())
    loose = None
    if flavour == "mariadb" and Match.JSON in shape.match:
        loose = head + where(shape, old, flavour, loose=True)
    return Step(shape, change.kind, statement, loose, change)


def upserted(changes: Sequence[KeyChange], limits: StatementLimits, flavour: Flavour) -> Iterator[Step]:
    """In order; every change is of a table that upserts. A DELETE removes at most as many rows as it has tuples."""
    for (shape, kind), run in groupby(_parts(changes), key=lambda part: part[:2]):
        rows = [literals for _, _, literals in run]
        if kind is Kind.INSERT:
            write = replace_statements if replaces(shape) else inserts
            for statement in write(shape, [_tuple(row) for row in rows], limits):
                yield Step(shape, kind, statement)
        elif shape.row_key:
            keys = [_tuple(tuple(row[at] for at in shape.row_key)) for row in rows]
            for statement in deletes(shape, keys, limits, by=shape.row_key):
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


def refusal_of_upserts(shape: TableShape, handling: Handling) -> str:
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
