"""The line between the stream reader, which Spark runs in a process of its own, and the coordinator in the driver.

    reader                          driver
    ("next", start_ts)      ──►     waits a moment for something to do
                            ◄──     until_ts (= start_ts: nothing yet)
    ("tasks", start, until) ──►
                            ◄──     the tasks of that batch, and what they shall do with it

A local socket, authenticated with a key made anew at every start (multiprocessing.connection).
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Protocol, cast

from binlog.errors import BinlogError
from binlog.log import get_logger

from drainer.pumps.mark import PumpRange
from drainer.reading import FoldOrder

_log = get_logger(__name__)

Tasks = tuple[tuple[tuple[PumpRange, ...], ...], FoldOrder | None]


class Planner(Protocol):
    """What the reader asks. Both block; `next_until` at most a fraction of a second."""

    def next_until(self, start_ts: int) -> int: ...

    def tasks(self, start_ts: int, until_ts: int) -> Tasks: ...


class PlannerGone(BinlogError):
    """The driver does not answer any more, or answered with an error (its text)."""


class PlannerServer:
    """Serves one Planner until `close`; every connection has a thread. An error in the planner goes to
    `on_error` and to the reader, whose query then fails."""

    def __init__(self, planner: Planner, on_error: Callable[[BaseException], None]) -> None:
        self._planner = planner
        self._on_error = on_error
        self._directory = tempfile.TemporaryDirectory(prefix="drainer-planner-")
        self.key = secrets.token_hex(16)
        self.address = str(Path(self._directory.name) / "socket")
        self._listener = Listener(self.address, family="AF_UNIX", authkey=self.key.encode())
        self._closing = False
        self._thread = threading.Thread(target=self._accept, name="planner", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing = True
        # Wakes accept(). Not a Client: that waits to be greeted, for ever if the thread has just left its loop.
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
                question, *numbers = connection.recv()
                try:
                    answer = self._answer(question, *numbers)
                except Exception as error:  # noqa: BLE001  whatever it is, the daemon must hear of it and stop
                    self._on_error(error)
                    connection.send(("error", f"{type(error).__name__}: {error}"))
                else:
                    connection.send(("ok", answer))

    def _answer(self, question: str, start_ts: int, until_ts: int) -> int | Tasks:
        if question == "next":
            return self._planner.next_until(start_ts)
        return self._planner.tasks(start_ts, until_ts)


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
            self._connection.send((question, start_ts, until_ts))
            verdict, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise PlannerGone(f"the drainer's coordinator does not answer: {error}") from error
        if verdict != "ok":
            raise PlannerGone(answer)
        return cast("int | Tasks", answer)
