"""Hidden row ids (`_tidb_rowid`) of tables without a clustered key.

Drainers do not use the ids; they must only exist and be unique. Each process starts at a timestamp of the cluster,
which gives it a range of its own: timestamps advance by 262,144 per millisecond, faster than any process writes rows.
"""

from __future__ import annotations

import itertools


class RowIds:
    """A sequence of row ids that starts at `first_ts`."""

    def __init__(self, first_ts: int) -> None:
        self._numbers = itertools.count(first_ts)

    def next(self) -> int:
        return next(self._numbers)
