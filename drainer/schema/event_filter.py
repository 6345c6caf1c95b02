"""Event filter: which kinds of changes and which DDLs of a replicated table are left out. Pure.

The original's drainer configures it with `binlog-filter-rule` and `table-migrate-rule` (D-FI-04, D-FI-05), TiCDC with
`event-filters`. A rule chooses tables, and names events or patterns of DDL texts. An event that any rule of its table
names is left out.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from binlog.errors import ConfigError
from binlog.tidb.job import ActionType

from drainer.batch.work import Kind
from drainer.schema.filter import TablePatterns

_A = ActionType
_OF_INDEXES: Final = frozenset(
    {_A.ADD_INDEX, _A.DROP_INDEX, _A.DROP_INDEXES, _A.RENAME_INDEX, _A.ADD_PRIMARY_KEY, _A.DROP_PRIMARY_KEY}
)
# Jobs that no statement ALTER TABLE gives.
_NO_ALTER_TABLE: Final = frozenset(
    {
        _A.NONE, _A.CREATE_SCHEMA, _A.DROP_SCHEMA, _A.MODIFY_SCHEMA_CHARSET_AND_COLLATE, _A.RECOVER_SCHEMA,
        _A.MODIFY_SCHEMA_DEFAULT_PLACEMENT, _A.CREATE_TABLE, _A.CREATE_TABLES, _A.DROP_TABLE, _A.RECOVER_TABLE,
        _A.REPAIR_TABLE, _A.TRUNCATE_TABLE, _A.RENAME_TABLE, _A.RENAME_TABLES, _A.CREATE_VIEW, _A.DROP_VIEW,
        _A.CREATE_SEQUENCE, _A.ALTER_SEQUENCE, _A.DROP_SEQUENCE, _A.LOCK_TABLE, _A.UNLOCK_TABLE,
        _A.CREATE_PLACEMENT_POLICY, _A.ALTER_PLACEMENT_POLICY, _A.DROP_PLACEMENT_POLICY, _A.FLASHBACK_CLUSTER,
        _A.CREATE_RESOURCE_GROUP, _A.ALTER_RESOURCE_GROUP, _A.DROP_RESOURCE_GROUP,
    }
)  # fmt: skip
_CREATE_SCHEMA: Final = frozenset({_A.CREATE_SCHEMA})
_DROP_SCHEMA: Final = frozenset({_A.DROP_SCHEMA})
_ALTER_SCHEMA: Final = frozenset({_A.MODIFY_SCHEMA_CHARSET_AND_COLLATE})
# Events that have the name of the one job that they mean.
_OF_ONE_JOB: Final = (
    "drop table", "recover table", "truncate table", "create view",
    "drop view", "modify column", "set default value", "add primary key",
    "drop primary key", "rename index", "alter index visibility", "rebase auto id",
    "modify table comment", "modify table charset and collate", "add table partition", "drop table partition",
    "truncate table partition", "exchange table partition", "alter table partitioning", "alter ttl info",
    "alter ttl remove", "multi schema change",
)  # fmt: skip
# Names of events, and the jobs that each of them means.
DDL_EVENTS: Final[Mapping[str, frozenset[ActionType]]] = {
    "all ddl": frozenset(ActionType),
    "create schema": _CREATE_SCHEMA,
    "create database": _CREATE_SCHEMA,
    "drop schema": _DROP_SCHEMA,
    "drop database": _DROP_SCHEMA,
    "alter schema": _ALTER_SCHEMA,
    "alter database": _ALTER_SCHEMA,
    "modify schema charset and collate": _ALTER_SCHEMA,
    "create table": frozenset({_A.CREATE_TABLE, _A.CREATE_TABLES}),
    "rename table": frozenset({_A.RENAME_TABLE, _A.RENAME_TABLES}),
    "create index": frozenset({_A.ADD_INDEX}),
    "drop index": frozenset({_A.DROP_INDEX, _A.DROP_INDEXES}),
    "alter table": frozenset(ActionType) - _NO_ALTER_TABLE | _OF_INDEXES,
    "add column": frozenset({_A.ADD_COLUMN, _A.ADD_COLUMNS}),
    "drop column": frozenset({_A.DROP_COLUMN, _A.DROP_COLUMNS}),
    "reorganize table partition": frozenset({_A.REORGANIZE_PARTITION}),
    "remove table partitioning": frozenset({_A.REMOVE_PARTITIONING}),
    **{name: frozenset({ActionType[name.upper().replace(" ", "_")]}) for name in _OF_ONE_JOB},
}
ROW_EVENTS: Final[Mapping[str, frozenset[Kind]]] = {
    "all dml": frozenset(Kind),
    "insert": frozenset({Kind.INSERT}),
    "update": frozenset({Kind.UPDATE}),
    "delete": frozenset({Kind.DELETE}),
}
_REMOVING_ROWS: Final = frozenset(
    {
        _A.DROP_SCHEMA, _A.DROP_TABLE, _A.TRUNCATE_TABLE, _A.DROP_TABLE_PARTITION, _A.TRUNCATE_TABLE_PARTITION,
        _A.EXCHANGE_TABLE_PARTITION,
    }
)  # fmt: skip
_NO_EVENTS: Final = frozenset({"", "none", "none ddl", "none dml"})


@dataclass(frozen=True, slots=True)
class Wildcards:
    """A pattern of names as the original has it: `*` and `?` are any characters and one, `[a-z]` and `[!a-z]` one of
    these and none of them. An empty `table` means all tables of the database, and the database itself."""

    schema: str
    table: str = ""
    is_case_sensitive: bool = False

    def match(self, schema: str, table: str) -> bool:
        return self._match(self.schema, schema) and (not self.table or self._match(self.table, table))

    def match_schema(self, schema: str) -> bool:
        return not self.table and self._match(self.schema, schema)

    def _match(self, pattern: str, name: str) -> bool:
        if not self.is_case_sensitive:
            pattern, name = pattern.lower(), name.lower()
        return fnmatch.fnmatchcase(name, pattern)


@dataclass(frozen=True, slots=True)
class EventRule:
    """What is left out of the tables that `tables` matches. `texts` are searched for in a DDL's text."""

    tables: TablePatterns | Wildcards
    kinds: frozenset[Kind]
    jobs: frozenset[ActionType]
    texts: tuple[re.Pattern[str], ...]

    @classmethod
    def create(
        cls, tables: TablePatterns | Wildcards, events: Iterable[str], texts: Iterable[str], *, owner: str
    ) -> EventRule:
        """Make a rule from its configured names of events and regular expressions. `owner` names the rule in errors.
        Raises ConfigError for an unknown event and an invalid expression, naming it."""
        names = [name.strip().lower() for name in events]
        if "all" in names:
            names += ["all dml", "all ddl"]
        for name in names:
            if name not in DDL_EVENTS and name not in ROW_EVENTS and name not in _NO_EVENTS and name != "all":
                known = ", ".join(("all", *ROW_EVENTS, *DDL_EVENTS))
                raise ConfigError(f"{owner}: unknown event {name!r}; the events are: {known}")
        return cls(
            tables,
            frozenset().union(*(ROW_EVENTS.get(name, frozenset()) for name in names)),
            frozenset().union(*(DDL_EVENTS.get(name, frozenset()) for name in names)),
            tuple(_compile(text, owner) for text in texts),
        )


def _compile(text: str, owner: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise ConfigError(f"{owner}: ignore-sql {text!r} is no regular expression: {error}") from None


@dataclass(frozen=True, slots=True)
class EventFilter:
    """All rules of a drainer."""

    rules: Sequence[EventRule] = ()

    def ignored_kinds(self, schema: str, table: str) -> frozenset[Kind]:
        """Return the kinds of changes of a table that are left out."""
        return frozenset().union(*(rule.kinds for rule in self.rules if rule.tables.match(schema, table)))

    def may_keep_rows(self, schema: str, table: str) -> bool:
        """Return whether a DDL that removes rows of a table may be left out."""
        return any(
            rule.texts or rule.jobs & _REMOVING_ROWS
            for rule in self.rules
            if rule.tables.match(schema, table) or rule.tables.match_schema(schema)
        )

    def ignores_ddl(self, job: ActionType, text: str, schema: str, table: str = "") -> bool:
        """Return whether a DDL on a table is left out, or with table "" a DDL on a database. `text`: its statement."""
        return any(
            job in rule.jobs or any(pattern.search(text) for pattern in rule.texts)
            for rule in self.rules
            if (rule.tables.match(schema, table) if table else rule.tables.match_schema(schema))
        )
