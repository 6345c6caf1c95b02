"""Vectors of TiCDC's update events: which are sent as a delete and an insert, and the order in a transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from binlog.tidb.datum import Datum
from binlog.tidb.table import TableInfo
from binlog.tidb.types import FieldType, Tp

from drainer.changes import ChangeSegment
from drainer.dispatch.row_events import RowEvents
from drainer.protocol.table import ColumnFlag
from tests.golden.vector_files import Vector, only
from tests.support.row_case import BEGIN_TS, Step, not_null, table, transaction
from tests.unit.drainer.dispatch.histories import segment_of

_KEYS: Final = ColumnFlag.HANDLE_KEY | ColumnFlag.PRIMARY_KEY | ColumnFlag.UNIQUE_KEY
_TEXT: Final = FieldType(Tp.VARCHAR, 0, 40, 0, "utf8mb4", "utf8mb4_bin")
_BYTES: Final = FieldType(Tp.VARCHAR, 0, 40, 0, "binary", "binary")


def _table(columns: list[Vector]) -> TableInfo:
    """Each column with PrimaryKey is part of the primary key, each other with UniqueKey is a key of its own."""
    kinds, unique = [], dict[str, list[str]]()
    for column in columns:
        name, number = only(column, "name flag")
        flags = ColumnFlag(number)
        read = _KEYS | ColumnFlag.BINARY | ColumnFlag.NULLABLE | ColumnFlag.MULTIPLE_KEY
        assert not flags & ~read, f"flags {flags} are not read"
        kind = _BYTES if flags & ColumnFlag.BINARY else _TEXT
        kinds.append((name, not_null(kind) if flags & (ColumnFlag.HANDLE_KEY | ColumnFlag.PRIMARY_KEY) else kind))
        if flags & ColumnFlag.PRIMARY_KEY:
            unique.setdefault("PRIMARY", []).append(name)
        elif flags & (ColumnFlag.UNIQUE_KEY | ColumnFlag.HANDLE_KEY):
            unique[f"uk_{name}"] = [name]
    return table(kinds, unique=unique)


def _sent(info: TableInfo, steps: list[Step]) -> list[str]:
    """The kinds of the events of one transaction, in the order in which they are sent."""
    payload = transaction([(info, step) for step in steps], commit_ts=BEGIN_TS)
    segment = segment_of([info], [payload] if steps else [])
    found = [(place, one.kind.name.lower()) for one in RowEvents().of(segment) for place in one.order.tolist()]
    return [kind for _, kind in sorted(found)]


def check_split(vector: Vector) -> None:
    (expected,) = only(vector["expected"], "events")
    if "events" in vector["input"]:
        (events,) = only(vector["input"], "events")
        assert events == ["empty (no columns, no pre columns)", "nil"], f"no events this check can read: {events}"
        assert _sent(_table([{"name": "a", "flag": 11}]), []) == expected
        assert RowEvents().of(ChangeSegment(0, 1, (), 0, 0)) == expected
        return
    columns, old, new = only(vector["input"], "columns pre new")
    info = _table(columns)
    assert _sent(info, [("update", _row(info, old), _row(info, new))]) == expected


def _row(info: TableInfo, values: Mapping[str, str | None]) -> dict[int, Datum]:
    assert set(values) == {column.name for column in info.columns}
    texts = {column.id: values[column.name] for column in info.columns}
    return {id_: None if text is None else text.encode() for id_, text in texts.items()}


def check_sort(vector: Vector) -> None:
    """Each event is of another row, whose unique key changes in updates that are split."""
    (kinds,), (expected,) = only(vector["input"], "events"), only(vector["expected"], "events")
    info = _table([{"name": "a", "flag": 10}, {"name": "b", "flag": 64}])
    steps: list[Step] = []
    for number, kind in enumerate(kinds):
        old, new = ({1: b"%d" % number, 2: side} for side in (b"old", b"new"))
        steps.append((kind, {} if kind == "insert" else old, {} if kind == "delete" else new))
    assert _sent(info, steps) == expected


CHECKS: Final[Mapping[str, Callable[[Vector], None]]] = {"split_update": check_split, "sort_txn": check_sort}
