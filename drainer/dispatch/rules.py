"""Dispatch rules: which topic a table's events go to, which columns they have, and what chooses the partition of each.

The first rule with a matching pattern decides both topic and partition. A table without a matching rule goes to the
default topic and is dispatched by table.

    table, default   a table is in one partition
    index-value      by the handle key, or by the unique index that the rule names
    columns          by the columns that the rule names
    ts               by commit_ts
    conflict         by groups of rows that share unique values (drainer/dispatch/conflict.py); an extension of this
                     project, after the design that TiCDC began with
    rowid            old name of index-value
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from binlog.runtime.fields import Section
from pydantic import Field

from drainer.dispatch import DispatchConfigError, DispatchError
from drainer.dispatch.column_selector import ColumnSelectors, SelectorRule
from drainer.protocol.table import Table
from drainer.schema.filter import TablePatterns

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
