"""Routes, columns and rows: what a rule makes of an upstream table at the destination. Pure.

A rule chooses tables by patterns, and of each kind the first rule that matches a table counts. The result for a table
is an `AppliedRules`: the destination's TableInfo, from which statements are made and onto whose columns rows are
decoded, and what is done to the values of its rows.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Final, Literal, Protocol, TypeVar

from binlog.errors import BinlogError, ConfigError
from binlog.tidb.document import Json, cistr
from binlog.tidb.flatten import flatten
from binlog.tidb.table import ColumnInfo, IndexInfo, TableInfo
from binlog.tidb.types import STRINGS

from drainer.ddl.lexer import tokens
from drainer.ddl.table_diff import name_of
from drainer.schema.errors import RuleRefused
from drainer.schema.filter import Wildcards
from drainer.schema.merged import Destination, Part, Union, merged

# The least length of a column that holds hashes, in hexadecimal digits of four bits; longer in a unique key, so that
# two values never get the same.
HASH_DIGITS_MIN: Final = 16
KEY_HASH_DIGITS_MIN: Final = 32

NewColumn = Literal["pass", "leave-out", "stop"]


class MaskKind(Enum):
    CONSTANT = "constant"
    HASH = "hash"
    LAST_FOUR = "last-four"


@dataclass(frozen=True, slots=True)
class Mask:
    """What replaces a value that is not NULL. `text`: the constant, or the key of the hash."""

    kind: MaskKind
    text: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str, hash_key: str, owner: str) -> Mask:
        """Raises ConfigError, naming `owner`."""
        name, colon, constant = text.partition(":")
        if name == "constant" and colon:
            return cls(MaskKind.CONSTANT, constant)
        if text not in ("hash", "last-four"):
            raise ConfigError(f"{owner}: {text!r} is no mask: give 'constant:TEXT', 'hash' or 'last-four'")
        if text == "hash" and not hash_key:
            raise ConfigError(f"{owner}: the mask 'hash' needs syncer.hash-key")
        return cls(MaskKind(text), hash_key if text == "hash" else "")

    def why_not(self, column: ColumnInfo, *, unique: bool) -> str:
        """Why it cannot be used for a column, '' if it can. `unique`: a unique key has the column."""
        if unique and self.kind is not MaskKind.HASH:
            return "a unique key has it, so only 'hash' keeps its values apart"
        if self.kind is MaskKind.CONSTANT:
            try:
                flatten(self.text, column.type)
            except (ValueError, TypeError, BinlogError) as error:
                return f"{self.text!r} is no value of its type: {error}"
            if column.type.tp in STRINGS and 0 <= column.type.flen < len(self.text):
                return f"its length is {column.type.flen}, and {self.text!r} is longer"
            return ""
        if column.type.tp not in STRINGS or (self.kind is MaskKind.LAST_FOUR and column.type.charset == "binary"):
            return f"its type is {column.type.mysql_name}, which '{self.kind.value}' is not for"
        least = KEY_HASH_DIGITS_MIN if unique else HASH_DIGITS_MIN
        if self.kind is MaskKind.HASH and 0 <= column.type.flen < least:
            return f"its length is {column.type.flen}, and a hash needs {least}"
        return ""


class Condition(Protocol):
    """Which rows are replicated (drainer.row.rules)."""

    @property
    def columns(self) -> frozenset[str]:
        """The names in it, in lower case."""
        ...

    def check(self, columns: Mapping[str, ColumnInfo]) -> None:
        """Raise ConfigError for a comparison that the type of a column does not allow."""
        ...


@dataclass(frozen=True, slots=True)
class Route:
    """The name of tables at the destination. `target_table` '': their own. `source_column`: the column that keeps
    several tables of one name apart, '': they are refused."""

    label: str
    tables: Wildcards
    target_schema: str
    target_table: str = ""
    source_column: str = ""

    def named(self, table: str) -> tuple[str, str]:
        return self.target_schema, self.target_table or table


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """What the destination gets of the columns of tables. `leave_out`, `masks`, `known`: names, `leave_out` and `known`
    with wildcards; `new_column`: what happens to a column that none of them names."""

    label: str
    tables: Wildcards
    leave_out: tuple[str, ...] = ()
    masks: tuple[tuple[str, Mask], ...] = ()
    new_column: NewColumn = "pass"
    known: tuple[str, ...] = ()

    def leaves_out(self, name: str) -> bool:
        """Whether a column is left out. Raises ConfigError for a new column if `new_column` is stop."""
        if any(_matches(pattern, name) for pattern in self.leave_out):
            return True
        names = (*self.known, *(masked for masked, _ in self.masks))
        if self.new_column == "pass" or any(_matches(pattern, name) for pattern in names):
            return False
        if self.new_column == "stop":
            raise ConfigError(f"column {name} is new: add it to known, leave-out or mask of the rule")
        return True

    def mask(self, name: str) -> Mask | None:
        return next((mask for masked, mask in self.masks if masked.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True)
class RowRule:
    """Which rows of tables the destination has."""

    label: str
    tables: Wildcards
    where: Condition


@dataclass(frozen=True, slots=True)
class AppliedRules:
    """What rules make of one table. `info`: the destination's; `masks`: by column id; `left_out`: ids of the columns
    that only upstream's table has; `rules`: the labels of those that decided; `source_column`: '' if not merged."""

    schema: str
    info: TableInfo
    masks: tuple[tuple[int, Mask], ...]
    where: Condition | None
    left_out: frozenset[int]
    rules: tuple[str, ...]
    source_column: str = ""


