"""What a DDL did to one table, from its TableInfo before and after. Pure.

Complete for all that a TableInfo holds and a destination may have: columns and their places, indexes, foreign keys,
CHECK constraints, character set, comment, the base of AUTO_INCREMENT, partitions. How TiDB stores the table
(AUTO_RANDOM, SHARD_ROW_ID_BITS, TTL, placement, TiFlash replicas) is no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from binlog.tidb.column import ColumnInfo
from binlog.tidb.index import IndexInfo
from binlog.tidb.job import ActionType
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Flag

from drainer.ddl.column_pairs import paired
from drainer.ddl.constraints import Check, ForeignKey, checks, foreign_keys
from drainer.ddl.partition_diff import PartitionDiff, partition_diff

# The flags that are part of a column's definition; the others follow from its indexes.
_DEFINING: Final = Flag.NOT_NULL | Flag.UNSIGNED | Flag.ZEROFILL | Flag.ON_UPDATE_NOW


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A column that is new (`was` None), defined otherwise, or elsewhere. `place`: the name of the column it stands
    behind, '' for the first place, None where it stands there without being told: a column that stays among those that
    stay, a new one behind all that are there."""

    was: ColumnInfo | None
    now: ColumnInfo
    place: str | None


@dataclass(frozen=True, slots=True)
class TableDiff:
    """The changes of one table. `columns` are in the order of the table; each place holds when those before it are
    made. An index of `dropped_indexes` whose columns all go is not in it, for servers drop it with them. `charset`:
    the table's own, for columns to come. `auto_increment`: the new base, 0 where it is the old one."""

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
    partitions: tuple[PartitionDiff, ...] = ()


def table_diff(before: TableInfo, after: TableInfo, *, kind: ActionType, query: str = "") -> TableDiff:
    """From `before` to `after` by one job of this kind. `query`: its text, which alone tells the old name of a column
    that got another type, and thereby a new id, and another name in a job of several changes."""
    old, new = shown_columns(before), shown_columns(after)
    pairs = paired(old, new, query)
    staying = {was.id for was in pairs.values()}
    dropped = tuple(column for column in old if column.id not in staying)
    indexes = _Indexes(before, after, pairs)
    keys, new_keys = foreign_keys(before), foreign_keys(after)
    rules, new_rules = checks(before), checks(after)
    base = after.auto_inc_id if after.auto_inc_id != before.auto_inc_id else 0
    return TableDiff(
        dropped_columns=dropped,
        columns=tuple(_columns(before, after, pairs)),
        dropped_indexes=tuple(indexes.dropped({column.id for column in dropped})),
        renamed_indexes=tuple(indexes.renamed()),
        shown_indexes=tuple(indexes.shown()),
        added_indexes=tuple(indexes.added()),
        dropped_foreign_keys=tuple(key for key in keys if key.id not in {other.id for other in new_keys}),
        added_foreign_keys=tuple(key for key in new_keys if key.id not in {other.id for other in keys}),
        dropped_checks=tuple(rule for rule in rules if rule not in new_rules),
        added_checks=tuple(rule for rule in new_rules if rule not in rules),
        charset=(before.charset, before.collate) != (after.charset, after.collate) and bool(after.charset),
        comment=before.comment != after.comment,
        auto_increment=base if any(is_counted(after, column) for column in new) else 0,
        partitions=partition_diff(before.partition, after.partition, kind),
    )


def shown_columns(info: TableInfo) -> list[ColumnInfo]:
    """The columns a destination has."""
    return [column for column in info.public_columns if not column.hidden]


def all_indexes(info: TableInfo) -> list[IndexInfo]:
    """Every public index, the primary key first, also the one that has no IndexInfo."""
    primary = info.primary_index()
    others = [index for index in info.indexes if index.is_public and not index.primary]
    return [*([primary] if primary is not None and primary.is_public else []), *others]


def is_counted(info: TableInfo, column: ColumnInfo) -> bool:
    """Whether a server can count the column: AUTO_INCREMENT needs an index that begins with it."""
    if not column.type.flag & Flag.AUTO_INCREMENT:
        return False
    return any(info.columns[index.columns[0].offset].id == column.id for index in all_indexes(info))


def same_type(was: FieldType, now: FieldType) -> bool:
    """Without what follows from indexes."""
    return replace(was, flag=was.flag & _DEFINING) == replace(now, flag=now.flag & _DEFINING)


def same_definition(was: ColumnInfo, now: ColumnInfo) -> bool:
    """Whether two columns are defined alike, but for their names and places and AUTO_INCREMENT."""
    return same_default(was, now) and (
        same_type(was.type, now.type)
        and (was.generated_expr, was.generated_stored, was.comment)
        == (now.generated_expr, now.generated_stored, now.comment)
    )


def same_default(was: ColumnInfo, now: ColumnInfo) -> bool:
    """Whether a row that does not name the column holds the same in it."""
    if has_no_default(was) != has_no_default(now):
        return False
    return (was.default, was.default_bit, was.default_is_expr) == (now.default, now.default_bit, now.default_is_expr)


