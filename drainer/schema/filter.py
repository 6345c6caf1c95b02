"""Replication filter: which databases and tables are replicated. Pure.

A pattern that begins with `~` is an unanchored regular expression of the rest; any other is a whole name. Both
ignore case. The original also reads whole names as regular expressions (`a.b` matches `axb`); here it is compared
literally.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from binlog.errors import ConfigError

from drainer.schema.table_pattern import TablePatterns

# Where every program of this project and the original's drainer keep their positions. Upstream's own, in a chain of
# clusters, is never replicated: its rows and DDLs would change or remove the destination's.
OWN_SCHEMA = "tidb_binlog"
IGNORE_SCHEMAS_DEFAULT = ("INFORMATION_SCHEMA", "PERFORMANCE_SCHEMA", "METRICS_SCHEMA", "mysql")

# Databases that TiCDC never replicates, in addition to those above (tiflow, pkg/filter/utils.go).
_SYSTEM_OF_TICDC = frozenset({"inspection_schema", "sys", "tidb_cdc", "lightning_task_info", "workload_schema"})

TablePattern = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Filter:
    """Allows a table that matches `do_dbs` or `do_tables` (if either is given) and no ignore list. OWN_SCHEMA never.

    A DDL on a database has the table name "", so CREATE DATABASE passes an allow list only through `do_dbs`.
    `rules`: TiCDC's filter rules, which a table must match, too; a database, if a table of it may match.
    """

    do_dbs: tuple[re.Pattern[str], ...] = ()
    do_tables: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = ()
    ignore_tables: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = ()
    ignore_schemas: tuple[re.Pattern[str], ...] = ()
    rules: TablePatterns | None = None
    _known: dict[tuple[str, str], bool] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def create(
        cls,
        *,
        do_dbs: Iterable[str] = (),
        do_tables: Iterable[TablePattern] = (),
        ignore_tables: Iterable[TablePattern] = (),
        ignore_schemas: Iterable[str] = IGNORE_SCHEMAS_DEFAULT,
        rules: Sequence[str] = (),
    ) -> Filter:
        """Make a filter from the configured patterns. `rules`: empty: all tables. Raises ConfigError that names the
        list and the pattern."""
        return cls(
            tuple(_compile("replicate-do-db", p) for p in do_dbs),
            _pairs("replicate-do-table", do_tables),
            _pairs("ignore-table", ignore_tables),
            tuple(_compile("ignore-schemas", p) for p in ignore_schemas),
            TablePatterns.parse(rules, whose="filter", what="rule") if rules else None,
        )

    def allows(self, schema: str, table: str = "") -> bool:
        """Whether a table, or with table "" the database itself, is replicated."""
        key = (schema, table)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._decide(schema, table)
        return known

    def _decide(self, schema: str, table: str) -> bool:
        if schema.lower() == OWN_SCHEMA:
            return False
        if self.rules is not None:
            selected = self.rules.match(schema, table) if table else self.rules.match_schema(schema)
            if not selected or schema.lower() in _SYSTEM_OF_TICDC:
                return False
        listed = self.do_dbs or self.do_tables
        if listed and not (_any(self.do_dbs, schema) or _any_pair(self.do_tables, schema, table)):
            return False
        return not (_any(self.ignore_schemas, schema) or _any_pair(self.ignore_tables, schema, table))


def _any(patterns: Iterable[re.Pattern[str]], name: str) -> bool:
    return any(p.search(name) for p in patterns)


def _any_pair(pairs: Iterable[tuple[re.Pattern[str], re.Pattern[str]]], schema: str, table: str) -> bool:
    return any(s.search(schema) and t.search(table) for s, t in pairs)


def _pairs(name: str, pairs: Iterable[TablePattern]) -> tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]:
    return tuple((_compile(name, schema), _compile(name, table)) for schema, table in pairs)


def _compile(list_name: str, pattern: str) -> re.Pattern[str]:
    if not pattern or pattern == "~":
        raise ConfigError(f"{list_name}: empty name")
    if not pattern.startswith("~"):
        return re.compile(rf"\A{re.escape(pattern)}\Z", re.IGNORECASE)
    try:
        return re.compile(pattern[1:], re.IGNORECASE)
    except re.error as error:
        raise ConfigError(f"{list_name}: {pattern!r} is not a regular expression: {error}") from error