_Rule = TypeVar("_Rule", Route, ColumnRule, RowRule)


class Rules:
    """All rules of a drainer."""

    def __init__(
        self, routes: Sequence[Route] = (), columns: Sequence[ColumnRule] = (), rows: Sequence[RowRule] = ()
    ) -> None:
        self._routes, self._columns, self._rows = routes, columns, rows
        self.merges = any(route.source_column for route in routes)  # whether several tables may go to one name
        self._known: dict[int, tuple[str, TableInfo, AppliedRules | None]] = {}

    def __bool__(self) -> bool:
        return bool(self._routes or self._columns or self._rows)

    def name(self, schema: str, table: str) -> tuple[str, str]:
        """The name of a table at the destination."""
        route = _first(self._routes, schema, table)
        return route.named(table) if route is not None else (schema, table)

    def takes_all(self, schema: str) -> bool:
        """Whether every table of a database goes to other names."""
        return any(route.tables.match_schema(schema) for route in self._routes)

    def shares(self, schema: str) -> bool:
        """Whether the destination's database of this name may hold tables of other databases, or other tables."""
        return self.takes_all(schema) or any(route.target_schema.lower() == schema.lower() for route in self._routes)

    def hides(self, schema: str, info: TableInfo) -> bool:
        """Whether a view, sequence or temporary table is not replicated because rules change tables of its name."""
        if info.has_rows:
            return False
        return bool(_first(self._routes, schema, info.name) or _first(self._columns, schema, info.name))

    def without_routes(self) -> Rules:
        return Rules((), self._columns, self._rows)

    def of_values(self, schema: str, table: str) -> tuple[ColumnRule | None, RowRule | None]:
        """The rules for the columns and rows of a table."""
        return _first(self._columns, schema, table), _first(self._rows, schema, table)

    def applied(
        self, schema: str, info: TableInfo, unions: Mapping[Destination, Union] = MappingProxyType({})
    ) -> AppliedRules | None:
        """What the rules make of a table; None: nothing. `unions`: of the tables that are merged; one that is not in
        them is alone. Raises RuleRefused, naming rule, table and column."""
        own, part = self._own(schema, info), self.part(schema, info)
        if own is None or part is None:
            return own
        return replace(own, info=merged(part, unions.get(part.destination) or Union.of([part])))

    def _own(self, schema: str, info: TableInfo) -> AppliedRules | None:
        known = self._known.get(info.id)
        if known is None or known[0] != schema or known[1] is not info:
            made = self._apply(schema, info) if info.has_rows else None
            known = self._known[info.id] = schema, info, made
        return known[2]

    def part(self, schema: str, info: TableInfo) -> Part | None:
        """The table as a part of a merged one; None if it is not merged."""
        own = self._own(schema, info) if self.merges else None
        if own is None or not own.source_column:
            return None
        return Part(f"{schema}.{info.name}", own.schema, own.info, own.source_column)

    def _apply(self, schema: str, info: TableInfo) -> AppliedRules | None:
        route = _first(self._routes, schema, info.name)
        columns, rows = self.of_values(schema, info.name)
        named = route.named(info.name) if route is not None else (schema, info.name)
        gone: frozenset[int] = frozenset()
        masks: tuple[tuple[int, Mask], ...] = ()
        made = replace(info, name=named[1], rest=self._with_parents(schema, info))
        if columns is not None:
            with _refusing(columns.label, schema, info):
                gone, masks = _chosen(columns, info)
                made = _without(made, gone, frozenset(column_id for column_id, _ in masks))
        if rows is not None:
            with _refusing(rows.label, schema, info):
                _check_condition(rows.where, info, gone)
        alters = (named, made) != ((schema, info.name), info)
        column = route.source_column if route is not None else ""
        if not alters and not masks and rows is None and not column:
            return None
        labels = tuple(rule.label for rule in (route, columns, rows) if rule is not None)
        labels += (f"source-column {column}",) * bool(column)
        return AppliedRules(named[0], made, masks, rows.where if rows is not None else None, gone, labels, column)

    def _with_parents(self, schema: str, info: TableInfo) -> Mapping[str, Json]:
        """`rest` with foreign keys to the destination's parents. One of a table whose columns or rows have rules, or
        whose parent's have, is left out: the parent may lack the row."""
        if not info.foreign_keys:
            return info.rest
        kept: list[Json] = []
        for key in info.foreign_keys:
            assert isinstance(key, Mapping)
            parent = name_of(key.get("ref_schema")) or schema, name_of(key.get("ref_table"))
            route = _first(self._routes, *parent)
            merges = route is not None and route.source_column  # its key is another one
            if not merges and not any((*self.of_values(*parent), *self.of_values(schema, info.name))):
                named = self.name(*parent)
                changed = {"ref_schema": cistr(named[0]), "ref_table": cistr(named[1])}
                moves = named != parent or self.name(schema, info.name)[0] != schema
                kept.append({**key, **changed} if moves else key)
        return {**info.rest, "fk_info": kept}

    def parts(self, tables: Iterable[tuple[str, TableInfo]]) -> dict[Destination, dict[int, Part]]:
        """The tables that are merged, by destination and id. Raises RuleRefused if two others go to one name."""
        seen: dict[tuple[str, str], tuple[str, TableInfo]] = {}
        found: dict[Destination, dict[int, Part]] = {}
        for schema, info in tables if self._routes else ():
            named = self.name(schema, info.name)
            other = seen.setdefault((named[0].lower(), named[1].lower()), (schema, info))
            part, first = self.part(schema, info), self.part(*other)
            if other[1].id != info.id and not (part and first and part.destination == first.destination):
                raise RuleRefused(
                    f"tables {other[0]}.{other[1].name} and {schema}.{info.name} both go to {named[0]}.{named[1]}, "
                    f"where rows of one could replace rows of the other: give them different names in syncer.routes, "
                    f"or the same source-column, which keeps them apart"
                )
            if part is not None:
                found.setdefault(part.destination, {})[info.id] = part
        return found

    def unions(self, tables: Iterable[tuple[str, TableInfo]]) -> dict[Destination, Union]:
        """The tables that are merged. Raises RuleRefused if other tables go to one name, or these cannot be merged."""
        return {destination: Union.of([*parts.values()]) for destination, parts in self.parts(tables).items()}

    def warnings(self, tables: Sequence[tuple[str, TableInfo]]) -> Iterator[str]:
        """Say which rules, and which names of columns in them, match nothing of these tables."""
        rules: tuple[Route | ColumnRule | RowRule, ...] = (*self._routes, *self._columns, *self._rows)
        for rule in rules:
            chosen = [info for schema, info in tables if rule.tables.match(schema, info.name)]
            if not chosen:
                yield f"{rule.label}: no table matches {rule.tables.schema}.{rule.tables.table or '*'}"
            elif isinstance(rule, ColumnRule):
                names = {column.name for info in chosen for column in info.public_columns}
                for pattern in (*rule.leave_out, *rule.known, *(masked for masked, _ in rule.masks)):
                    if not any(_matches(pattern, name) for name in names):
                        yield f"{rule.label}: no table that it matches has a column {pattern}"


