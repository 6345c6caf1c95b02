"""The input of encoders: changes of rows of one table and one kind, as columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from drainer.batch.work import Kind
from drainer.changes.decode import Columns
from drainer.changes.vector import Ints, Words
from drainer.protocol.table import Table


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Changes of rows. All arrays have the same length. `order`: the position of each change among all changes of its
    segment, in upstream's order. `old` and `new`: Arrow arrays of decoded values (row/column_type.py), parallel to
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

    @property
    def are_read(self) -> bool:
        """Whether a first load read these rows from upstream: then their start_ts is equal to their commit_ts, which it
        is in no transaction."""
        return bool(len(self)) and int(self.start_ts[0]) == int(self.commit_ts[0])

    def take(self, chosen: Ints) -> RowChanges:
        """Return the changes at the positions `chosen`, in that order."""
        return self._part(chosen, lambda column: column.take(chosen))

    def slice(self, begin: int, count: int) -> RowChanges:
        """Return at most `count` changes from position `begin` on. Copies nothing."""
        return self._part(slice(begin, begin + count), lambda column: column.slice(begin, count))

    def _part(self, chosen: Any, part: Callable[[Any], Any]) -> RowChanges:
        """`chosen`: an index of numpy's; `part`: does the same for an Arrow array."""
        return replace(
            self,
            commit_ts=self.commit_ts[chosen],
            start_ts=self.start_ts[chosen],
            order=self.order[chosen],
            old=None if self.old is None else tuple(map(part, self.old)),
            new=None if self.new is None else tuple(map(part, self.new)),
        )

    @property
    def image(self) -> Columns:
        """Return the new image, for deletes the old one."""
        image = self.old if self.new is None else self.new
        assert image is not None
        return image
