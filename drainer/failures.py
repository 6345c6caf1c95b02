"""Process-wide register of operations that currently fail and are retried, for the page, /status and a metric."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

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
        self._last: Failure | None = None

    def failed(self, what: str, error: BaseException, *, tries: int = 1, failing_s: float = 0.0) -> None:
        """Count `tries` failures of the operation `what`; pass TRIES_REPORTED to report it at once. `failing_s`: how
        long it has been failing already, for the first of them."""
        now_s = time.time()
        with self._lock:
            before = self._found.get(what) or Failure(what, "", now_s - failing_s, now_s, 0)
            after = replace(before, error=str(error), last_s=now_s, tries=before.tries + tries)
            self._found[what] = after
            if after.tries >= TRIES_REPORTED:
                self._last = after

    def clear(self, what: str) -> None:
        with self._lock:
            self._found.pop(what, None)

    @property
    def now(self) -> Failure | None:
        """Return the reported failure that has lasted longest; None if nothing fails."""
        with self._lock:
            reported = (failure for failure in self._found.values() if failure.tries >= TRIES_REPORTED)
            return min(reported, key=lambda failure: failure.since_s, default=None)

    @property
    def last(self) -> Failure | None:
        """The most recent reported failure, current or not."""
        with self._lock:
            return self._last


FAILURES = Failures()
