"""The driver's end of the connection to the stream reader. planner_client.py is the reader's end and describes the
messages.
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
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from binlog.errors import BinlogError
from binlog.runtime.log import get_logger

from drainer.spark.source.planner_client import Tasks

QUESTION_BYTES_MAX = 1024
# The path of a socket has at most 107 bytes; 32 of them follow the folder's path.
SOCKET_FOLDER_BYTES_MAX = 75

_log = get_logger(__name__)


class QuestionUnreadable(BinlogError):
    """A request on the planner's socket that is not one of those of drainer.spark.source.planner_client."""


class PlannerServer:
    """Answers the reader's questions until `close`, with a thread for each connection. An error in an answer is sent to
    the reader, whose query then fails, and passed to `on_error`. After `close`, the query has ended, and `on_error` is
    not called."""

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
