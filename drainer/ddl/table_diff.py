"""Difference of two TableInfos: the changes of one table by a DDL. And the foreign keys and CHECK constraints of one.
Pure.

It covers everything in a TableInfo that a destination may have: columns and their positions, indexes, foreign keys,
CHECK constraints, character set, comment, the base of AUTO_INCREMENT, partitions. TiDB's storage options (AUTO_RANDOM,
SHARD_ROW_ID_BITS, TTL, placement, TiFlash replicas) are ignored."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from binlog.tidb.document import Json
from binlog.tidb.job import ActionType
from binlog.tidb.table import ColumnInfo, IndexInfo, TableInfo
from binlog.tidb.types import FieldType, Flag, SchemaState

from drainer.ddl.lexer import Unexpected, Words, rename_pairs, tokens
from drainer.ddl.mysql_objects import partition_clauses

_ACTIONS: Final = {1: "RESTRICT", 2: "CASCADE", 3: "SET NULL", 4: "NO ACTION", 5: "SET DEFAULT"}
_GENERATED_NAME: Final = re.compile(r"fk_\d+")


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key. `parent_schema` '': that of the table; `on_delete`, `on_update`: SQL action or ''."""

    id: int
    name: str
    columns: tuple[str, ...]
    parent_schema: str
    parent: str
    parent_columns: tuple[str, ...]
    on_delete: str = ""
    on_update: str = ""

    @property
    def is_name_generated(self) -> bool:
        """Whether TiDB may have generated the name: it uses fk_1 in every table, but MySQL needs it unique per
        database."""
        return _GENERATED_NAME.fullmatch(self.name) is not None


@dataclass(frozen=True, slots=True)
class Check:
    """A CHECK constraint; in a TableInfo only with tidb_enable_check_constraint."""

    id: int
    name: str
    expression: str
    enforced: bool = True


def foreign_keys(info: TableInfo) -> tuple[ForeignKey, ...]:
    """The public foreign keys with a parent and columns."""
    found = (_foreign_key(key) for key in info.foreign_keys if isinstance(key, Mapping) and _is_public(key))
    return tuple(key for key in found if key.columns and key.parent and key.parent_columns)


def _foreign_key(key: Mapping[str, Json]) -> ForeignKey:
    return ForeignKey(
        _number(key.get("id")),
        name_of(key.get("fk_name")),
        _names(key.get("cols")),
        name_of(key.get("ref_schema")),
        name_of(key.get("ref_table")),
        _names(key.get("ref_cols")),
        _ACTIONS.get(_number(key.get("on_delete")), ""),
        _ACTIONS.get(_number(key.get("on_update")), ""),
    )


def checks(info: TableInfo) -> tuple[Check, ...]:
    """The public CHECK constraints."""
    found = info.rest.get("constraint_info")
    return tuple(
        Check(
            _number(one.get("id")), name_of(one.get("constraint_name")), str(one.get("expr_string") or ""),
            enforced=one.get("enforced") is not False,
        )
        for one in (found if isinstance(found, list) else ())
        if isinstance(one, Mapping) and _is_public(one) and one.get("expr_string")
    )  # fmt: skip


def _is_public(one: Mapping[str, Json]) -> bool:
    return one.get("state") in (None, int(SchemaState.PUBLIC))


def _number(value: Json | None) -> int:
    return value if isinstance(value, int) else 0


def name_of(value: Json | None) -> str:
    """`{"O": name, "L": …}` or the name itself."""
    if isinstance(value, Mapping):
        value = value.get("O")
    return value if isinstance(value, str) else ""


def _names(value: Json | None) -> tuple[str, ...]:
    return tuple(name_of(part) for part in value) if isinstance(value, list) else ()


# Columns of a table before and after a DDL.


