"""Differences between the tables of a destination and the definitions that upstream's TableInfos ask for. Pure.

The destination itself shows both: the wanted definition is created there as a temporary table (for SQLite: in a
database in memory), and what it shows of that is compared with what it shows of the table. So a type, default or
expression that a server writes in its own way, or does not support, is no difference. Not compared is what no row
depends on: the order of columns, the display width of integers, defaults and indexes with expressions, the visibility
of indexes, further indexes that are not unique, counters, foreign keys, CHECKs, partitions, and options of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from drainer.schema.view import TableVersions

Definition = dict[tuple[str, str], str]  # ("column" or "index", name in lower case) → its text; the columns first
Found = Iterator[tuple[str, str]]  # differences of one table: each in words, and its statement


@dataclass(frozen=True, slots=True)
class SchemaDifference:
    """`table`: its name at the destination. `what`: in words. `statement`: the SQL that mends it in a session like the
    drainer's, several separated by `; `, '' if none is known. Those of a table are to be run in their order. A column
    gets AUTO_INCREMENT from the statement of another check, when all keys are there."""

    table: str
    what: str
    statement: str


def of_each(tables: Iterable[TableVersions], found: Callable[[TableVersions], Found]) -> Iterator[SchemaDifference]:
    """Those of tables of a view, by name: tables that are merged into one ask for the same definition."""
    for name, table in {f"{one.schema}.{one.name}": one for one in tables if one.current.has_rows}.items():
        yield from (SchemaDifference(name, *one) for one in found(table))


def differences(
    table: TableVersions, there: Definition, wanted: Definition
) -> Iterator[tuple[str, str, str, str | None, str | None]]:
    """Each in words, its kind and name, what is there and what is wanted; a surplus index before its columns."""
    left_out = table.applied.left_out if table.applied is not None else frozenset()
    allowed = {("column", one.name.lower()) for one in table.infos[-1].columns if one.id in left_out}
    surplus = [key for key in there if key not in wanted and key not in allowed]
    first = [key for key in surplus if key[0] == "index" and there[key].startswith(("UNIQUE", "CREATE UNIQUE"))]
    for kind, name in [*first, *wanted, *(key for key in surplus if key[0] == "column")]:
        found, asked = there.get((kind, name)), wanted.get((kind, name))
        if found != asked:
            yield f"{kind} {name}: {found or 'not'} there, {asked or 'not'} wanted", kind, name, found, asked
