"""The connection between the stream reader, which Spark runs in a process of its own, and the scheduler in the driver.

    reader                          driver
    ("next", start_ts)      ──►     waits a moment for something to do
                            ◄──     until_ts (= start_ts: nothing yet)
    ("tasks", start, until) ──►
                            ◄──     the tasks of that batch, and what they shall do with it

The two ends use a local socket in a folder that only this user may enter. Before anything is read, each end proves that
it knows a key that is created at every start (multiprocessing.connection). Questions are JSON, so that the driver
unpickles nothing from the reader. The driver's answers are pickled, because tasks contain a schema; Spark also pickles
everything else that it passes from the driver to its Python processes. This module is the reader's end. It imports
little, because Spark starts that process again for every query.
"""

from __future__ import annotations

import json
from multiprocessing.connection import Client, Connection
from typing import cast

from binlog.errors import BinlogError

from drainer.apply.fold_order import ReadOrder
from drainer.pumps.watermark import PumpRange

Tasks = tuple[tuple[tuple[PumpRange, ...], ...], ReadOrder | None]


class PlannerGone(BinlogError):
    """The driver does not answer any more, or answered with an error (its text)."""


class PlannerLine:
    """The reader's end; connects at the first question."""

    def __init__(self, address: str, key: str) -> None:
        self._address, self._key = address, key
        self._connection: Connection | None = None

    def next_until(self, start_ts: int) -> int:
        return cast(int, self._ask("next", start_ts, 0))

    def tasks(self, start_ts: int, until_ts: int) -> Tasks:
        return cast(Tasks, self._ask("tasks", start_ts, until_ts))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, question: str, start_ts: int, until_ts: int) -> int | Tasks:
        try:
            if self._connection is None:
                self._connection = Client(self._address, family="AF_UNIX", authkey=self._key.encode())
            self._connection.send_bytes(json.dumps([question, start_ts, until_ts]).encode())
            result, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise PlannerGone(f"the drainer's scheduler does not answer: {error}") from error
        if result != "ok":
            raise PlannerGone(answer)
        return cast("int | Tasks", answer)
