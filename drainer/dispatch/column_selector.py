"""Column selectors, TiCDC's `column-selectors`: which columns of a table its messages have.

The first selector whose table patterns match counts. A table without a matching selector has all columns. The columns
that remain must include the complete primary key, or all columns of a unique key. Messages are then encoded as if the
table had no other columns. Its handle key is the primary key if all its columns remain; otherwise the unique key with
the fewest columns, among those whose columns all remain and are NOT NULL; otherwise the table has no handle key.
Selectors are applied last: merging the changes of a row, and dividing an update into a delete and an insert, use all
columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from binlog.runtime.fields import Section
from binlog.tidb.table import IndexInfo, TableInfo
from pydantic import Field

from drainer.changes.decode import Columns
from drainer.dispatch import DispatchConfigError, DispatchError
from drainer.protocol.table import Column, ColumnFlag, Table, handle_index, smallest_key
from drainer.schema.filter import TablePatterns
from drainer.schema.name_pattern import Name, Pattern, PatternError, lower, name_pattern, patterns_of, unexpected


# Patterns of columns, in the syntax of TiDB's column-filter, which TiCDC's column selectors use.
#
#     name   *   c?   c[0-9]   `a b`   /^c[0-9]+$/     columns of these names, as in schema/filter.py
#     !name                                            not this one; the last pattern that matches decides
#
# A column that no pattern matches is not selected. Patterns ignore case, as in TiDB.
@dataclass(frozen=True, slots=True)
class ColumnPatterns:
    """A list of patterns. The last one that matches a column decides. A column that no pattern matches is not
    selected."""

    patterns: tuple[Pattern, ...]

    @classmethod
    def parse(cls, patterns: Iterable[str]) -> ColumnPatterns:
        """Parse the patterns. Raises PatternError naming the pattern."""
        return cls(patterns_of(patterns, "column pattern", " \t", _name))

    def match(self, column: str) -> bool:
        lowered = lower(column)
        return next((one.is_positive for one in reversed(self.patterns) if one.match(lowered)), False)


def _name(text: str, named: str) -> tuple[Name, ...]:
    name, at = name_pattern(text, 0, named)
    if name is None and at == len(text):
        raise PatternError(f"{named}: expected the name of a column, such as 'name' or '*'")
    if name is None or at != len(text):
        raise PatternError(unexpected(named, text[at]))
    return (name,)


class SelectorRule(Section):
    """`[[syncer.to.column-selectors]]`: the first selector whose patterns match a table applies to it. A table that
    no selector matches has all columns."""

    matcher: tuple[str, ...] = Field(description="patterns of tables, such as shop.*")
    columns: tuple[str, ...] = Field(
        description="patterns of the columns that messages have: name, c*, c? or !name; the last that matches counts"
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """What a selector keeps of one version of a table. `column_indexes`: the positions of the kept columns among all
    columns of the table, None if all are kept."""

    table: Table
    column_indexes: tuple[int, ...] | None = None

    def of(self, columns: Columns) -> Columns:
        """Return the kept columns, given all columns of the table."""
        if self.column_indexes is None:
            return columns
        return tuple(columns[column_index] for column_index in self.column_indexes)


@dataclass(frozen=True, slots=True)
class _Selector:
    rule: SelectorRule
    tables: TablePatterns
    columns: ColumnPatterns

    def __str__(self) -> str:
        return f"the column selector for {', '.join(self.rule.matcher)} ({', '.join(self.rule.columns)})"


@dataclass(frozen=True, slots=True)
class ColumnSelectors:
    """All selectors, in their order. Their `repr` differs if they differ."""

    selectors: tuple[_Selector, ...] = ()

    @classmethod
    def parse(cls, rules: Iterable[SelectorRule]) -> ColumnSelectors:
        """Parse the selectors. Raises DispatchConfigError, PatternError."""
        return cls(tuple(map(_read, rules)))

    def __bool__(self) -> bool:
        return bool(self.selectors)

    def select(self, table: Table) -> Selection:
        """Apply the selectors to a table with all its columns. Raises DispatchError naming the table, the selector and
        the missing columns if no complete key remains."""
        selector = next((one for one in self.selectors if one.tables.match(table.schema, table.name)), None)
        if selector is None:
            return Selection(table)
        column_indexes = tuple(at for at, column in enumerate(table.columns) if selector.columns.match(column.name))
        if len(column_indexes) == len(table.columns):
            return Selection(table)
        left = frozenset(table.columns[column_index].info.id for column_index in column_indexes)
        _check(table, left, selector)
        handle = _handle_ids(table.info, left)
        columns = tuple(_flagged(table.columns[column_index], handle) for column_index in column_indexes)
        return Selection(replace(table, columns=columns), column_indexes)


ALL_COLUMNS: Final = ColumnSelectors()


def _read(rule: SelectorRule) -> _Selector:
    columns = ColumnPatterns.parse(rule.columns)
    if not columns.patterns:
        raise DispatchConfigError(
            f"column selector for {', '.join(rule.matcher)}: no columns are given, and nothing would be left of its "
            "tables: name them, or '*' and '!name' for all but some"
        )
    return _Selector(rule, TablePatterns.parse(rule.matcher, whose="column selector"), columns)


def _check(table: Table, left: frozenset[int], selector: _Selector) -> None:
    info = table.info
    keys = info.unique_indexes()
    if left and (handle_index(info) is None or any(_is_whole(info, key, left) for key in keys)):
        return  # a table without a key has no key to lose
    where = f"table `{table.schema}`.`{table.name}`: {selector} leaves"
    if not left:
        raise DispatchError(f"{where} no column of it")
    missing = "; ".join(f"{_shown(info, key)} lacks {', '.join(_missing(info, key, left))}" for key in keys)
    raise DispatchError(
        f"{where} neither its whole primary key nor a whole unique key: {missing}. Add these columns of one key to the "
        "selector, or leave the table out with !"
    )


def _is_whole(info: TableInfo, key: IndexInfo, left: frozenset[int]) -> bool:
    return all(column.id in left for column in info.index_columns(key))


def _missing(info: TableInfo, key: IndexInfo, left: frozenset[int]) -> Sequence[str]:
    return [column.name for column in info.index_columns(key) if column.id not in left]


def _shown(info: TableInfo, key: IndexInfo) -> str:
    names = ", ".join(column.name for column in info.index_columns(key))
    return f"the primary key ({names})" if key.primary else f"the unique key {key.name} ({names})"


def _handle_ids(info: TableInfo, left: frozenset[int]) -> frozenset[int]:
    """Return the column ids of the handle key that remains."""
    primary = info.primary_index()
    if primary is not None and _is_whole(info, primary, left):
        found: IndexInfo | None = primary
    else:
        found = smallest_key(info, [key for key in info.unique_indexes() if _is_whole(info, key, left)])
    return frozenset(column.id for column in info.index_columns(found)) if found is not None else frozenset()


def _flagged(column: Column, handle: frozenset[int]) -> Column:
    flags = column.flags & ~ColumnFlag.HANDLE_KEY
    return replace(column, flags=flags | ColumnFlag.HANDLE_KEY if column.info.id in handle else flags)