def paired(before: Sequence[ColumnInfo], after: Sequence[ColumnInfo], query: str) -> dict[int, ColumnInfo]:
    """Column id after the DDL → the column before it. Columns keep their id except when a MODIFY or CHANGE rewrote
    them; those are matched by name, or by CHANGE in `query`."""
    old = {column.id: column for column in before}
    pairs = {column.id: old.pop(column.id) for column in after if column.id in old}
    by_name = {column.name.lower(): column for column in old.values()}
    renamed = {new.lower(): was.lower() for was, new in changed_names(query)}
    for column in after:
        name = column.name.lower()
        was = by_name.get(renamed.get(name, name))
        if column.id not in pairs and was is not None and was.id in old:
            pairs[column.id] = old.pop(was.id)
    return pairs


def changed_names(query: str) -> list[tuple[str, str]]:
    """(old name, new name) of each CHANGE [COLUMN] [IF EXISTS] old new … in the text."""
    words = list(tokens(query))
    found = []
    for at, word in enumerate(words):
        if word.is_word("CHANGE"):
            rest = words[at + 1 : at + 6]
            while rest and rest[0].is_word("COLUMN", "IF", "EXISTS"):
                rest = rest[1:]
            if len(rest) >= 2:
                found.append((rest[0].value, rest[1].value))
    return found


