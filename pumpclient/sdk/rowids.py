"""Hidden row ids (`_tidb_rowid`) of tables without a clustered key.

Drainers do not look at them; they only have to be there and to differ. A timestamp of the cluster, taken once, gives
each process a range of its own: timestamps advance by 262,144 a millisecond, faster than anybody writes rows.
"""

from __future__ import annotations

import itertools


class RowIds:
    """Row ids from `first_ts` on."""

    def __init__(self, first_ts: int) -> None:
        self._numbers = itertools.count(first_ts)

    def next(self) -> int:
        return next(self._numbers)
