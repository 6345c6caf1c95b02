"""A TiDB's sessions that give the answers of a test."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from drainer.ranges.upstream import Snapshot
from drainer.sink.errors import DestinationError
from drainer.sink.mysql.connection import ServerSession
from tests.support.row_packets import packet

Answer = list[list[bytes | None] | DestinationError]


class FakeSession:
    """Answers each query with the next of `answers`: rows, each a block, or an error after the rows before it."""

    address = "tidb:4000"
    flavour = "tidb"
    version = "8.0"

    def __init__(self, *answers: Answer) -> None:
        self.said: list[str] = []
        self.closed = False
        self._answers = iter(answers)

    def execute(self, sql: bytes) -> int:
        self.said.append(sql.decode())
        return 0

    def packets(self, sql: bytes, block_bytes: int) -> tuple[int, Iterator[list[bytes]]]:
        self.said.append(sql.decode())
        rows = next(self._answers)
        columns = next((len(row) for row in rows if isinstance(row, list)), 0)
        return columns, self._blocks(rows)

    def _blocks(self, rows: Answer) -> Iterator[list[bytes]]:
        for row in rows:
            if isinstance(row, DestinationError):
                raise row
            yield [packet(row)]

    def close(self) -> None:
        self.closed = True


def snapshot_of(session: FakeSession, ts: int = 42) -> Snapshot:
    return Snapshot(cast(ServerSession, session), ts)


class FakeUpstream:
    """A TiDB whose tables all have the same rows, by their key, and are divided at 2. `errors`: what the next queries
    raise after their first row; `read`: how many ranges were read; `closed`: how many sessions; `asked`: the TSOs."""

    def __init__(self, rows: Mapping[int, Sequence[bytes | None]], *errors: DestinationError | None) -> None:
        self.rows = rows
        self.errors = iter(errors)
        self.read = self.closed = 0
        self.asked: list[int] = []

    def connect(self, ts: int) -> Snapshot:
        return Snapshot(cast(ServerSession, self), ts)

    def execute(self, sql: bytes) -> int:
        self.asked += map(int, re.findall(rb"tidb_snapshot='(\d+)'", sql))
        return 0

    def packets(self, sql: bytes, block_bytes: int) -> tuple[int, Iterator[list[bytes]]]:
        rows = self._answer(sql.decode())
        columns = 1 if b"OFFSET" in sql or b"TIDB_TABLE_ID" in sql else max(map(len, self.rows.values()))
        error = None if b"TIDB_TABLE_ID" in sql else next(self.errors, None)
        return columns, FakeSession()._blocks([*rows[:1], error, *rows[1:]] if error and rows else [*rows])

    def _answer(self, text: str) -> list[list[bytes | None]]:
        if "TIDB_TABLE_ID" in text:
            return [[b"%d" % table_id] for table_id in range(200)]
        if "OFFSET" in text:
            return [] if "> 2" in text else [[b"2"]]
        if found := re.search(r" IN \((.*)\)$", text):
            return [list(self.rows[key]) for key in map(int, re.findall(r"\d+", found[1])) if key in self.rows]
        lower, upper = (re.search(rf"{sign} 2", text) for sign in (">=", "<"))
        self.read += "LIMIT" not in text
        chosen = [key for key in self.rows if (lower is None or key >= 2) and (upper is None or key < 2)]
        return [list(self.rows[key]) for key in chosen]

    def close(self) -> None:
        self.closed += 1