# The flags that are part of a column's definition; the others follow from its indexes.
_DEFINING: Final = Flag.NOT_NULL | Flag.UNSIGNED | Flag.ZEROFILL | Flag.ON_UPDATE_NOW


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A column that is added (`was` None), redefined or moved. `position`: name of the column before it (AFTER), '' for
    FIRST, None where no position is needed: a column that keeps its relative position, or a new one at the end."""

    was: ColumnInfo | None
    now: ColumnInfo
    position: str | None


@dataclass(frozen=True, slots=True)
class TableDiff:
    """The changes of one table. `columns`: in the order of the table; each `position` assumes that the changes before
    are made. `dropped_indexes`: without indexes all of whose columns are dropped, which servers drop with the columns.
    `shown_indexes`: whose visibility changes. `charset`: whether the table's default changes. `auto_increment`: the new
    base, 0 if unchanged. `partitions`: clauses of ALTER TABLE for MySQL and MariaDB."""

    dropped_columns: tuple[ColumnInfo, ...] = ()
    columns: tuple[ColumnChange, ...] = ()
    dropped_indexes: tuple[IndexInfo, ...] = ()
    renamed_indexes: tuple[tuple[IndexInfo, IndexInfo], ...] = ()
    shown_indexes: tuple[IndexInfo, ...] = ()
    added_indexes: tuple[IndexInfo, ...] = ()
    dropped_foreign_keys: tuple[ForeignKey, ...] = ()
    added_foreign_keys: tuple[ForeignKey, ...] = ()
    dropped_checks: tuple[Check, ...] = ()
    added_checks: tuple[Check, ...] = ()
    charset: bool = False
    comment: bool = False
    auto_increment: int = 0
    partitions: tuple[str, ...] = ()


def table_diff(before: TableInfo, after: TableInfo, *, kind: ActionType, query: str = "") -> TableDiff:
    """The changes from `before` to `after` by one job of type `kind`. `query`: its text, needed to match a column that
    got both another type, thereby a new id, and another name in a statement of several changes."""
    old, new = shown_columns(before), shown_columns(after)
    pairs = paired(old, new, query)
    staying = {was.id for was in pairs.values()}
    dropped = tuple(column for column in old if column.id not in staying)
    gone = {column.id for column in dropped}
    kept = _kept_indexes(before, after, pairs)
    had, has = {was.name.lower() for was, _ in kept}, {now.name.lower() for _, now in kept}
    lost = (index for index in all_indexes(before) if index.name.lower() not in had)
    keys, new_keys = foreign_keys(before), foreign_keys(after)
    rules, new_rules = checks(before), checks(after)
    base = after.auto_inc_id if after.auto_inc_id != before.auto_inc_id else 0
    return TableDiff(
        dropped_columns=dropped,
        columns=tuple(_columns(before, after, pairs)),
        dropped_indexes=tuple(one for one in lost if not {before.columns[at.offset].id for at in one.columns} <= gone),
        renamed_indexes=tuple((was, now) for was, now in kept if was.name != now.name),
        shown_indexes=tuple(now for was, now in kept if was.invisible != now.invisible),
        added_indexes=tuple(index for index in all_indexes(after) if index.name.lower() not in has),
        dropped_foreign_keys=tuple(key for key in keys if key.id not in {other.id for other in new_keys}),
        added_foreign_keys=tuple(key for key in new_keys if key.id not in {other.id for other in keys}),
        dropped_checks=tuple(rule for rule in rules if rule not in new_rules),
        added_checks=tuple(rule for rule in new_rules if rule not in rules),
        charset=(before.charset, before.collate) != (after.charset, after.collate) and bool(after.charset),
        comment=before.comment != after.comment,
        auto_increment=base if any(is_counted(after, column) for column in new) else 0,
        partitions=partition_clauses(before.partition, after.partition, kind),
    )


def shown_columns(info: TableInfo) -> list[ColumnInfo]:
    """The columns that a destination has: public and not hidden."""
    return [column for column in info.public_columns if not column.hidden]


def all_indexes(info: TableInfo) -> list[IndexInfo]:
    """All public indexes, the primary key first, also one without an IndexInfo."""
    primary = info.primary_index()
    others = [index for index in info.indexes if index.is_public and not index.primary]
    return [*([primary] if primary is not None and primary.is_public else []), *others]


def is_counted(info: TableInfo, column: ColumnInfo) -> bool:
    """Whether the column is AUTO_INCREMENT on a server, which needs an index that begins with it."""
    if not column.type.flag & Flag.AUTO_INCREMENT:
        return False
    return any(info.columns[index.columns[0].offset].id == column.id for index in all_indexes(info))


def same_type(was: FieldType, now: FieldType) -> bool:
    """Whether two types are equal, without flags that follow from indexes."""
    return replace(was, flag=was.flag & _DEFINING) == replace(now, flag=now.flag & _DEFINING)


def same_definition(was: ColumnInfo, now: ColumnInfo) -> bool:
    """Whether two column definitions are equal, apart from name, position and AUTO_INCREMENT."""
    return same_default(was, now) and (
        same_type(was.type, now.type)
        and (was.generated_expr, was.generated_stored, was.comment)
        == (now.generated_expr, now.generated_stored, now.comment)
    )


def same_default(was: ColumnInfo, now: ColumnInfo) -> bool:
    """Whether the columns have the same default."""
    if has_no_default(was) != has_no_default(now):
        return False
    return (was.default, was.default_bit, was.default_is_expr) == (now.default, now.default_bit, now.default_is_expr)


def has_no_default(column: ColumnInfo) -> bool:
    """Whether the column has no default; a nullable column has NULL unless its default was dropped."""
    return bool(column.type.flag & Flag.NO_DEFAULT_VALUE) or (column.is_not_null and column.default is None)


def _columns(before: TableInfo, after: TableInfo, pairs: Mapping[int, ColumnInfo]) -> Iterator[ColumnChange]:
    new = shown_columns(after)
    positions = {column.id: at for at, column in enumerate(shown_columns(before))}
    changed = {
        column.id
        for column in new
        if (was := pairs.get(column.id)) is not None
        and (
            was.name != column.name
            or not same_definition(was, column)
            or is_counted(before, was) != is_counted(after, column)
        )
    }
    staying = _in_order([(c.id, positions[pairs[c.id].id], c.id not in changed) for c in new if c.id in pairs])
    last = max((at for at, column in enumerate(new) if column.id in pairs), default=-1)
    for at, column in enumerate(new):
        position = new[at - 1].name if at else ""
        if column.id not in pairs:
            yield ColumnChange(None, column, position if at < last else None)
        elif column.id not in staying:
            yield ColumnChange(pairs[column.id], column, position)
        elif column.id in changed:
            yield ColumnChange(pairs[column.id], column, None)


def _in_order(columns: Sequence[tuple[int, int, bool]]) -> frozenset[int]:
    """Ids of the columns that need not move: the longest subsequence with increasing old positions, preferring columns
    whose definition is unchanged. `columns`: (id, old position, whether the definition is unchanged) in the new
    order."""
    best: list[tuple[int, int, int]] = []  # up to each column: how many, how many defined as before, the one before it
    for at, (_, position, alike) in enumerate(columns):
        until = max(((*best[i][:2], i) for i in range(at) if columns[i][1] < position), default=(0, 0, -1))
        best.append((until[0] + 1, until[1] + alike, until[2]))
    at = max(range(len(best)), key=lambda i: best[i][:2], default=-1)
    found = []
    while at >= 0:
        found.append(columns[at][0])
        at = best[at][2]
    return frozenset(found)


def _kept_indexes(
    before: TableInfo, after: TableInfo, pairs: Mapping[int, ColumnInfo]
) -> list[tuple[IndexInfo, IndexInfo]]:
    """(before, after) of the indexes that stay, at most with another name or visibility. They are matched by name, and
    renamed ones by id."""
    old = {index.name.lower(): index for index in all_indexes(before)}
    new = {index.name.lower(): index for index in all_indexes(after)}
    come = {index.id: index for name, index in new.items() if name not in old and not index.primary}
    renamed = [(was, come[was.id]) for name, was in old.items() if name not in new and was.id in come]
    named = [(was, new[name]) for name, was in old.items() if name in new]

    def alike(was: IndexInfo, now: IndexInfo) -> bool:
        had = [_part(before.columns[part.offset], part.length) for part in was.columns]
        columns = [after.columns[part.offset] for part in now.columns]
        lengths = [(part.length, column.type.flen) for part, column in zip(now.columns, columns, strict=True)]
        has = [_part(pairs.get(one.id, one), *length) for one, length in zip(columns, lengths, strict=True)]
        return had == has and (was.unique, was.primary, was.comment) == (now.unique, now.primary, now.comment)

    return [(was, now) for was, now in (*renamed, *named) if alike(was, now)]


def _part(column: ColumnInfo, length: int, flen: int | None = None) -> tuple[object, int]:
    """(column id or expression, prefix length) of an index part, for comparison; -1: whole column."""
    whole = length < 0 or length == (column.type.flen if flen is None else flen)
    return (column.generated_expr if column.hidden else column.id), -1 if whole else length


# DDLs that must not run twice, because the second run undoes the first one without an error.


def undoes_itself(query: str, schema: str) -> bool:
    """Return whether a second run undoes the first: EXCHANGE PARTITION, and statements that exchange the names of
    tables or columns. `schema`: the database of tables without one."""
    words = list(tokens(query))
    if not words:
        return False
    if words[0].is_word("RENAME"):
        with contextlib.suppress(Unexpected):
            return _exchanges([(".".join(old), ".".join(new)) for old, new in rename_pairs(query, schema)])
        return False
    following = list(pairwise(words))
    if any(word.is_word("EXCHANGE") and behind.is_word("PARTITION") for word, behind in following):
        return True
    renamed = [
        (words[at + 2].value, words[at + 4].value)
        for at, (word, behind) in enumerate(following)
        if word.is_word("RENAME") and behind.is_word("COLUMN") and at + 4 < len(words)
    ]
    return _exchanges(changed_names(query) + renamed)


def named_tables(query: str, schema: str, table: str) -> list[tuple[str, str]]:
    """Return the tables, by schema and name, whose definitions or data show whether the statement has run. `schema` and
    `table`: those that the message names, "" if it names none."""
    found = [(schema, table)]
    words = list(tokens(query))
    with contextlib.suppress(Unexpected):
        for pair in rename_pairs(query, schema) if words and words[0].is_word("RENAME") else ():
            found += pair
        for at, (word, behind) in enumerate(pairwise(words)):
            if word.is_word("WITH") and behind.is_word("TABLE"):
                found.append(Words(query, schema, words[at + 2 :]).table())
    return [(of, name) for of, name in dict.fromkeys(found) if of and name]


def _exchanges(pairs: list[tuple[str, str]]) -> bool:
    """Return whether every old name is also a new name."""
    moved = [(old.lower(), new.lower()) for old, new in pairs if old.lower() != new.lower()]
    return bool(moved) and {old for old, _ in moved} <= {new for _, new in moved}
