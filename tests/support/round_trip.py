"""Rows of every type through a protocol's encoder, and what must come back of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from drainer.batch.work import Kind
from drainer.protocol.event import Change, Event, Image, RowEvent
from drainer.protocol.row_changes import RowChanges
from drainer.row.column_type import DecodedValue
from tests.support.row_changes import make_changes
from tests.support.typed_columns import typed_table

TABLE: Final = typed_table()
Row = tuple[DecodedValue, ...]


def values(image: Image | None) -> dict[str, object]:
    return {name: column.value for name, column in (image or {}).items()}


def empty_row() -> Row:
    """NULL but for the key."""
    return tuple(1 if n == 0 else None for n in range(len(TABLE.columns)))


def changes_of_each_kind(pairs: Sequence[tuple[Row, Row]], commit_ts: int) -> Iterator[RowChanges]:
    """Inserts, updates and deletes of these old and new rows."""
    old, new = [was for was, _ in pairs], [now for _, now in pairs]
    for kind in Kind:
        images = (None if kind is Kind.INSERT else old, None if kind is Kind.DELETE else new)
        yield make_changes(TABLE, kind, old=images[0], new=images[1], commit_ts=commit_ts)


def check_row(
    events: Sequence[Event], kind: Kind, commit_ts: int, pair: tuple[Row, Row], shown: Callable[[Row], object]
) -> RowEvent:
    """The one event of a message, which is that of a row. `shown`: the image that comes back of one."""
    (event,) = events
    assert isinstance(event, RowEvent)
    assert (event.schema, event.table, event.commit_ts) == ("typed", "everything", commit_ts)
    assert event.change == Change(kind.name.lower())
    was, now = pair
    assert values(event.old) == (shown(was) if kind is not Kind.INSERT else {})
    assert values(event.new) == (shown(now) if kind is not Kind.DELETE else {})
    return event
