"""Reads the tables and rows that a vector of the row sections describes in words.

A description this cannot read raises ValueError: a vector is never skipped in silence.
"""

from __future__ import annotations

import re
from dataclasses import replace

from binlog.tidb.datum import Datum
from binlog.tidb.flatten import flatten
from binlog.tidb.table import ColumnInfo, IndexColumn, IndexInfo, TableInfo
from binlog.tidb.types import INTEGERS, STRINGS, UNSPECIFIED, FieldType, Flag, Tp

_TYPES = {
    "tinyint": (Tp.TINY, 4, 0),
    "smallint": (Tp.SHORT, 6, 0),
    "mediumint": (Tp.INT24, 9, 0),
    "int": (Tp.LONG, 11, 0),
    "bigint": (Tp.LONGLONG, 20, 0),
    "float": (Tp.FLOAT, 12, -1),
    "double": (Tp.DOUBLE, 22, -1),
    "decimal": (Tp.NEWDECIMAL, 10, 0),
    "char": (Tp.STRING, 1, 0),
    "binary": (Tp.STRING, 1, 0),
    "varchar": (Tp.VARCHAR, 0, 0),
    "varbinary": (Tp.VARCHAR, 0, 0),
    "text": (Tp.BLOB, 65535, 0),
    "blob": (Tp.BLOB, 65535, 0),
    "date": (Tp.DATE, 10, 0),
    "datetime": (Tp.DATETIME, 19, 0),
    "timestamp": (Tp.TIMESTAMP, 19, 0),
    "time": (Tp.DURATION, 10, 0),
    "year": (Tp.YEAR, 4, 0),
    "enum": (Tp.ENUM, 1, 0),
    "set": (Tp.SET, 1, 0),
    "bit": (Tp.BIT, 1, 0),
    "json": (Tp.JSON, 0, 0),
}
_CREATE = re.compile(
    r"CREATE TABLE (?P<name>\w+)\((?P<body>.*)\)(?: charset (?P<charset>\w+) collate (?P<collate>\w+))?"
    r"\s*(?:-- (?P<note>.*))?"
)
_COLUMN = re.compile(
    r"(?P<name>\w+) (?P<type>\w+)(?:\((?P<args>[^)]*)\))?(?P<unsigned> unsigned)?(?: null)?(?P<filled> not null)?"
    r"(?: auto_increment)?(?P<primary> primary key)?(?: auto_increment)?"
)
_KEY = re.compile(r"primary key\((?P<columns>[\w,]+)\) clustered")
_BINARY = frozenset({"binary", "varbinary", "blob"})


class VectorTable:
    """The table of a description, and whether new collations are on."""

    def __init__(self, text: str) -> None:
        found = _CREATE.fullmatch(text)
        if not found:
            raise ValueError(f"no CREATE TABLE this test can read: {text}")
        charset, collate = found["charset"] or "utf8mb4", found["collate"] or "utf8mb4_bin"
        columns: list[ColumnInfo] = []
        key: list[str] = []
        for part in re.split(r",\s*(?![^(]*\))", found["body"]):
            clustered = _KEY.fullmatch(part)
            if clustered:
                key = clustered["columns"].split(",")
            else:
                columns.append(_column(part, len(columns), charset, collate))
        note = found["note"] or ""
        ids = re.search(r"col ids ([\d,]+)", note)
        if ids:
            numbers = [int(number) for number in ids[1].rstrip(",").split(",")]
            columns = [replace(column, id=number) for column, number in zip(columns, numbers, strict=True)]
        self.new_collation = "new collation on" in note
        if "collat" in note and not self.new_collation and not note.endswith(" off"):
            raise ValueError(f"is the new collation on or off? {note}")
        self.table = _table(found["name"], columns, key)

    def values(self, row: object) -> dict[int, Datum]:
        """Flattened datums by column id, of a list in column order or a dict by (annotated) column name."""
        columns = self.table.columns
        if isinstance(row, list):
            return {c.id: flatten(value, c.type) for c, value in zip(columns, row, strict=True)}
        if not isinstance(row, dict):
            raise ValueError(f"no row this test can read: {row!r}")
        by_name = {c.name: c for c in columns}
        values: dict[int, Datum] = {}
        for name, value in row.items():
            column = by_name[name.removesuffix("_hex").removesuffix("_utc")]
            values[column.id] = _annotated(column, bytes.fromhex(value) if name.endswith("_hex") else value)
        if len(values) != len(columns):
            raise ValueError(f"{len(columns)} columns, but {len(values)} values: {row!r}")
        return values


def _column(text: str, offset: int, charset: str, collate: str) -> ColumnInfo:
    found = _COLUMN.fullmatch(text)
    if not found or found["type"] not in _TYPES:
        raise ValueError(f"no column this test can read: {text}")
    tp, flen, decimal = _TYPES[found["type"]]
    elems: tuple[str, ...] = ()
    if found["args"] and tp in (Tp.ENUM, Tp.SET):
        elems = tuple(name.strip("'") for name in found["args"].split(","))
    elif found["args"]:
        numbers = [int(number) for number in found["args"].split(",")]
        if tp in (Tp.DATETIME, Tp.TIMESTAMP, Tp.DURATION):
            decimal = numbers[0]
        else:
            flen, decimal = numbers[0], numbers[1] if len(numbers) > 1 else decimal
    flag = Flag.UNSIGNED if found["unsigned"] else Flag(0)
    if found["primary"]:
        flag |= Flag.PRI_KEY | Flag.NOT_NULL
    elif found["filled"]:
        flag |= Flag.NOT_NULL
    is_text = (tp in STRINGS and found["type"] not in _BINARY) or tp in (Tp.ENUM, Tp.SET)
    charsets = (charset, collate) if is_text else ("binary", "binary")
    kind = FieldType(tp, int(flag), flen, decimal, *charsets, elems)
    return ColumnInfo(id=offset + 1, name=found["name"], offset=offset, type=kind)


def _table(name: str, columns: list[ColumnInfo], key: list[str]) -> TableInfo:
    primary = next((c for c in columns if c.is_primary), None)
    if primary is not None and primary.type.tp not in INTEGERS:
        raise ValueError("only an integer column carries `primary key` in these vectors")
    offsets = {c.name: c.offset for c in columns}
    parts = tuple(IndexColumn(part, offsets[part], UNSPECIFIED) for part in key)
    indexes = (IndexInfo(1, "PRIMARY", parts, unique=True, primary=True),) if key else ()
    return TableInfo(
        id=1,
        name=name,
        columns=tuple(columns),
        indexes=indexes,
        pk_is_handle=primary is not None,
        is_common_handle=bool(key),
    )


def _annotated(column: ColumnInfo, value: object) -> Datum:
    """`y (2)`, `b'101' (5)`, `1.1 (float32)`: the value, with a remark that must agree with it."""
    found = re.fullmatch(r"(.*) \((\w+)\)", value) if isinstance(value, str) else None
    if not found:
        return flatten(value, column.type)
    text, remark = found.groups()
    bits = re.fullmatch(r"b'([01]+)'", text)
    datum = flatten(int(bits[1], 2) if bits else text, column.type)
    if remark.isdecimal() and datum != int(remark):
        raise ValueError(f"{value!r} became {datum!r}")
    return datum
