"""Reads how the destination partitions a table, before rows are removed with a partition.

A table that somebody made there may have partitions of the same names that hold other rows.
"""

from __future__ import annotations

from typing import Final

from binlog.tidb.job import ActionType
from binlog.tidb.partition import PartitionType

from drainer.schema.steps import Ddl
from drainer.sink.mysql.connection import ServerSession

_TAKES_ROWS: Final = frozenset(
    {ActionType.TRUNCATE_TABLE_PARTITION, ActionType.EXCHANGE_TABLE_PARTITION, ActionType.DROP_TABLE_PARTITION}
)
_METHODS: Final = {
    PartitionType.RANGE: frozenset({"RANGE", "RANGE COLUMNS"}),
    PartitionType.LIST: frozenset({"LIST", "LIST COLUMNS"}),
    PartitionType.HASH: frozenset({"HASH"}),
}


def other_kind(session: ServerSession, step: Ddl) -> str:
    """Why the partition of this name has other rows here than upstream, '' if no difference is known."""
    if step.rewritten or step.job.type not in _TAKES_ROWS or session.flavour == "tidb":
        return ""
    before = next((c.before for c in step.changes if c.before and c.before.info.partition), None)
    parts = before.info.partition if before is not None else None
    if before is None or parts is None or parts.type not in _METHODS:
        return ""
    found = session.query(
        b"SELECT PARTITION_METHOD, COUNT(*) FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA=%s AND TABLE_NAME=%s"
        b" AND PARTITION_METHOD IS NOT NULL GROUP BY PARTITION_METHOD"
        % (session.literal(before.schema), session.literal(before.name))
    )
    place = f"{before.schema}.{before.name}"
    for method, count in ((str(method), int(count or 0)) for method, count in found):
        if method.upper() not in _METHODS[parts.type]:
            return f"{place} is partitioned by {method} here and by {parts.type.name} upstream"
        if parts.type == PartitionType.HASH and count != len(parts.definitions):
            return f"{place} has {count} partitions here and {len(parts.definitions)} upstream"
    return ""
