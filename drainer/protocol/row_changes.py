"""What encoders are given: changes of rows of one table and kind, as columns."""

from __future__ import annotations

from dataclasses import dataclass

from drainer.batch.work import Kind
from drainer.changes.decode import Columns
from drainer.changes.vector import Ints, Words
from drainer.protocol.table import Table


@dataclass(frozen=True, slots=True)
class RowChanges:
    """All arrays have one length. `order`: the place of each among all changes of its segment, in upstream's order.
    `old` and `new`: Arrow arrays of carriers (row/carrier.py), parallel to `table.columns`; `old` is None for
    inserts, `new` for deletes."""

    table: Table
    kind: Kind
    commit_ts: Words
    start_ts: Words
    order: Ints
    old: Columns | None
    new: Columns | None

    def __len__(self) -> int:
        return len(self.order)

    def take(self, chosen: Ints) -> RowChanges:
        """Those at these places, in their order."""

        def some(columns: Columns | None) -> Columns | None:
            return None if columns is None else tuple(column.take(chosen) for column in columns)

        return RowChanges(
            self.table,
            self.kind,
            self.commit_ts[chosen],
            self.start_ts[chosen],
            self.order[chosen],
            some(self.old),
            some(self.new),
        )

    def slice(self, begin: int, count: int) -> RowChanges:
        """At most `count` of them from this place on; nothing is copied."""

        def some(columns: Columns | None) -> Columns | None:
            return None if columns is None else tuple(column.slice(begin, count) for column in columns)

        end = begin + count
        return RowChanges(
            self.table,
            self.kind,
            self.commit_ts[begin:end],
            self.start_ts[begin:end],
            self.order[begin:end],
            some(self.old),
            some(self.new),
        )

    @property
    def image(self) -> Columns:
        """The new image, of deletes the old one."""
        image = self.old if self.new is None else self.new
        assert image is not None
        return image
