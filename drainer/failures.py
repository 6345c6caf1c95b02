"""Process-wide register of operations that currently fail and are retried, for the page, /status and a metric.

In the driver it also holds the failures that tasks report (drainer.spark.failure_reports). A report that is not renewed
expires, because a task may be killed and its messages may be lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

# A deadlock between slots succeeds at the next try and is not reported; a third failure in a row is.
TRIES_REPORTED = 3
REPORT_EXPIRES_S = 15.0
# How many tasks' last message numbers are kept; more than the number of tasks at any time.
REPORTERS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Failure:
    """`what` has failed `tries` times in a row, first at unix second `since_s`, last at `last_s` with `error`."""

    what: str
    error: str
    since_s: float
    last_s: float
    tries: int


@dataclass(frozen=True, slots=True)
class _Heard:
    number: int
    failure: Failure | None
    at_s: float


class Failures:
    """The failing operations by name. Thread-safe. `watcher` is called, in the thread that reports, whenever the
    reported failures of this process have changed."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """`clock_s`: the clock by which reports of tasks expire."""
        self.watcher: Callable[[], None] | None = None
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._found: dict[str, Failure] = {}
        self._heard: dict[str, _Heard] = {}
        self._last: Failure | None = None

    def failed(self, what: str, error: BaseException, *, tries: int = 1) -> None:
        """Count `tries` failures of the operation `what`; pass TRIES_REPORTED to report it at once."""
        now_s = time.time()
        with self._lock:
            before = self._found.get(what) or Failure(what, "", now_s, now_s, 0)
            after = replace(before, error=str(error), last_s=now_s, tries=before.tries + tries)
            self._found[what] = after
            if after.tries >= TRIES_REPORTED:
                self._last = after
        if after.tries >= TRIES_REPORTED:
            self._changed()

    def clear(self, what: str) -> None:
        with self._lock:
            before = self._found.pop(what, None)
        if before is not None and before.tries >= TRIES_REPORTED:
            self._changed()

    def reset(self) -> None:
        """Forget the failures of this process. A Python worker runs one task after another."""
        with self._lock:
            self._found.clear()

    def heard(self, reporter: str, number: int, failure: Failure | None) -> None:
        """Handle message `number` of the task `reporter`: the operation that fails there, None for none. Messages may
        arrive twice and in any order; a message that is not newer than the last one is ignored."""
        with self._lock:
            before = self._heard.get(reporter)
            if before is not None and number <= before.number:
                return
            self._heard.pop(reporter, None)  # so that the first entry is the one without a message for the longest time
            self._heard[reporter] = _Heard(number, failure, self._clock_s())
            if len(self._heard) > REPORTERS_MAX:
                del self._heard[next(iter(self._heard))]
            if failure is not None:
                self._last = failure

    @property
    def now(self) -> Failure | None:
        """Return the reported failure that has lasted longest, here or in a task; None if nothing fails."""
        with self._lock:
            return _longest([*self._here(), *self._elsewhere()])

    @property
    def here(self) -> Failure | None:
        """The failure that has lasted longest in this process."""
        with self._lock:
            return _longest(self._here())

    @property
    def elsewhere(self) -> Failure | None:
        """The failure that has lasted longest in a task."""
        with self._lock:
            return _longest(self._elsewhere())

    @property
    def last(self) -> Failure | None:
        """The most recent reported failure, current or not."""
        with self._lock:
            return self._last

    def _here(self) -> list[Failure]:
        return [failure for failure in self._found.values() if failure.tries >= TRIES_REPORTED]

    def _elsewhere(self) -> list[Failure]:
        oldest_s = self._clock_s() - REPORT_EXPIRES_S
        return [heard.failure for heard in self._heard.values() if heard.failure and heard.at_s > oldest_s]

    def _changed(self) -> None:
        watcher = self.watcher
        if watcher is not None:
            watcher()


def _longest(failures: Iterable[Failure]) -> Failure | None:
    """Return the failure that has lasted longest. If several have its name, it gets the last error and the most tries
    among them.
    """
    found = list(failures)
    if not found:
        return None
    longest = min(found, key=lambda failure: failure.since_s)
    same = [failure for failure in found if failure.what == longest.what]
    newest = max(same, key=lambda failure: failure.last_s)
    return replace(newest, since_s=longest.since_s, tries=max(failure.tries for failure in same))


FAILURES = Failures()
