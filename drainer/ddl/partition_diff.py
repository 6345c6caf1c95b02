"""Difference of two PartitionInfos: the partition changes of a DDL. Pure.

Partitions are matched by physical id. Whether the rows of removed partitions were kept follows only from the job type:
TRUNCATE and REORGANIZE may both leave the same names with new ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from binlog.tidb.job import ActionType
from binlog.tidb.partition import PartitionDefinition, PartitionInfo, PartitionType

_WHOLE: Final = frozenset({ActionType.ALTER_TABLE_PARTITIONING, ActionType.REMOVE_PARTITIONING})


@dataclass(frozen=True, slots=True)
class RemovePartitioning:
    """REMOVE PARTITIONING: all rows are kept."""


@dataclass(frozen=True, slots=True)
class Repartition:
    """PARTITION BY as in the TableInfo: all rows are kept."""


@dataclass(frozen=True, slots=True)
class TruncatePartitions:
    """TRUNCATE PARTITION of these."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DropPartitions:
    """DROP PARTITION of these, with their rows."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """ADD PARTITION: new, empty partitions."""

    definitions: tuple[PartitionDefinition, ...]


@dataclass(frozen=True, slots=True)
class ReorganizePartitions:
    """REORGANIZE PARTITION: the rows of `names` are moved to `definitions`."""

    names: tuple[str, ...]
    definitions: tuple[PartitionDefinition, ...]


@dataclass(frozen=True, slots=True)
class CountPartitions:
    """ADD or COALESCE PARTITION of a HASH or KEY table. `more`: change of the number of partitions, negative for
    fewer."""

    more: int


PartitionDiff = (
    RemovePartitioning
    | Repartition
    | TruncatePartitions
    | DropPartitions
    | AddPartitions
    | ReorganizePartitions
    | CountPartitions
)


def partition_diff(
    before: PartitionInfo | None, after: PartitionInfo | None, kind: ActionType
) -> tuple[PartitionDiff, ...]:
    """The partition changes in order. `kind`: type of the DDL job."""
    had, has = _enabled(before), _enabled(after)
    if has is None:
        return () if had is None else (RemovePartitioning(),)
    if had is None:
        return (Repartition(),)
    if kind in _WHOLE:
        return () if _same(had, has) else (Repartition(),)
    if kind == ActionType.TRUNCATE_TABLE_PARTITION:
        old = {d.name.lower(): d.id for d in had.definitions}
        emptied = tuple(d.name for d in has.definitions if old.get(d.name.lower()) != d.id)
        return (TruncatePartitions(emptied),) if emptied else ()
    if has.type not in (PartitionType.RANGE, PartitionType.LIST):
        more = (len(has.definitions) or has.num) - (len(had.definitions) or had.num)
        return (CountPartitions(more),) if more else ()
    if kind == ActionType.REORGANIZE_PARTITION:
        return (_reorganized(had, has),)
    return tuple(_come_and_gone(had, has))


def _enabled(parts: PartitionInfo | None) -> PartitionInfo | None:
    return parts if parts is not None and parts.enable else None


def _same(had: PartitionInfo, has: PartitionInfo) -> bool:
    if (had.type, had.expr, had.columns, had.num) != (has.type, has.expr, has.columns, has.num):
        return False
    return [(d.name, d.less_than, d.in_values) for d in had.definitions] == [
        (d.name, d.less_than, d.in_values) for d in has.definitions
    ]


def _reorganized(had: PartitionInfo, has: PartitionInfo) -> PartitionDiff:
    stay = {d.id for d in had.definitions} & {d.id for d in has.definitions}
    gone = [n for n, d in enumerate(had.definitions) if d.id not in stay]
    come = [n for n, d in enumerate(has.definitions) if d.id not in stay]
    beside = all(run == list(range(run[0], run[0] + len(run))) for run in (gone, come) if run)
    if not gone or not come or not beside or gone[0] != come[0]:
        return Repartition()
    return ReorganizePartitions(tuple(had.definitions[n].name for n in gone), tuple(has.definitions[n] for n in come))


def _come_and_gone(had: PartitionInfo, has: PartitionInfo) -> Iterator[PartitionDiff]:
    old, new = {d.name.lower(): d for d in had.definitions}, {d.name.lower(): d for d in has.definitions}
    gone = tuple(d.name for name, d in old.items() if name not in new)
    come = tuple(d for name, d in new.items() if name not in old)
    if gone:
        yield DropPartitions(gone)
    if come:
        yield AddPartitions(come)
