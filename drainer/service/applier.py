"""A thread that applies one batch while the next one is read. At most one batch is being applied."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from binlog.runtime.log import get_logger

Work = Callable[[], None]

_log = get_logger(__name__)


class Applier:
    """Runs one piece of work after another in the order of `begin`. All run on one thread, because Spark keeps data for
    every thread that calls it. After work that failed, no other begins until `reset`."""

    def __init__(self) -> None:
        self._last: Future[None] | None = None
        self._works: queue.SimpleQueue[tuple[Work, Callable[[], None], Future[None]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, work: Work, failed: Callable[[], None]) -> None:
        """Wait for the previous work and raise its error, if any; then begin this one. `failed`: called if this one
        raises.
        """
        self.wait()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="apply", daemon=True)
            self._thread.start()
        self._last = Future()
        self._works.put((work, failed, self._last))

    def wait(self) -> None:
        """Wait until no work is running. Raises the error of the last work, at every call."""
        if self._last is not None:
            self._last.result()

    def reset(self) -> None:
        """Wait until no work is running, and forget its error."""
        if self._last is not None:
            self._last.exception()
        self._last = None

    def _run(self) -> None:
        while True:
            # In a function of its own, so that no reference to finished work is left: Spark keeps a batch's files as
            # long as one exists.
            self._carry_out(*self._works.get())

    def _carry_out(self, work: Work, failed: Callable[[], None], done: Future[None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  it is raised where the work is waited for
            done.set_exception(error)
            # The error's traceback refers to this frame. In a reference cycle, the batch that failed would stay in
            # memory until the garbage collector runs.
            del work, done
            try:
                failed()
            except Exception as another:  # noqa: BLE001  without this thread whoever waits next waits for ever
                _log.warning("the query of a failed batch cannot be stopped", error=str(another))
        else:
            done.set_result(None)
