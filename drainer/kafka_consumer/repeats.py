"""Recognise rows of a partition that were received before: producers that deliver at least once send rows again.

A row with a key changes at most once in a transaction, so table, commit_ts, kind of change and key identify its event.
Rows without a key are counted, because a transaction may have equal ones. A producer that begins again sends a table's
rows in their order from some commit_ts on. So the n-th equal row of one stretch of a commit_ts is a repeat if n equal
rows of that commit_ts were received. What cannot be recognised: rows without a key, if a producer begins again with
the very commit_ts with which it ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from drainer.protocol.event import Image, RowEvent, key_of

_Table = tuple[str, str, int]


class Repeats:
    """The rows of one partition that were received and have a commit_ts that may come again."""

    def __init__(self) -> None:
        self._received: dict[int, Counter[Hashable]] = {}  # by commit_ts
        self._stretch: dict[_Table, tuple[int, Counter[Hashable]]] = {}  # the commit_ts that is being received

    def is_repeat(self, event: RowEvent) -> bool:
        """Return whether this row was received before; if not, it counts as received."""
        table = (event.schema, event.table, event.partition_id)
        key = key_of(event)
        content = [_values(key)] if key is not None else [event.row_id, _values(event.old), _values(event.new)]
        row = (table, event.change, *content)
        received = self._received.setdefault(event.commit_ts, Counter())
        commit_ts, stretch = self._stretch.get(table, (0, Counter[Hashable]()))
        if commit_ts != event.commit_ts:
            stretch = Counter()
            self._stretch[table] = (event.commit_ts, stretch)
        stretch[row] += 1
        if received[row] and (key is not None or stretch[row] <= received[row]):
            return True
        received[row] += 1
        return False

    def forget_below(self, commit_ts: int) -> None:
        """Forget rows that are recognised by their commit_ts alone."""
        self._received = {ts: rows for ts, rows in self._received.items() if ts >= commit_ts}


def _values(image: Image | None) -> Hashable:
    return None if image is None else tuple(sorted((name, one.value) for name, one in image.items()))
