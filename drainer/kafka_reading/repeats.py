"""Recognise rows of a partition that were received before: producers that deliver at least once send rows again.

Table, commit_ts, kind of change, key and values identify the event of a row with a key: TiDB changes such a row once
in a transaction, and a service of the SDK to other values each time. Rows without a key are counted, because a
transaction may have equal ones. A producer that begins again sends a table's rows in their order from some commit_ts
on. So the n-th equal row of one stretch of a commit_ts is a repeat if n equal rows of that commit_ts were received.
What cannot be recognised: rows without a key, if a producer begins again with the very commit_ts with which it ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from drainer.protocol.event import Image, RowEvent, key_of

_Table = tuple[str, str, int]


class Repeats:
    """The rows of one partition that were received and have a commit_ts that may come again."""

    def __init__(self) -> None:
        self._begin_ts = 0
        self._received: dict[int, Counter[Hashable]] = {}  # by commit_ts
        self._stretch: dict[_Table, tuple[int, Counter[Hashable]]] = {}  # the commit_ts that is being received

    def is_repeat(self, event: RowEvent, contents: Contents) -> bool:
        """Return whether this row was received before; if not, it counts as received. `contents`: see contents_of."""
        received = self._received.get(event.commit_ts)
        if received is None:
            received = self._received[event.commit_ts] = Counter()
        table = (event.schema, event.table, event.partition_id)
        key = key_of(event)
        if key is not None:
            row: Hashable = (table, event.change, _values(key), contents)
            is_repeat = row in received
        else:
            row = (table, event.change, event.row_id, contents)
            is_repeat = self._in_stretch(table, event.commit_ts, row) <= received[row]
        if not is_repeat:
            received[row] += 1
        return is_repeat

    def _in_stretch(self, table: _Table, commit_ts: int, row: Hashable) -> int:
        """Count this row among the consecutive rows of its table with this commit_ts. Return how many of them are equal
        to it, this one included."""
        known = self._stretch.get(table)
        if known is None or known[0] != commit_ts:
            known = self._stretch[table] = (commit_ts, Counter())
        known[1][row] += 1
        return known[1][row]

    def forget_below(self, commit_ts: int) -> None:
        """Forget rows that are recognised by their commit_ts alone."""
        if commit_ts > self._begin_ts:
            self._begin_ts = commit_ts
            self._received = {ts: rows for ts, rows in self._received.items() if ts >= commit_ts}
            self._stretch = {table: one for table, one in self._stretch.items() if one[0] >= commit_ts}


def _values(image: Image) -> Hashable:
    return tuple(sorted((name, one.value) for name, one in image.items()))


# A row before and after a change: its table and values, None where there is no row.
Contents = tuple[Hashable, Hashable]


def contents_of(event: RowEvent) -> Contents:
    table = (event.schema, event.table)
    old, new = (
        None if image is None else (table, tuple([(name, one.value) for name, one in image.items()]))
        for image in (event.old, event.new)
    )
    return old, new