def has_no_default(column: ColumnInfo) -> bool:
    """Whether a row must name the column; one that takes NULL has it for its default unless that was dropped."""
    return bool(column.type.flag & Flag.NO_DEFAULT_VALUE) or (column.is_not_null and column.default is None)


def _columns(before: TableInfo, after: TableInfo, pairs: Mapping[int, ColumnInfo]) -> Iterator[ColumnChange]:
    new = shown_columns(after)
    places = {column.id: at for at, column in enumerate(shown_columns(before))}
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
    staying = _in_order([(c.id, places[pairs[c.id].id], c.id not in changed) for c in new if c.id in pairs])
    last = max((at for at, column in enumerate(new) if column.id in pairs), default=-1)
    for at, column in enumerate(new):
        place = new[at - 1].name if at else ""
        if column.id not in pairs:
            yield ColumnChange(None, column, place if at < last else None)
        elif column.id not in staying:
            yield ColumnChange(pairs[column.id], column, place)
        elif column.id in changed:
            yield ColumnChange(pairs[column.id], column, None)


def _in_order(columns: Sequence[tuple[int, int, bool]]) -> frozenset[int]:
    """The columns that need not move: the most whose places before, in this order, only grow, and of those rather
    columns that are defined as before. `columns`: id, place before, whether it is defined as before."""
    best: list[tuple[int, int, int]] = []  # up to each column: how many, how many defined as before, the one before it
    for at, (_, place, alike) in enumerate(columns):
        until = max(((*best[i][:2], i) for i in range(at) if columns[i][1] < place), default=(0, 0, -1))
        best.append((until[0] + 1, until[1] + alike, until[2]))
    at = max(range(len(best)), key=lambda i: best[i][:2], default=-1)
    found = []
    while at >= 0:
        found.append(columns[at][0])
        at = best[at][2]
    return frozenset(found)


class _Indexes:
    """The indexes of a table before and after, by name, and by id where one was renamed."""

    def __init__(self, before: TableInfo, after: TableInfo, pairs: Mapping[int, ColumnInfo]) -> None:
        self._before, self._after = before, after
        self._pairs = pairs
        self._old = {index.name.lower(): index for index in all_indexes(before)}
        self._new = {index.name.lower(): index for index in all_indexes(after)}
        come = {index.id: index for name, index in self._new.items() if name not in self._old and not index.primary}
        self._renamed = [
            (index, come[index.id])
            for name, index in self._old.items()
            if name not in self._new and index.id in come and self._alike(index, come[index.id])
        ]

    def _alike(self, was: IndexInfo, now: IndexInfo) -> bool:
        return self._old_parts(was) == self._new_parts(now) and (was.unique, was.primary, was.comment) == (
            now.unique,
            now.primary,
            now.comment,
        )

    def _old_parts(self, index: IndexInfo) -> list[tuple[object, int]]:
        return [_part(self._before.columns[part.offset], part.length) for part in index.columns]

    def _new_parts(self, index: IndexInfo) -> list[tuple[object, int]]:
        columns = (self._after.columns[part.offset] for part in index.columns)
        return [
            _part(self._pairs.get(column.id, column), part.length, column.type.flen)
            for column, part in zip(columns, index.columns, strict=True)
        ]

    def dropped(self, columns: set[int]) -> Iterator[IndexInfo]:
        """`columns`: ids of those that go."""
        renamed = {was.name.lower() for was, _ in self._renamed}
        for name, index in self._old.items():
            now = self._new.get(name)
            if name in renamed or (now is not None and self._alike(index, now)):
                continue
            if not {self._before.columns[part.offset].id for part in index.columns} <= columns:
                yield index

    def added(self) -> Iterator[IndexInfo]:
        renamed = {now.name.lower() for _, now in self._renamed}
        for name, index in self._new.items():
            was = self._old.get(name)
            if name not in renamed and not (was is not None and self._alike(was, index)):
                yield index

    def renamed(self) -> Iterator[tuple[IndexInfo, IndexInfo]]:
        """As each was and is, also where only the case of its name changed."""
        yield from self._renamed
        for name, now in self._new.items():
            old = self._old.get(name)
            if old is not None and old.name != now.name and self._alike(old, now):
                yield old, now

    def shown(self) -> Iterator[IndexInfo]:
        """Those that stay and are used by the optimizer now, or are not any more."""
        pairs = [*self._renamed, *((was, self._new[name]) for name, was in self._old.items() if name in self._new)]
        for was, now in pairs:
            if was.invisible != now.invisible and self._alike(was, now):
                yield now


def _part(column: ColumnInfo, length: int, flen: int | None = None) -> tuple[object, int]:
    """What an index part is, by its column as it was before; a hidden column is its expression."""
    whole = length < 0 or length == (column.type.flen if flen is None else flen)
    return (column.generated_expr if column.hidden else column.id), -1 if whole else length
