"""Dispatch rules: which topic a table's events go to, which columns they have, and what chooses the partition of each.

docs/dispatch.md describes rules and column selectors. `conflict` is an extension of this project, after the design that
TiCDC began with. Messages are encoded as if a table had no other columns than those that its selector leaves; merging
the changes of a row, and dividing an update into a delete and an insert, use all columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from binlog.runtime.fields import Section
from binlog.tidb.table import IndexInfo, TableInfo
from pydantic import Field

from drainer.changes.decode import Columns
from drainer.dispatch import DispatchConfigError, DispatchError
from drainer.protocol.table import Column, ColumnFlag, Table, handle_index, smallest_key
from drainer.schema.filter import (
    Name,
    Pattern,
    PatternError,
    TablePatterns,
    lower,
    name_pattern,
    patterns_of,
    unexpected,
)


@dataclass(frozen=True, slots=True)
class ColumnPatterns:
    """Patterns of columns, in the syntax of TiDB's column-filter (docs/dispatch.md). The last one that matches a column
    decides. A column that no pattern matches is not selected."""

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


# Topic names by expression: `{schema}` and `{table}` stand for a table's names.

TOPIC_LENGTH_MAX: Final = 249

_LEGAL = r"[A-Za-z0-9._-]*"
_EXPRESSION = re.compile(rf"{_LEGAL}(\{{schema\}})?({_LEGAL}\{{table\}})?{_LEGAL}")
_AVRO = re.compile(rf"{_LEGAL}\{{schema\}}{_LEGAL}\{{table\}}{_LEGAL}")
_FIXED = re.compile(r"[A-Za-z0-9._-]+")
_PLACEHOLDER = re.compile(r"\{schema\}|\{table\}")
_ILLEGAL = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class TopicExpression:
    """A parsed expression. Without placeholders it is the name of a topic."""

    text: str

    @classmethod
    def parse(cls, text: str, protocol: str = "") -> TopicExpression:
        """Parse an expression. Avro's schemas are registered by topic, so with Avro each table needs a topic of its
        own, or all tables share one topic without placeholders. Raises DispatchConfigError."""
        if _FIXED.fullmatch(text):
            return cls(checked_topic(text, "dispatch rule"))
        is_avro = protocol.lower() in ("avro", "flat-avro")
        if not text or not (_AVRO if is_avro else _EXPRESSION).fullmatch(text):
            wanted = "{schema} before {table}, as Avro needs" if is_avro else "{schema} and {table}, in this order"
            raise DispatchConfigError(
                f"topic expression {text!r}: only letters, digits, '.', '_', '-' and {wanted} are allowed"
            )
        return cls(text)

    def topic(self, schema: str, table: str) -> str:
        """Return the topic of a table. Characters that topic names may not have become `_`. A name that is too long is
        truncated."""
        found = self.text.replace("{schema}", _ILLEGAL.sub("_", schema)).replace("{table}", _ILLEGAL.sub("_", table))
        found = found[:TOPIC_LENGTH_MAX]
        return {".": "_", "..": "__"}.get(found, found)

    def may_be(self, topic: str) -> bool:
        """Return whether some table could have this topic."""
        parts = _PLACEHOLDER.split(self.text)
        if len(parts) == 1:
            return self.text == topic
        if len(topic) >= TOPIC_LENGTH_MAX or topic in ("_", "__"):
            return True  # truncated, or `_` in place of an illegal name
        return re.fullmatch(".*".join(map(re.escape, parts)), topic) is not None


def checked_topic(name: str, where: str) -> str:
    """Return the name. `where`: the setting, for the error. Raises DispatchConfigError if it is no valid topic name."""
    if not _FIXED.fullmatch(name) or len(name) > TOPIC_LENGTH_MAX or name in (".", ".."):
        raise DispatchConfigError(
            f"{where}: {name!r} is not a valid topic name: 1 to {TOPIC_LENGTH_MAX} letters, digits, '.', '_' and '-'"
        )
    return name


class Method(Enum):
    """What chooses a partition."""

    TABLE = "table"
    INDEX_VALUE = "index-value"
    COLUMNS = "columns"
    TS = "ts"
    CONFLICT = "conflict"


_NAMES: Final = {"": Method.TABLE, "default": Method.TABLE, "rowid": Method.INDEX_VALUE}
_METHODS: Final[Mapping[str, Method]] = _NAMES | {method.value: method for method in Method}


class DispatchRule(Section):
    """`[[syncer.to.dispatchers]]`: the first rule whose patterns match a table applies to it."""

    matcher: tuple[str, ...] = Field(description="patterns of tables, such as shop.*")
    partition: str = Field("", description="default, table, index-value, columns, ts or conflict")
    dispatcher: str = Field("", description="older name of `partition`")
    topic: str = Field("", description="an expression such as {schema}_{table}; empty: the topic of the destination")
    index: str = Field("", description="for index-value: the unique index; empty: the handle key")
    columns: tuple[str, ...] = Field((), description="for columns: their names")


@dataclass(frozen=True, slots=True)
class Rule:
    """A parsed rule."""

    patterns: TablePatterns | None
    method: Method
    topic: TopicExpression
    index: str = ""
    columns: tuple[str, ...] = ()

    def match(self, schema: str, table: str) -> bool:
        return self.patterns is None or self.patterns.match(schema, table)

    def column_indexes(self, table: Table) -> tuple[int, ...]:
        """Return the positions in `table.columns` of the columns that choose the partition. Raises DispatchError."""
        if self.method is Method.COLUMNS:
            return _indexes_of(table, self.columns)
        if self.method is Method.INDEX_VALUE and self.index:
            return _indexes_of_index(table, self.index)
        return table.handle if self.method in (Method.INDEX_VALUE, Method.CONFLICT) else ()


class Router:
    """Finds the rule of a table. Caches the rules it has found. Not safe for use by several threads."""

    def __init__(
        self,
        rules: Iterable[DispatchRule],
        default_topic: str,
        *,
        protocol: str = "",
        selectors: Iterable[SelectorRule] = (),
    ) -> None:
        """Parse the rules. `warnings`: what the user should know about the rules. `selectors`: which columns messages
        have, and so which columns may choose a partition. Raises DispatchConfigError,
        PatternError."""
        self.default_topic = default_topic
        self.warnings: list[str] = []
        self.selectors = ColumnSelectors.parse(selectors)
        self._protocol = protocol
        default = TopicExpression(default_topic)
        self.rules = (*(self._read(rule) for rule in rules), Rule(None, Method.TABLE, default))
        # Whether a rule or selector names columns, which a table may not have. Otherwise `check` finds nothing.
        self.names_columns = bool(self.selectors) or any(rule.columns or rule.index for rule in self.rules)
        self._found: dict[tuple[str, str], Rule] = {}

    def _read(self, rule: DispatchRule) -> Rule:
        patterns = TablePatterns.parse(rule.matcher)
        where = f"dispatch rule for {', '.join(rule.matcher)}"
        if rule.partition and rule.dispatcher:
            raise DispatchConfigError(f"{where}: partition and dispatcher are one setting; give only partition")
        name = (rule.partition or rule.dispatcher).lower()
        method = _METHODS.get(name, Method.TABLE)
        if name not in _METHODS:
            self.warnings.append(f"{where}: partition {name!r} is not known; its tables are dispatched by table")
        if name == "rowid":
            self.warnings.append(f"{where}: partition 'rowid' is an old name of index-value; use index-value")
        if rule.columns and method is not Method.COLUMNS:
            raise DispatchConfigError(f"{where}: columns are given, and partition is {name or 'default'!r}")
        if rule.index and method is not Method.INDEX_VALUE:
            raise DispatchConfigError(f"{where}: an index is given, and partition is {name or 'default'!r}")
        if method is Method.COLUMNS and not rule.columns:
            raise DispatchConfigError(f"{where}: partition is 'columns', and none are given")
        topic = TopicExpression.parse(rule.topic or self.default_topic, self._protocol)
        return Rule(patterns, method, topic, rule.index, rule.columns)

    def rule(self, schema: str, table: str) -> Rule:
        found = self._found.get((schema, table))
        if found is None:
            found = next(rule for rule in self.rules if rule.match(schema, table))
            self._found[schema, table] = found
        return found

    def topic(self, schema: str, table: str) -> str:
        """Return the topic of a table's events. `table` is "" for an event of a database, which goes to the default
        topic."""
        return self.rule(schema, table).topic.topic(schema, table) if table else self.default_topic

    def topics(self, tables: Iterable[tuple[str, str]]) -> list[str]:
        """Return the topics of these tables and the default topic, each once."""
        return list(dict.fromkeys([*(self.topic(*name) for name in tables), self.default_topic]))

    def may_conflict(self, topic: str) -> bool:
        """Return whether a table that is dispatched by conflict could have this topic."""
        return any(rule.method is Method.CONFLICT and rule.topic.may_be(topic) for rule in self.rules)

    def check(self, table: Table) -> None:
        """Check that the selector and the rule of a table can be applied to it, before it has rows. `table`: with all
        its columns. Raises DispatchError."""
        self.rule(table.schema, table.name).column_indexes(self.selectors.select(table).table)


def _indexes_of(table: Table, names: Sequence[str]) -> tuple[int, ...]:
    column_indexes = {name.lower(): column_index for name, column_index in table.column_indexes.items()}
    missing = [name for name in names if name.lower() not in column_indexes]
    if missing:
        virtual = {column.name.lower() for column in table.info.columns if column.is_virtual}
        public = {column.name.lower() for column in table.info.public_columns}
        why = "left out by its column selector" if missing[0].lower() in public else "not found"
        why = "virtual generated columns, which rows do not have" if missing[0].lower() in virtual else why
        raise DispatchError(
            f"table `{table.schema}`.`{table.name}`: columns {why}: {', '.join(missing)}; its dispatch rule names them"
        )
    return tuple(column_indexes[name.lower()] for name in names)


def _indexes_of_index(table: Table, name: str) -> tuple[int, ...]:
    where = f"table `{table.schema}`.`{table.name}`: its dispatch rule names the index {name}"
    info = table.info
    found = next((index for index in info.indexes if index.is_public and index.name.lower() == name.lower()), None)
    if name.lower() == "primary" and info.handle_column is not None:
        found = info.primary_index()
    if found is None:
        raise DispatchError(
            f"table `{table.schema}`.`{table.name}`: index not found: {name}; its dispatch rule names it"
        )
    if not (found.unique or found.primary):
        raise DispatchError(f"{where}, which is not unique")
    columns = info.index_columns(found)
    if any(column.is_virtual for column in columns):
        raise DispatchError(f"{where}, which has virtual generated columns, whose values are not in the rows")
    left_out = [column.name for column in columns if column.name not in table.column_indexes]
    if left_out:
        raise DispatchError(f"{where}, whose columns {', '.join(left_out)} are left out by its column selector")
    return tuple(table.column_indexes[column.name] for column in columns)
