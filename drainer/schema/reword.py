"""A DDL said anew, from the TableInfo before it and after it, for a destination that does not take its text. Pure.

Complete for what rows depend on: tables, columns, the values of new columns, which partitions there are and which were
emptied. A kind of job that moves rows by itself (EXCHANGE PARTITION) is not reworded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from binlog.tidb.column import ColumnInfo
from binlog.tidb.job import ActionType
from binlog.tidb.partition import PartitionInfo, PartitionType
from binlog.tidb.table import TableInfo

from drainer.ddl.column_pairs import paired
from drainer.ddl.lexer import quoted
from drainer.schema import define
from drainer.step import Ddl, Located

_NOT_REWORDED: Final = frozenset(
    {
        ActionType.EXCHANGE_TABLE_PARTITION,
        ActionType.RECOVER_TABLE,
        ActionType.RENAME_TABLE,
        ActionType.RENAME_TABLES,
        ActionType.TRUNCATE_TABLE,
        ActionType.FLASHBACK_CLUSTER,
    }
)
_REORGANIZE: Final = frozenset(
    {ActionType.REORGANIZE_PARTITION, ActionType.ALTER_TABLE_PARTITIONING, ActionType.REMOVE_PARTITIONING}
)


def reworded(step: Ddl) -> tuple[str, ...] | None:
    """The statements that do what the job did; () when nothing of it concerns a row, None where this is not known."""
    if step.rewritten or step.job.type in _NOT_REWORDED:
        return None
    if step.job.type == ActionType.CREATE_TABLES:
        return _all_new(step)
    if len(step.changes) != 1:
        return None
    change = step.changes[0]
    before, after = change.before, change.after
    if after is None or after.info.is_view or after.info.is_sequence:
        return None
    try:
        if before is None:
            return (_create(after),)
        if (before.schema, before.name) != (after.schema, after.name):
            return None
        return tuple(_alter(before, after, step))
    except define.NoWords:
        return None


def _all_new(step: Ddl) -> tuple[str, ...] | None:
    try:
        return tuple(_create(change.after) for change in step.changes if change.after is not None)
    except define.NoWords:
        return None


def _create(table: Located) -> str:
    info = table.info
    text = f"CREATE TABLE {quoted(table.schema, table.name)} ({', '.join(define.table_words(info))})"
    text += _options(info)
    if info.comment:
        text += f" COMMENT = {define.text(info.comment)}"
    parts = define.partition_words(info)
    return f"{text} {parts}" if parts else text


def _options(info: TableInfo) -> str:
    return f" DEFAULT CHARACTER SET {info.charset} COLLATE {info.collate}" if info.charset and info.collate else ""


def _alter(before: Located, after: Located, step: Ddl) -> Iterator[str]:
    head = f"ALTER TABLE {quoted(after.schema, after.name)} "
    clauses = [*_lost_indexes(before.info, after.info), *_columns(before.info, after.info, step.query)]
    clauses += _new_indexes(before.info, after.info)
    if _options(before.info) != _options(after.info):
        clauses.append(_options(after.info).strip())
    if before.info.comment != after.info.comment:
        clauses.append(f"COMMENT = {define.text(after.info.comment)}")
    if clauses:
        yield head + ", ".join(clauses)
    for clause in _partitions(before.info, after.info, step.job.type):
        yield head + clause


def _lost_indexes(before: TableInfo, after: TableInfo) -> Iterator[str]:
    had, has = define.index_list(before), define.index_list(after)
    dropped = {column.name for column in define.shown(before)} - {column.name for column in define.shown(after)}
    for name, words in had.items():
        if has.get(name) == words or _went_along(before, name, dropped):
            continue
        yield "DROP PRIMARY KEY" if words.startswith("PRIMARY") else f"DROP INDEX {quoted(_own_name(words))}"


def _went_along(before: TableInfo, name: str, dropped: set[str]) -> bool:
    """Servers drop an index with the last of its columns."""
    index = next((i for i in before.indexes if i.name == name), None)
    return index is not None and {before.columns[part.offset].name for part in index.columns} <= dropped


def _own_name(words: str) -> str:
    return words.split("KEY `", 1)[1].split("` (", 1)[0].replace("``", "`")


def _new_indexes(before: TableInfo, after: TableInfo) -> Iterator[str]:
    had = define.index_list(before)
    for name, words in define.index_list(after).items():
        if had.get(name) != words:
            yield f"ADD {words}"


def _columns(before: TableInfo, after: TableInfo, query: str) -> Iterator[str]:
    """DROP, CHANGE and ADD, each with its place where it is not where it would come to stand by itself."""
    old, new = define.shown(before), define.shown(after)
    pairs = paired(old, new, query)
    staying = {was.id for was in pairs.values()}
    for column in old:
        if column.id not in staying:
            yield f"DROP COLUMN {quoted(column.name)}"
    order = [column.name for column in old if column.id in staying]
    for at, column in enumerate(new):
        was = pairs.get(column.id)
        words = _words(after, column)
        place = f" AFTER {quoted(new[at - 1].name)}" if at else " FIRST"
        if was is None:
            yield f"ADD COLUMN {words}" + (place if at < len(order) else "")
            order.insert(at, column.name)
        else:
            there = order.index(was.name) == at
            if not there or _words(before, was) != words:
                yield f"CHANGE COLUMN {quoted(was.name)} {words}" + ("" if there else place)
            order.remove(was.name)
            order.insert(at, column.name)


def _words(info: TableInfo, column: ColumnInfo) -> str:
    return define.column_words(column, counted=define.is_counted(info, column))


def _partitions(before: TableInfo, after: TableInfo, kind: ActionType) -> Iterator[str]:
    had, has = before.partition, after.partition
    if has is None or not has.enable:
        if had is not None and had.enable:
            yield "REMOVE PARTITIONING"
    elif had is None or not had.enable or kind in _REORGANIZE:
        if define.partition_words(before) != define.partition_words(after):
            yield define.partition_words(after)
    else:
        yield from _same_partitioning(had, has, emptied=kind == ActionType.TRUNCATE_TABLE_PARTITION)


def _same_partitioning(had: PartitionInfo, has: PartitionInfo, *, emptied: bool) -> Iterator[str]:
    """Partitions dropped, added, or `emptied`: those have a new id under the old name."""
    old, new = {d.name.lower(): d for d in had.definitions}, {d.name.lower(): d for d in has.definitions}
    if emptied:
        names = [quoted(d.name) for name, d in new.items() if name in old and old[name].id != d.id]
        yield f"TRUNCATE PARTITION {', '.join(names)}"
    elif has.type in (PartitionType.RANGE, PartitionType.LIST):
        gone = [quoted(d.name) for name, d in old.items() if name not in new]
        added = [define.definition_words(has, d) for name, d in new.items() if name not in old]
        if gone:
            yield f"DROP PARTITION {', '.join(gone)}"
        if added:
            yield f"ADD PARTITION ({', '.join(added)})"
    elif len(new) > len(old):
        yield f"ADD PARTITION PARTITIONS {len(new) - len(old)}"
    elif len(new) < len(old):
        yield f"COALESCE PARTITION {len(old) - len(new)}"
