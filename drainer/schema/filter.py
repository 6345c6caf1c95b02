"""Replication filter: which databases and tables are replicated, and the event filter: which kinds of changes and which
DDLs of them are left out. Pure.

A pattern that begins with `~` is an unanchored regular expression of the rest; any other is a whole name. Both
ignore case. The original also reads whole names as regular expressions (`a.b` matches `axb`); here it is compared
literally.

Lists of patterns in the syntax of TiDB's table-filter and column-filter: an empty pattern and one that begins with `#`
are left out. A pattern that begins with `!` excludes what it matches, and the last pattern that matches decides.

The original's drainer configures the event filter with `binlog-filter-rule` and `table-migrate-rule` (D-FI-04,
D-FI-05), TiCDC with `event-filters`. A rule chooses tables, and names events or patterns of DDL texts. An event that
any rule of its table names is left out.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from binlog.errors import ConfigError
from binlog.tidb.job import ActionType

from drainer.batch.work import Kind

_PLAIN = re.compile(r"[A-Za-z0-9_$\u0080-\U0010ffff]+")
_QUOTED = re.compile(r'"((?:[^"]|"")+)"|`((?:[^`]|``)+)`')
_REGEX = re.compile(r"/((?:[^/\\]|\\.)+)/", re.DOTALL)
# What TiDB, whose regular expressions are Go's, reads otherwise or not at all.
_POSIX_CLASS = re.compile(r"\[:\^?[a-z]+:\]")
_LETTER_ESCAPE = re.compile(r"\\([A-Za-z0-9])")
_MIXED_RANGE = re.compile(r"[A-Z]-[^A-Z]")  # has more than letters, and in lower case it would have less
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_CLASS = re.compile(r"\[(!?)((?:[^\]\\]|\\.)+)\]")
_WILD = {"*": "(?s:.*)", "?": "(?s:.)"}
_EVERY_NAME = rf"\A{_WILD['*']}\Z"

Name = re.Pattern[str]
# Parse a pattern without its `!`. The second argument begins the text of errors.
Parse = Callable[[str, str], tuple[Name, ...]]


class PatternError(ConfigError):
    """A pattern is invalid. The text names it."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern of a list: for tables (database and table name) or for columns (column name).

    Its `repr` is part of what determines how a batch is split (rule 16: same chunks), so it has all names complete:
    Python's own `repr` of a regular expression ends after 200 characters."""

    is_positive: bool
    names: tuple[Name, ...]

    def __repr__(self) -> str:
        return f"_Pattern({', '.join([str(self.is_positive), *(repr(name.pattern) for name in self.names)])})"

    def match(self, *names: str) -> bool:
        return all(pattern.search(name) for pattern, name in zip(self.names, names, strict=False))


def patterns_of(texts: Iterable[str], what: str, spaces: str | None, parse: Parse) -> tuple[Pattern, ...]:
    """Parse a list of patterns. `what`: what a pattern is called in errors; `spaces`: the characters that are stripped,
    None: all white space. Raises PatternError naming the pattern."""
    stripped = [text.strip(spaces) for text in texts]
    return tuple(_pattern_of(text, what, parse) for text in stripped if text and not text.startswith("#"))


def _pattern_of(pattern: str, what: str, parse: Parse) -> Pattern:
    is_positive = not pattern.startswith("!")
    text = pattern if is_positive else pattern[1:]
    named = f"{what} {pattern!r}"
    if text.startswith("@"):
        raise PatternError(f"{named}: patterns cannot be read from another file")
    return Pattern(is_positive, parse(text, named))


def matches_every_name(name: Name) -> bool:
    """Return whether this is the pattern `*`."""
    return name.pattern == _EVERY_NAME