def _first(rules: Sequence[_Rule], schema: str, table: str) -> _Rule | None:
    return next((rule for rule in rules if rule.tables.match(schema, table)), None)


def _matches(pattern: str, name: str) -> bool:
    return fnmatch.fnmatchcase(name.lower(), pattern.lower())


@contextmanager
def _refusing(label: str, schema: str, info: TableInfo) -> Iterator[None]:
    """Turns a ConfigError into a RuleRefused that names rule and table."""
    try:
        yield
    except ConfigError as error:
        raise RuleRefused(f"{label} cannot be applied to table {schema}.{info.name}: {error}") from None


def _chosen(rule: ColumnRule, info: TableInfo) -> tuple[frozenset[int], tuple[tuple[int, Mask], ...]]:
    """(ids of the columns that are left out, masks by column id). Raises ConfigError."""
    primary = info.primary_index()
    held = {column.id for column in info.index_columns(primary)} if primary is not None else set()
    unique = {column.id for index in info.unique_indexes() for column in info.index_columns(index)}
    parts = [part for index in info.unique_indexes() for part in index.columns]
    begun = {info.columns[part.offset].id for part in parts if 0 <= part.length < KEY_HASH_DIGITS_MIN}
    gone, masks = set(), []
    for column in info.columns:
        if column.hidden or not column.is_public:
            continue
        if rule.leaves_out(column.name):
            if column.id in held:
                raise ConfigError(f"column {column.name} cannot be left out: it is part of the primary key")
            gone.add(column.id)
        elif (mask := rule.mask(column.name)) is not None:
            why = "it is generated" if column.is_generated else mask.why_not(column, unique=column.id in unique)
            why = why or ("a unique key has only its beginning, which hashes may share" if column.id in begun else "")
            if why:
                raise ConfigError(f"column {column.name} cannot be masked: {why}")
            masks.append((column.id, mask))
    return frozenset(gone), tuple(masks)


