"""Vectors of updates that TiCDC splits, and of the order in a transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.batch.work import Kind
from drainer.dispatch.row_events import RowEvents
from drainer.protocol.row_changes import RowChanges
from drainer.protocol.table import ColumnFlag, Table
from tests.golden.vector_files import Vector, only
from tests.support.row_changes import changes_of, make_changes, make_table

LONG: Final = FieldType(Tp.LONGLONG, flen=20, decimal=0)
TEXT: Final = FieldType(Tp.VARCHAR, flen=255, charset="utf8mb4", collate="utf8mb4_bin")


def _kinds(changes: Sequence[RowChanges]) -> list[str]:
    """Of the events that changes become, in order."""
    found = RowEvents().of_changes([changes_of(one) for one in changes])
    return [name for _, name in sorted((at, one.kind.name.lower()) for one in found for at in one.order.tolist())]


def _table(columns: list[Vector]) -> Table:
    flags = {}
    for column in columns:
        name, flag = only(column, "name flag")
        flags[name] = ColumnFlag(flag)
    kinds = [
        (name, replace(TEXT, flag=Flag(0) if flag & ColumnFlag.NULLABLE else Flag.NOT_NULL))
        for name, flag in flags.items()
    ]
    primary = [name for name, flag in flags.items() if flag & ColumnFlag.PRIMARY_KEY]
    unique = [[name] for name, flag in flags.items() if flag & ColumnFlag.UNIQUE_KEY]
    return make_table("d", "t", kinds, primary=primary, unique=unique)


def split_update(vector: Vector) -> None:
    (wanted,) = only(vector["expected"], "events")
    if "events" in vector["input"]:  # an event without any image: of no changes
        (given,) = only(vector["input"], "events")
        assert given == ["empty (no columns, no pre columns)", "nil"]
        assert _kinds([]) == wanted == []
        return
    columns, before, after = only(vector["input"], "columns pre new")
    table = _table(columns)
    old, new = ([[image[column.name].encode() for column in table.columns]] for image in (before, after))
    assert _kinds([make_changes(table, Kind.UPDATE, old=old, new=new)]) == wanted


def sort_txn(vector: Vector) -> None:
    """Events of rows of their own, in one transaction."""
    (given,) = only(vector["input"], "events")
    (wanted,) = only(vector["expected"], "events")
    table = make_table("d", "t", [("id", LONG), ("v", LONG)], primary=["id"])
    made = []
    for number, name in enumerate(given):
        kind = Kind[name.upper()]
        old = None if kind is Kind.INSERT else [[number, 0]]
        new = None if kind is Kind.DELETE else [[number, 1]]
        made.append(replace(make_changes(table, kind, old=old, new=new), order=np.array([number])))
    assert _kinds(made) == wanted


CHECKS: Final[Mapping[str, Callable[[Vector], None]]] = {"split_update": split_update, "sort_txn": sort_txn}