def name_pattern(text: str, at: int, what: str) -> tuple[Name | None, int]:
    """Parse the pattern of the name that begins at `at`. Return the pattern, None if the name is missing, and where it
    ends: at a point or at the end of the text, unless the text is invalid. Raises PatternError whose text begins
    with `what`."""
    found = _REGEX.match(text, at)
    if found is not None:
        return _regex(found[1], what), found.end()
    begin, parts = at, []
    while at < len(text) and text[at] != ".":
        plain, quoted, chars = _PLAIN.match(text, at), _QUOTED.match(text, at), _CLASS.match(text, at)
        if plain is not None:
            parts.append(re.escape(lower(plain[0])))
            at = plain.end()
        elif quoted is not None:
            name = quoted[1].replace('""', '"') if quoted[1] is not None else quoted[2].replace("``", "`")
            parts.append(re.escape(lower(name)))
            at = quoted.end()
        elif chars is not None:
            parts.append(_class(chars[2], what, is_negative=bool(chars[1])))
            at = chars.end()
        elif text[at] in _WILD:
            parts.append(_WILD[text[at]])
            at += 1
        elif text[at] == "\\" and at + 1 < len(text):
            _check_escapes(text[at : at + 2], what)
            parts.append(re.escape(lower(text[at + 1])))
            at += 2
        else:
            raise PatternError(unexpected(what, text[at]))
    if at == begin:
        return None, at
    return _compiled(f"\\A{''.join(parts)}\\Z", what, 0), at


def lower(name: str) -> str:
    """Convert to lower case letter by letter, as TiDB does. Python's `lower` of a text has a separate letter for the σ
    at the end of a word."""
    return name.lower() if name.isascii() else "".join(letter.lower()[:1] for letter in name)


def _class(chars: str, what: str, *, is_negative: bool) -> str:
    """Return a wildcard's class as a regular expression: `-` makes ranges, a backslash quotes the next character."""
    _check_escapes(chars, what)
    keeps_case = _MIXED_RANGE.search(chars) is not None
    shown = chars if keeps_case else lower(chars)
    found = "".join(re.escape(one.lstrip("\\") or "\\") if one != "-" else "-" for one in re.findall(r"\\.|.", shown))
    made = f"[{'^' * is_negative}{found}]"
    return f"(?i:{made})" if keeps_case else made


def _check_escapes(text: str, what: str) -> None:
    """Refuse a backslash before a letter or digit outside regular expressions, where TiDB reserves it."""
    found = _LETTER_ESCAPE.search(text.replace("\\\\", ""))
    if found is not None:
        raise PatternError(f"{what}: {found[0]} is not an escape, except in a regular expression: /…/")


def _regex(text: str, what: str) -> Name:
    r"""Compile a regular expression with Go's meaning: \w, \d, \s and \b are ASCII only. Names are converted to lower
    case before they are searched."""
    posix = _POSIX_CLASS.search(text)
    if posix is not None:
        raise PatternError(f"{what}: write {posix[0]} as a range, such as [a-z]")
    return _compiled(_NOT_ASCII.sub(lambda letters: lower(letters[0]), text), what, re.ASCII | re.IGNORECASE)


def _compiled(text: str, what: str, flags: int) -> Name:
    try:
        return re.compile(text, flags)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise PatternError(f"{what}: {error}") from None


def unexpected(what: str, char: str) -> str:
    """Return the text of the error for an unexpected character."""
    return f"{what}: unexpected {char!r}; put names with such characters in backquotes"


# Patterns of tables, in the syntax of TiDB's table-filter (TiCDC, BR, Lightning). Pure.
#
#     db.tbl        one table                         !db.tbl       not this one; the last pattern that matches decides
#     db.*  db.t?   any characters, one character     db.t[0-9]     one of these characters, [!0-9]: none of them
#     `a.b`."c d"   names with other characters       /^t[0-9]+$/   a regular expression, searched for
#
# A name has letters, digits, `_`, `$` and characters beyond ASCII; any other must be in quotes or after a backslash.

_EXPECTED = "expected database.table, such as 'db.*'"


@dataclass(frozen=True, slots=True)
class TablePatterns:
    """A list of patterns. The last one that matches a table decides. A table that no pattern matches is not
    selected."""

    patterns: tuple[Pattern, ...]
    ignores_case: bool = True  # all do; it is part of the `repr`, which is recorded as that of a Pattern is

    @classmethod
    def parse(cls, patterns: Iterable[str], *, whose: str = "dispatch rule", what: str = "matcher") -> TablePatterns:
        """Parse the patterns. `what`, `whose`: words for a pattern and for the owner of the list, for error texts.
        Raises PatternError for an invalid pattern and for an empty list."""
        made = patterns_of(patterns, what, None, _names)
        if not made:
            raise PatternError(f"a {whose} has no {what}: give patterns of tables, such as 'db.*'")
        return cls(made)

    def match(self, schema: str, table: str) -> bool:
        names = (lower(schema), lower(table))
        return next((one.is_positive for one in reversed(self.patterns) if one.match(*names)), False)

    def match_schema(self, schema: str) -> bool:
        """Return whether a DDL of a database is selected. As in TiDB's table-filter, it is if the patterns may select
        a table of that database. A pattern with `!` excludes a database only if it excludes all its tables."""
        name = lower(schema)
        for one in reversed(self.patterns):
            if one.match(name) and (one.is_positive or matches_every_name(one.names[1])):
                return one.is_positive
        return False


