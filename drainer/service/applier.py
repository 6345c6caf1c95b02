"""A thread that applies one batch while the next one is read. At most one is under way."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from binlog.runtime.log import get_logger

Work = Callable[[], None]

_log = get_logger(__name__)


class Applier:
    """Carries out one piece of work after another in the order of `begin`, on one thread, for Spark keeps something
    for every thread that calls it. After work that failed nothing begins until `reset`."""

    def __init__(self) -> None:
        self._last: Future[None] | None = None
        self._works: queue.SimpleQueue[tuple[Work, Callable[[], None], Future[None]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, work: Work, failed: Callable[[], None]) -> None:
        """Waits for the work before, and raises what that raised. `failed`: called when this one has raised."""
        self.wait()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="apply", daemon=True)
            self._thread.start()
        self._last = Future()
        self._works.put((work, failed, self._last))

    def wait(self) -> None:
        """Until nothing is under way. Raises what the last work raised, each time it is asked."""
        if self._last is not None:
            self._last.result()

    def reset(self) -> None:
        """Wait until nothing is under way, and forget what it raised."""
        if self._last is not None:
            self._last.exception()
        self._last = None

    def _run(self) -> None:
        while True:
            # In a call, so that work that is done is not referred to: Spark keeps a batch's files for as long.
            self._carry_out(*self._works.get())

    def _carry_out(self, work: Work, failed: Callable[[], None], done: Future[None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  it is raised where the work is waited for
            done.set_exception(error)
            try:
                failed()
            except Exception as another:  # noqa: BLE001  without this thread whoever waits next waits for ever
                _log.warning("the query of a failed batch cannot be stopped", error=str(another))
        else:
            done.set_result(None)
