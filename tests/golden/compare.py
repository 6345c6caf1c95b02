"""Compares MariaDB's tables with what a recording expects, row for row."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pymysql
from pymysql.connections import Connection

from tests.support.capture import CaptureSet
from tests.support.servers import MariaDB

# MariaDB prints these otherwise than TiDB: FLOAT with 6 digits, FLOAT/DOUBLE(M,D) with all D, ZEROFILL with its
# zeros. There the recording's own MariaDB tells what the stored value looks like.
_DISPLAY = re.compile(
    r"^\s*`((?:[^`]|``)+)` (?:float|double\(|\w+(?:\(\d+\))? unsigned zerofill|\w+\(\d+\) zerofill)", re.M | re.I
)

Rows = list[list[Any]]


def _cell(value: Any) -> Any:
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def read_table(connection: Connection[Any], schema: str, table: str, columns: list[str]) -> Rows:
    """All rows as text, as the recordings hold them: binary and BIT as {"hex"}. The connection converts nothing."""
    names = ",".join(f"`{c.replace('`', '``')}`" for c in columns)
    quoted = f"`{schema.replace('`', '``')}`.`{table.replace('`', '``')}`"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {names} FROM {quoted}")
        return [[_cell(value) for value in row] for row in cursor.fetchall()]


def _sorted(rows: Rows) -> list[str]:
    return sorted(json.dumps(row, ensure_ascii=False) for row in rows)


def _without(rows: Rows, drop: set[int]) -> Rows:
    return [[v for i, v in enumerate(row) if i not in drop] for row in rows]


def differences(mariadb: MariaDB, capture: CaptureSet, *, prints_as_tidb: bool = False) -> list[str]:
    """One line per table that is missing or differs; empty when everything of `expected/` is there.

    `prints_as_tidb`: the destination is a TiDB, whose text of every value is the one expected."""
    return list(each_difference(mariadb, capture, prints_as_tidb=prints_as_tidb))


def each_difference(mariadb: MariaDB, capture: CaptureSet, *, prints_as_tidb: bool = False) -> Iterator[str]:
    """The same, as they are found: who waits until there is none looks no further than at the first one."""
    downstream = {} if prints_as_tidb else capture.tables("downstream")
    with mariadb.connect(conv={}) as connection:
        for name, expected in capture.tables("expected").items():
            if expected.get("kind"):  # views and sequences have no rows of their own
                continue
            schema, table = split_name(name, expected)
            columns = expected["columns"]
            try:
                ours = read_table(connection, schema, table, columns)
            except pymysql.err.MySQLError as error:
                yield f"{name}: {error}"
                continue
            displays = () if prints_as_tidb else _DISPLAY.finditer(expected["create"])
            shown = {m.group(1).replace("``", "`") for m in displays}
            drop = {i for i, column in enumerate(columns) if column in shown}
            yield from _differ(name, _without(ours, drop), _without(expected["rows"], drop), "expected")
            if drop and name in downstream:
                yield from _differ(name, ours, downstream[name]["rows"], "downstream")


def split_name(name: str, table: dict[str, Any]) -> tuple[str, str]:
    """`schema.table` split where the CREATE statement says the table's name begins (names may hold dots)."""
    match = re.match(r"CREATE (?:GLOBAL TEMPORARY )?TABLE `((?:[^`]|``)+)`", table["create"])
    assert match, table["create"][:80]
    own = match.group(1).replace("``", "`")
    assert name.endswith("." + own), (name, own)
    return name[: -len(own) - 1], own


def _differ(name: str, ours: Rows, theirs: Rows, what: str) -> list[str]:
    a, b = _sorted(ours), _sorted(theirs)
    if a == b:
        return []
    missing = [row for row in b if row not in a][:3]
    extra = [row for row in a if row not in b][:3]
    return [f"{name}: {len(a)} rows, {what} has {len(b)}; missing {missing}; extra {extra}"]


def compare_sqlite(file: Path, capture: CaptureSet, left_out: Collection[str] = ()) -> int:
    """How many rows a database has, which are those of `expected/` without the tables `left_out`."""
    compared = 0
    with contextlib.closing(sqlite3.connect(file)) as connection:
        for name, expected in capture.tables("expected").items():
            there = [row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')]
            assert there or not expected["rows"] or name in left_out, name
            if expected["rows"] and name not in left_out:
                places = [expected["columns"].index(column) for column in there]  # generated columns are in no file
                columns = ", ".join('"{}"'.format(column.replace('"', '""')) for column in there)
                rows = connection.execute(f'SELECT {columns} FROM "{name}"').fetchall()
                wanted = [[row[place] for place in places] for row in expected["rows"]]
                assert sorted(map(_shown, rows)) == sorted(map(_shown, wanted)), name
                compared += len(rows)
    return compared


def _shown(row: Any) -> str:
    """As the recordings have it: text, and bytes as {"hex"}."""

    def cell(value: Any) -> Any:
        if isinstance(value, bytes):
            return {"hex": value.hex()}
        return value if value is None or isinstance(value, dict) else str(value)

    return repr(list(map(cell, row)))
