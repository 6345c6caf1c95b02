"""Groups of transactions that must not overtake each other, for `transaction` consistency (rules 9 to 13).

Two transactions conflict when they touch a common value of any unique key, old or new. Groups are the connected
components of that relation, so different groups may be applied at the same time, each in commit order. A table whose
keys cannot be compared here (none at all, a prefix, a generated column, a collation whose weights are unknown) is one
value that every transaction on it shares.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from binlog.tidb.table import TableInfo
from binlog.tidb.types import UNSPECIFIED

from drainer.batch.work import Change, Literals
from drainer.row.key import Same, comparison, normal
from drainer.row.layout import replicated


@dataclass(frozen=True, slots=True)
class UniqueKeys:
    """Every unique key of a table: (place in the row, how it is compared) of each column. `whole`: they cannot all be
    compared, so the table is one group."""

    keys: tuple[tuple[tuple[int, Same], ...], ...]
    whole: bool


def unique_keys(table: TableInfo) -> UniqueKeys:
    place = {c.id: n for n, c in enumerate(replicated(table))}
    keys: list[tuple[tuple[int, Same], ...]] = []
    for index in table.unique_indexes():
        parts: list[tuple[int, Same]] = []
        for part, column in zip(index.columns, table.index_columns(index), strict=True):
            same = comparison(column.type) if column.id in place and part.length == UNSPECIFIED else None
            if same is None:
                return UniqueKeys((), True)
            parts.append((place[column.id], same))
        keys.append(tuple(parts))
    return UniqueKeys(tuple(keys), not keys)


def conflict_groups(
    transactions: Iterable[Sequence[Change]], keys: Mapping[int, UniqueKeys]
) -> list[list[Sequence[Change]]]:
    """Transactions (each one's changes, given in commit order) by group, groups by their first transaction.

    `keys`: of every table id that occurs.
    """
    given = [changes for changes in transactions if changes]
    parent = list(range(len(given)))

    def root(n: int) -> int:
        while parent[n] != n:
            parent[n] = parent[parent[n]]
            n = parent[n]
        return n

    owner: dict[Hashable, int] = {}
    for n, changes in enumerate(given):
        for value in touched(changes, keys):
            other = owner.setdefault(value, n)
            if other != n:
                a, b = root(other), root(n)
                parent[max(a, b)] = min(a, b)
    groups: dict[int, list[Sequence[Change]]] = {}
    for n, changes in enumerate(given):
        groups.setdefault(root(n), []).append(changes)
    return list(groups.values())


def touched(changes: Sequence[Change], keys: Mapping[int, UniqueKeys]) -> set[Hashable]:
    """What a transaction holds against others: values of unique keys, and whole tables."""
    found: set[Hashable] = set()
    for change in changes:
        table_id = change.shape.table_id
        unique = keys[table_id]
        if unique.whole:
            found.add(table_id)
            continue
        for row in (change.old, change.new):
            if row is not None:
                found.update(_values(table_id, unique, row))
    return found


def _values(table_id: int, unique: UniqueKeys, row: Literals) -> Iterable[Hashable]:
    for number, parts in enumerate(unique.keys):
        value = tuple([_compared(row[place], same) for place, same in parts])
        # NULL differs from every NULL, so a key with one holds against nobody.
        if None not in value:
            yield table_id, number, value


def _compared(literal: object, same: Same) -> object:
    """A literal as compared. A quoted one keeps its opening quote, which tells 'a' from a number."""
    if literal is None or literal == b"NULL":
        return None
    if isinstance(literal, bytes) and literal[:1] == b"'":
        return normal(literal[:-1], same)
    return normal(literal, same)
