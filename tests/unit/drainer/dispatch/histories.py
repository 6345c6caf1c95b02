"""Transactions that upstream could have written: old images are what stood there, unique values are unique."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from binlog.tidb.table import TableInfo
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.changes import ChangeSegment
from drainer.changes.stream import StreamDecoder
from drainer.protocol.table import RowChanges
from drainer.row.column_type import DecodedValue
from tests.support.row_case import BEGIN_TS, INT, TEXT, Step, not_null, table, transaction, view_of

SHAPES = ("handle", "clustered", "nonclustered", "two columns", "unique", "none")
# What of a table of each shape can stay beside v: its key, or its nullable unique column.
CHOICES = [("a", "b"), ("a", "b", "u"), ("u", "v"), ("a", "b", "v"), ("u",)]

Row = tuple[int | None, ...]
Image = tuple[DecodedValue, ...]
Event = tuple[Kind, Image | None, Image | None]


def table_of_shape(shape: str, *, table_id: int = 100, name: str = "t") -> TableInfo:
    """`a`, `b`: the key's columns; `u`: a nullable unique column; `v`: another."""
    kind = INT if shape in ("handle", "unique") else TEXT
    columns = [("a", not_null(kind)), ("b", not_null(INT)), ("u", INT), ("v", INT)]
    unique: dict[str, Sequence[str]] = {"u": ["u"]}
    if shape == "two columns":
        unique["PRIMARY"] = ["a", "b"]
    elif shape in ("clustered", "nonclustered"):
        unique["PRIMARY"] = ["a"]
    elif shape == "unique":
        unique["k"] = ["a"]
    is_clustered = shape in ("clustered", "two columns")
    handle = "a" if shape == "handle" else ""
    return table(columns, unique=unique, handle=handle, clustered=is_clustered, table_id=table_id, name=name)


def _written(info: TableInfo, row: Row) -> dict[int, object]:
    kinds = {column.id: column.type for column in info.columns}
    values = zip(kinds, row, strict=True)
    return {id_: str(value).encode() if kinds[id_].is_string else value for id_, value in values}


@st.composite
def rows_of_transactions(draw: st.DrawFn, shape: str, most: int = 8) -> list[list[tuple[Row | None, Row | None]]]:
    """(old, new) of each change, transaction by transaction."""
    size = {"two columns": 2, "none": 0}.get(shape, 1)
    there: list[Row] = []
    small = st.integers(0, 2)
    nullable = st.none() | small
    found = []
    for _ in range(draw(st.integers(1, most))):
        changes: list[tuple[Row | None, Row | None]] = []
        for _ in range(draw(st.integers(1, 5))):
            touches = draw(st.integers(0, 3))
            old: Row | None = draw(st.sampled_from(there)) if there and touches else None
            new: Row | None = None
            if old is None or draw(st.integers(0, 2)):
                new = draw(small), draw(small), draw(nullable), draw(small)
                if old is not None and draw(st.booleans()):
                    new = (*old[:2], *new[2:])
            left = list(there)
            if old is not None:
                left.remove(old)
            if new is not None and any(
                (size and new[:size] == other[:size]) or (new[2] is not None and new[2] == other[2]) for other in left
            ):
                continue
            there = left if new is None else [*left, new]
            changes.append((old, new))
        found.append(changes)
    return found


def payloads_of(
    info: TableInfo, transactions: Sequence[Sequence[tuple[Row | None, Row | None]]], *, lasting: int = 3
) -> list[bytes]:
    """`lasting`: from start_ts to commit_ts."""
    payloads = []
    for number, changes in enumerate(transactions):
        steps: list[tuple[TableInfo, Step]] = []
        for old, new in changes:
            kind = "insert" if old is None else "delete" if new is None else "update"
            before, after = (_written(info, row) if row is not None else {} for row in (old, new))
            steps.append((info, (kind, before, after)))  # type: ignore[arg-type]
        payloads.append(transaction(steps, commit_ts=BEGIN_TS + number, start_ts=BEGIN_TS + number - lasting))
    return payloads


def segment_of(infos: Sequence[TableInfo], payloads: Sequence[bytes], *, rows_min: int = 1 << 30) -> ChangeSegment:
    decoder = StreamDecoder(view_of(*infos))
    decoder._columns._vector_rows_min = rows_min
    return decoder.segment(payloads, 0, 1)


def image_of(info: TableInfo, row: Row) -> Image:
    return tuple(_written(info, row).values())  # type: ignore[arg-type]


def change_rows(info: TableInfo, rows: list[Image], changes: Sequence[tuple[Row | None, Row | None]]) -> None:
    """What the changes make of the rows of a table."""
    for old, new in changes:
        if old is not None:
            rows.remove(image_of(info, old))
        if new is not None:
            rows.append(image_of(info, new))


def listed(events: Sequence[RowChanges]) -> list[tuple[int, Event]]:
    """(commit_ts, event) in order. An update that became a delete and an insert of one partition has one order; so have
    the deletes of two rows, if a change moved one of them to the key of the other."""
    found = []
    for one in events:
        images = [
            [None] * len(one) if columns is None else list(zip(*[c.to_pylist() for c in columns], strict=True))
            for columns in (one.old, one.new)
        ]
        for order, commit_ts, old, new in zip(one.order.tolist(), one.commit_ts.tolist(), *images, strict=True):
            found.append((order, commit_ts, (one.kind, old, new)))
    assert len({repr((order, event)) for order, _, event in found}) == len(found)
    in_order = sorted(found, key=lambda one: (one[0], one[2][0] is not Kind.DELETE))
    return [(commit_ts, event) for _, commit_ts, event in in_order]


def run(rows: list[Image], event: Event, key_of: Callable[[Image], object]) -> None:
    """On the rows of a table; fails where the old image is not there, or a key is there twice."""
    _, old, new = event
    if old is not None:
        rows.remove(old)
    if new is not None:
        assert all(key_of(other) != key_of(new) for other in rows) or key_of(new) is None, event
        rows.append(new)
