"""Compares every table in the SQLite file with the writer's model and reports the differences."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from demo.model import TableModel, Value

EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of one table: the number of rows on each side, of equal rows, and a few rows that differ."""

    table: str
    written: int
    found: int
    equal: int
    missing: list[tuple[Value, ...]]
    unexpected: list[tuple[Value, ...]]
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem and self.written == self.found == self.equal


def canonical(value: Value, fsp: int = 0) -> Value:
    """Return a written value in the form in which the drainer stores it in SQLite: times, decimals and JSON as text."""
    match value:
        case bool():
            return int(value)
        case Decimal():
            return format(value, "f")
        case datetime():
            text = value.strftime("%Y-%m-%d %H:%M:%S.%f")
            return text[: 20 + fsp] if fsp else text[:19]
        case date():
            return value.isoformat()
        case timedelta():
            return str(value)
        case dict() | list():
            return json.dumps(value, sort_keys=True)
        case _:
            return value


def _found(value: Value, *, as_json: bool, enum: Sequence[str] | None) -> Value:
    """Normalize a value that was found: JSON with sorted keys; an ENUM's number, which some Kafka messages have, as its
    name.
    """
    if as_json and isinstance(value, str):
        return json.dumps(json.loads(value), sort_keys=True)
    if enum is not None and isinstance(value, int) and 0 < value <= len(enum):
        return enum[value - 1]
    return value


def compare_table(database: Path, schema: str, model: TableModel, *, made_by_rows: bool = False) -> Comparison:
    """Read `schema`.`model.name` and compare it with the model as a multiset of rows. `made_by_rows`: a table is
    created with its first row, so one without rows may be missing."""
    written, json_columns = written_rows(model)
    quoted = f'"{schema}.{model.name}"'
    # Qualified, because SQLite reads a bare "name" that is not a column as a string.
    names = ",".join(f'{quoted}."{c}"' for c in model.columns)
    enums = [model.enums.get(c) for c in model.columns]
    total = written.total()
    if made_by_rows and not total and not _has_table(database, f"{schema}.{model.name}"):
        return Comparison(model.name, 0, 0, 0, [], [])
    try:
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
            cursor = connection.execute(f"SELECT {names} FROM {quoted}")
            found = Counter(
                tuple(_found(v, as_json=i in json_columns, enum=enums[i]) for i, v in enumerate(row))
                for row in cursor.fetchall()
            )
    except sqlite3.Error as error:
        return Comparison(model.name, total, 0, 0, [], [], problem=str(error))
    return comparison(model.name, written, found)


def written_rows(model: TableModel) -> tuple[Counter[tuple[Value, ...]], set[int]]:
    """Return the model's rows in canonical form, and which of their columns hold JSON."""
    written: Counter[tuple[Value, ...]] = Counter()
    json_columns: set[int] = set()
    for row in model.all_rows():
        values = [row.get(c) for c in model.columns]
        json_columns |= {i for i, v in enumerate(values) if isinstance(v, dict | list)}
        written[tuple(canonical(v, model.fsp.get(c, 0)) for c, v in zip(model.columns, values, strict=True))] += 1
    return written, json_columns


def comparison(table: str, written: Counter[tuple[Value, ...]], found: Counter[tuple[Value, ...]]) -> Comparison:
    """Compare both sides as multisets of rows in canonical form."""
    missing, unexpected = written - found, found - written
    return Comparison(
        table,
        written.total(),
        found.total(),
        (written & found).total(),
        list(missing)[:EXAMPLES],
        list(unexpected)[:EXAMPLES],
    )


def _has_table(database: Path, name: str) -> bool:
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        found = connection.execute("SELECT 1 FROM sqlite_master WHERE type='table' AND name=?", (name,))
        return found.fetchone() is not None
