"""Detects a running DDL that the job history does not show yet. Pure.

A status port lists a job only when it has finished, but a DDL may affect rows some schema versions earlier: a unique
key that is no longer enforced (rule 12: REPLACE evicts only stale rows), a type changed in place by one of several
changes, a column missing in updates, a partition that is no longer written. So after a row of a new version has been
seen, the current table is read from the status port: if it equals the known one in everything that affects rows, it did
so for that row too.
"""

from __future__ import annotations

from binlog.tidb.table import ColumnInfo, TableInfo
from binlog.tidb.types import Flag

from drainer.schema.catalog import partition_ids

_SHOWN_FLAGS = Flag.NOT_NULL | Flag.UNSIGNED


def is_current(known: TableInfo, fresh: TableInfo | None) -> bool:
    """Return whether `known`, the table after its newest known job, equals `fresh`, the table at the status port, in
    columns, unique keys and partitions. True if `fresh` is None (dropped, or not available)."""
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
