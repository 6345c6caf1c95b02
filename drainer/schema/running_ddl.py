"""Does upstream still write a table as its newest known job says? Pure.

A status port shows a job only when it has finished, and a statement may change what rows hold some versions before: a
unique key that is not checked any more (rule 12), a type changed in place by one of several changes, a column that
updates do not carry, a partition that rows know no more. So the table is asked for as it stands, after a row of a new
version was seen: where it is the same in all that rows show, it was so for the row too.
"""

from __future__ import annotations

from binlog.tidb.table import ColumnInfo, TableInfo
from binlog.tidb.types import Flag

from drainer.schema.catalog import partition_ids

_SHOWN_FLAGS = Flag.NOT_NULL | Flag.UNSIGNED


def abreast(known: TableInfo, fresh: TableInfo | None) -> bool:
    """`fresh`: the table as the status port shows it, None where it is not there: dropped, or nothing can be told."""
    if fresh is None:
        return True
    shown = {column.id: _shape(column) for column in fresh.public_columns}
    if any(shown.get(column.id) != _shape(column) for column in known.public_columns):
        return False
    keys = {(index.id, index.name.lower()) for index in fresh.unique_indexes()}
    if any((index.id, index.name.lower()) not in keys for index in known.unique_indexes()):
        return False
    return partition_ids(known) <= partition_ids(fresh)


def _shape(column: ColumnInfo) -> tuple[object, ...]:
    kind = column.type
    return kind.tp, kind.flag & _SHOWN_FLAGS, kind.flen, kind.decimal, kind.charset, kind.collate, kind.elems