def _names(text: str, named: str) -> tuple[Name, ...]:
    schema, at = name_pattern(text, 0, named)
    if schema is None or not text.startswith(".", at):
        raise PatternError(f"{named}: {_EXPECTED}")
    table, at = name_pattern(text, at + 1, named)
    if table is None:
        raise PatternError(f"{named}: {_EXPECTED}")
    if at != len(text):
        raise PatternError(unexpected(named, text[at]))
    return schema, table


# Where every program of this project and the original's drainer keep their positions. Upstream's own, in a chain of
# clusters, is never replicated: its rows and DDLs would change or remove the destination's.
OWN_SCHEMA = "tidb_binlog"
IGNORE_SCHEMAS_DEFAULT = ("INFORMATION_SCHEMA", "PERFORMANCE_SCHEMA", "METRICS_SCHEMA", "mysql")

# The table in which a drainer with loopback-control marks what it writes, so that the drainer of the other direction
# recognizes it. The database is the original's, too, and every drainer creates both at its destination itself.
MARK_SCHEMA = "retl"
MARK_TABLE = "_drainer_repl_mark"

# Databases that TiCDC never replicates, in addition to those above (tiflow, pkg/filter/utils.go).
_SYSTEM_OF_TICDC = frozenset({"inspection_schema", "sys", "tidb_cdc", "lightning_task_info", "workload_schema"})

TablePattern = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Filter:
    """Allows a table that matches `do_dbs` or `do_tables` (if either is given) and no ignore list. OWN_SCHEMA never.

    A DDL on a database has the table name "", so CREATE DATABASE passes an allow list only through `do_dbs`.
    `rules`: TiCDC's filter rules, which a table must match, too; a database, if a table of it may match. `marked`: the
    table of marks and its database are left out.
    """

    do_dbs: tuple[re.Pattern[str], ...] = ()
    do_tables: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = ()
    ignore_tables: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = ()
    ignore_schemas: tuple[re.Pattern[str], ...] = ()
    rules: TablePatterns | None = None
    marked: bool = False
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
        marked: bool = False,
    ) -> Filter:
        """Make a filter from the configured patterns. `rules`: empty: all tables. Raises ConfigError that names the
        list and the pattern."""
        return cls(
            tuple(_compile("replicate-do-db", p) for p in do_dbs),
            _pairs("replicate-do-table", do_tables),
            _pairs("ignore-table", ignore_tables),
            tuple(_compile("ignore-schemas", p) for p in ignore_schemas),
            TablePatterns.parse(rules, whose="filter", what="rule") if rules else None,
            marked,
        )

    def allows(self, schema: str, table: str = "") -> bool:
        """Whether a table, or with table "" the database itself, is replicated."""
        key = (schema, table)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = not self.why_not(schema, table)
        return known

    def why_not(self, schema: str, table: str = "") -> str:
        """The setting that leaves it out; empty if it is replicated."""
        if schema.lower() == OWN_SCHEMA:
            return f"the drainer's own {OWN_SCHEMA}"
        if self.marked and (is_mark_table(schema, table) or (not table and schema.lower() == MARK_SCHEMA)):
            return "loopback-control"
        if self.rules is not None:
            selected = self.rules.match(schema, table) if table else self.rules.match_schema(schema)
            if not selected or schema.lower() in _SYSTEM_OF_TICDC:
                return "filter.rules"
        listed = self.do_dbs or self.do_tables
        if listed and not (_any(self.do_dbs, schema) or _any_pair(self.do_tables, schema, table)):
            return "replicate-do-db, replicate-do-table"
        if _any(self.ignore_schemas, schema):
            return "ignore-schemas"
        return "ignore-table" if _any_pair(self.ignore_tables, schema, table) else ""


def is_mark_table(schema: str, table: str) -> bool:
    return (schema.lower(), table.lower()) == (MARK_SCHEMA, MARK_TABLE)


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
            tuple(_searched(text, owner) for text in texts),
        )


def _searched(text: str, owner: str) -> re.Pattern[str]:
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
        """Return whether the rules may ignore a DDL that removes rows of a table, such as TRUNCATE."""
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
