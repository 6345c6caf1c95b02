"""The connection between the stream reader, which Spark runs in a process of its own, and the scheduler in the driver.

    reader                          driver
    ("next", start_ts)      ──►     waits a moment for something to do
                            ◄──     until_ts (= start_ts: nothing yet)
    ("tasks", start, until) ──►
                            ◄──     the tasks of that batch, and what they shall do with it

The two ends use a local socket in a folder that only this user may enter. Before anything is read, each end proves that
it knows a key that is created at every start (multiprocessing.connection). Questions are JSON, so that the driver
unpickles nothing from the reader. The driver's answers are pickled, because tasks contain a schema; Spark also pickles
everything else that it passes from the driver to its Python processes. This module imports little, because Spark starts
the reader's process again for every query.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import cast

from binlog.errors import BinlogError
from binlog.runtime.log import get_logger

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


QUESTION_BYTES_MAX = 1024
# The path of a socket has at most 107 bytes; 32 of them follow the folder's path.
SOCKET_FOLDER_BYTES_MAX = 75

_log = get_logger(__name__)


class QuestionUnreadable(BinlogError):
    """A request on the planner's socket that is not one of those above."""


class PlannerServer:
    """The driver's end. Answers the reader's questions until `close`, with a thread for each connection. An error in an
    answer is sent to the reader, whose query then fails, and passed to `on_error`. After `close`, the query has ended,
    and `on_error` is not called."""

    def __init__(
        self,
        next_until: Callable[[int], int],
        tasks: Callable[[int, int], Tasks],
        on_error: Callable[[BaseException], None],
    ) -> None:
        """`next_until`, `tasks`: of the scheduler. Both block; `next_until` for at most a fraction of a second."""
        self._next_until, self._tasks, self._on_error = next_until, tasks, on_error
        usual = tempfile.gettempdir()
        parent = usual if len(os.fsencode(usual)) <= SOCKET_FOLDER_BYTES_MAX else "/tmp"
        self._directory = tempfile.TemporaryDirectory(prefix="drainer-planner-", dir=parent)
        self.key = secrets.token_hex(16)
        self.address = str(Path(self._directory.name) / "socket")
        self._listener = Listener(self.address, family="AF_UNIX", authkey=self.key.encode())
        self._closing = False
        self._thread = threading.Thread(target=self._accept, name="planner", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        # Wakes accept(). Not a Client, which would wait for the handshake for ever if the thread has just left its
        # loop.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as wake:
            wake.connect(self.address)
        self._thread.join(5)
        self._listener.close()
        self._directory.cleanup()

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection = self._listener.accept()
            except Exception as error:  # noqa: BLE001  a stranger with a wrong key must not end the line
                if self._closing:
                    return
                _log.warning("planner connection refused", error=str(error))
                continue
            threading.Thread(target=self._serve, args=(connection,), name="planner line", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with connection, contextlib.suppress(EOFError, OSError):
            while not self._closing:
                asked = connection.recv_bytes(QUESTION_BYTES_MAX)
                try:
                    answer = self._answer(*question_of(asked))
                except Exception as error:  # noqa: BLE001  whatever it is, the daemon must hear of it and stop
                    if not self._closing:
                        self._on_error(error)
                    connection.send(("error", f"{type(error).__name__}: {error}"))
                else:
                    connection.send(("ok", answer))

    def _answer(self, question: str, start_ts: int, until_ts: int) -> int | Tasks:
        if question == "next":
            return self._next_until(start_ts)
        return self._tasks(start_ts, until_ts)


def question_of(asked: bytes) -> tuple[str, int, int]:
    """Return (question, start_ts, until_ts). Raises QuestionUnreadable."""
    try:
        question, start_ts, until_ts = json.loads(asked)
    except (ValueError, TypeError, RecursionError) as error:
        raise QuestionUnreadable(f"stream reader: {asked[:100]!r} is not a valid request: {error}") from None
    if question not in ("next", "tasks") or type(start_ts) is not int or type(until_ts) is not int:
        raise QuestionUnreadable(f"stream reader: {asked[:100]!r} is not a valid request")
    return question, start_ts, until_ts
