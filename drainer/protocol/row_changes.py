"""The input of encoders: changes of rows of one table and one kind, as columns."""

from __future__ import annotations

from dataclasses import dataclass

from drainer.batch.work import Kind
from drainer.changes.decode import Columns
from drainer.changes.vector import Ints, Words
from drainer.protocol.table import Table


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Changes of rows. All arrays have the same length. `order`: the position of each change among all changes of its
    segment, in upstream's order. `old` and `new`: Arrow arrays of decoded values (row/decoded_value.py), parallel to
    `table.columns`. `old` is None for inserts, `new` is None for deletes."""

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
        """Return the changes at the positions `chosen`, in that order."""

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
        """Return at most `count` changes from position `begin` on. Copies nothing."""

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
        """Return the new image, for deletes the old one."""
        image = self.old if self.new is None else self.new
        assert image is not None
        return image
