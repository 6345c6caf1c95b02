"""Net rows for a server as the drainer makes them: as columns of texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from drainer.batch.work import NetRow
from drainer.changes.net import IMAGES, NetColumns, Tuples
from drainer.sink.mysql.rows.format import SQL_TEXT


def net_columns(rows: Iterable[NetRow]) -> NetColumns:
    """Of rows whose `row` and `stale` are texts."""
    rows = sorted(rows, key=lambda row: row.identity)
    texts = [None if row.row is None else SQL_TEXT.pack(row.row) for row in rows]
    return NetColumns(
        SQL_TEXT,
        pa.array([row.identity for row in rows], pa.binary()),
        np.array([int(row.first) for row in rows], np.int64),
        pa.array(texts, pa.binary()),
        pa.array([[SQL_TEXT.pack(key) for key in row.stale] for row in rows], IMAGES),
    )


def tuples_of(texts: Sequence[bytes]) -> Tuples:
    offsets = np.cumsum([0, *(len(text) + 1 for text in texts)])
    return Tuples(memoryview(b"".join(text + b"," for text in texts)), offsets)
