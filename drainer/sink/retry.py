"""Retries with growing pauses and a time limit, visible in the log and the metrics; and the process-wide register of
operations that currently fail and are retried, for the page, /status and a metric."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from binlog.runtime import metrics
from binlog.runtime.log import Outage, get_logger

from drainer.sink.errors import DestinationDown, DestinationError

_log = get_logger(__name__)

# A deadlock between slots succeeds at the next try and is not reported; a third failure in a row is.
TRIES_REPORTED = 3


@dataclass(frozen=True, slots=True)
class Failure:
    """`what` has failed `tries` times in a row, first at unix second `since_s`, last at `last_s` with `error`."""

    what: str
    error: str
    since_s: float
    last_s: float
    tries: int


class Failures:
    """The failing operations by name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, Failure] = {}
        self.last: Failure | None = None  # the most recent reported failure, current or not

    def failed(self, what: str, error: BaseException, *, tries: int = 1, failing_s: float = 0.0) -> None:
        """Count `tries` failures of the operation `what`; pass TRIES_REPORTED to report it at once. `failing_s`: how
        long it has been failing already, for the first of them."""
        now_s = time.time()
        with self._lock:
            before = self._found.get(what) or Failure(what, "", now_s - failing_s, now_s, 0)
            after = replace(before, error=str(error), last_s=now_s, tries=before.tries + tries)
            self._found[what] = after
            if after.tries >= TRIES_REPORTED:
                self.last = after

    def clear(self, what: str) -> None:
        with self._lock:
            self._found.pop(what, None)

    @property
    def now(self) -> Failure | None:
        """Return the reported failure that has lasted longest; None if nothing fails."""
        with self._lock:
            reported = (failure for failure in self._found.values() if failure.tries >= TRIES_REPORTED)
            return min(reported, key=lambda failure: failure.since_s, default=None)


FAILURES = Failures()

T = TypeVar("T")

_PAUSE_S_FIRST: Final = 0.02
_PAUSE_S_MAX: Final = 5.0
# A deadlock or two between slots is normal; only repeated failures are logged, periodically.
_QUIET_FAILURES: Final = 5
# A try may take long, as that of a client library which looks for brokers itself: five would be a silent minute.
_QUIET_S: Final = 5.0

# The driver learns of a task's failures only when the task ends. So a task gives up after the first of these times, and
# the driver repeats the batch. Every repetition may take twice as long as the one before, up to the second: work that
# fails only because a loaded destination is slow must not begin anew for ever.
TASK_RETRY_S: Final = 10.0
TASK_RETRY_S_MAX: Final = 60.0

_RETRIES = metrics.counter("drainer_destination_retries_total", "transactions and connections tried again", ["error"])
_WAITING = metrics.gauge("drainer_destination_waiting_seconds", "how long the work at hand has been failing")


class RetryDeadline:
    """Counts failures of one piece of work. `failed` waits before the next try, or raises when time is up or
    `stop` is set. Time runs from the first failure since the last success (`over`): a large transaction may take longer
    than that before it fails."""

    def __init__(self, what: str, wait_s: float, stop: threading.Event | None = None) -> None:
        self.what = what
        self._wait_s = wait_s
        self._failing_since_s = 0.0
        self._begun_s = time.monotonic()
        self._pause_s = _PAUSE_S_FIRST
        self._stop = stop or threading.Event()
        self._outage = Outage(_log, "destination: trying again", "destination: it works again")
        self.failures = 0

    def failed(self, error: DestinationError) -> None:
        """Raises DestinationDown."""
        if not self.failures:
            self._failing_since_s = time.monotonic() - error.failing_s
        self.failures += 1
        waited = time.monotonic() - self._failing_since_s
        _RETRIES.labels(type(error).__name__).inc()
        _WAITING.set(waited)
        is_slow = max(waited, time.monotonic() - self._begun_s) >= _QUIET_S
        tries = max(1, TRIES_REPORTED - self.failures + 1) if is_slow else 1
        FAILURES.failed(self.what, error, tries=tries, failing_s=error.failing_s)
        if waited >= self._wait_s:
            last = DestinationDown(f"{self.what}: gave up after {waited:.0f} s: {error}")
            last.failing_s = waited
            raise last from error
        if self.failures >= _QUIET_FAILURES or is_slow:
            self._outage.failed(what=self.what, failures=self.failures, error=str(error))
        if self._stop.wait(min(self._pause_s * random.uniform(0.5, 1.5), self._wait_s - waited)):
            raise DestinationDown(f"{self.what}: told to stop while waiting: {error}") from error
        self._pause_s = min(self._pause_s * 2, _PAUSE_S_MAX)

    def repeat(
        self,
        work: Callable[[], T],
        failures: tuple[type[DestinationError], ...],
        lost: Callable[[DestinationError], object] = lambda _: None,
    ) -> T:
        """Return the result of `work`. If it raises one of `failures`, call `lost`, wait, and run it again. Raises
        DestinationDown at the deadline, and whatever else `work` raises."""
        while True:
            try:
                found = work()
            except failures as error:
                lost(error)
                self.failed(error)
            else:
                self.over()
                return found

    def over(self) -> None:
        """The work, or a part of it that need not be repeated, has succeeded."""
        if self.failures:
            self._outage.over(what=self.what, failures=self.failures)
            _WAITING.set(0)
            FAILURES.clear(self.what)
        self.failures = 0
        self._begun_s, self._pause_s = time.monotonic(), _PAUSE_S_FIRST