def _mentions(expression: str, names: Collection[str]) -> str:
    """Return the first of `names`, of columns and in lower case, that an expression has; '' if it has none."""
    found = (token.value.lower() for token in tokens(expression) if token.kind in ("name", "word"))
    return next((name for name in found if name in names), "")


def _without(info: TableInfo, gone: frozenset[int], masked: frozenset[int]) -> TableInfo:
    """The table without columns, and without the indexes and CHECKs that need them or the values of masked ones. Raises
    ConfigError if something else needs them."""
    if not gone and not masked:
        return info
    named = {column.name.lower() for column in info.columns if column.id in gone | masked}
    needs = {column.id: _mentions(column.generated_expr, named) for column in info.columns if column.is_generated}
    for column in info.columns:
        if needs.get(column.id) and column.id not in gone and not column.hidden:
            raise ConfigError(
                f"column {column.name} is generated from {needs[column.id]}, which is left out or masked: leave it out "
                "too"
            )
    parts = info.partition
    if parts is not None and parts.enable:
        needed = _mentions(parts.expr, named) or next((name for name in parts.columns if name.lower() in named), "")
        if needed:
            raise ConfigError(f"column {needed} cannot be left out or masked: the table is partitioned by it")
    gone |= {column_id for column_id, name in needs.items() if name}
    kept = [column for column in info.columns if column.id not in gone]
    offsets = {column.id: offset for offset, column in enumerate(kept)}
    rules = info.rest.get("constraint_info")
    rest = dict(info.rest)
    if isinstance(rules, list):
        texts = [(rule, rule.get("expr_string") if isinstance(rule, Mapping) else "") for rule in rules]
        rest["constraint_info"] = [rule for rule, text in texts if not _mentions(str(text or ""), named)]
    return replace(
        info,
        columns=tuple(replace(column, offset=offset) for offset, column in enumerate(kept)),
        indexes=tuple(index for old in info.indexes if (index := _moved(old, info, offsets)) is not None),
        rest=rest,
    )


def _moved(index: IndexInfo, info: TableInfo, offsets: Mapping[int, int]) -> IndexInfo | None:
    """The index with the new offsets of its columns; None if one of them is left out."""
    ids = [info.columns[part.offset].id for part in index.columns]
    if not all(column_id in offsets for column_id in ids):
        return None
    parts = zip(index.columns, ids, strict=True)
    return replace(index, columns=tuple(replace(part, offset=offsets[column_id]) for part, column_id in parts))


def _check_condition(where: Condition, info: TableInfo, gone: Collection[int]) -> None:
    columns = {column.name.lower(): column for column in info.public_columns}
    for name in sorted(where.columns):
        column = columns.get(name)
        if column is None:
            raise ConfigError(f"where: the table has no column {name}")
        if column.is_generated or column.id in gone:
            raise ConfigError(f"where: column {name} is {'generated' if column.is_generated else 'left out'}")
    where.check(columns)
