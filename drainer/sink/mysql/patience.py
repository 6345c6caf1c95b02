"""How long to go on trying: growing pauses with a bound, and a word in the log while it lasts."""

from __future__ import annotations

import random
import threading
import time
from typing import Final

import structlog

from drainer.sink.errors import DestinationDown, DestinationError

_log = structlog.get_logger(__name__)

_PAUSE_S_FIRST: Final = 0.02
_PAUSE_S_MAX: Final = 5.0


class Patience:
    """Counts failures of one piece of work. `failed` waits before the next try, or raises when time is up."""

    def __init__(self, what: str, wait_s: float) -> None:
        self._what = what
        self._wait_s = wait_s
        self._started_s = time.monotonic()
        self._pause_s = _PAUSE_S_FIRST
        self._never = threading.Event()
        self.failures = 0

    def failed(self, error: DestinationError) -> None:
        """Raises DestinationDown when the work has been failing for longer than `wait_s`."""
        self.failures += 1
        waited = time.monotonic() - self._started_s
        if waited >= self._wait_s:
            raise DestinationDown(f"{self._what}: gave up after {waited:.0f} s: {error}") from error
        if self.failures in (1, 10) or self.failures % 100 == 0:
            _log.warning("destination: trying again", what=self._what, failures=self.failures, error=str(error))
        self._never.wait(min(self._pause_s * random.uniform(0.5, 1.5), self._wait_s - waited))
        self._pause_s = min(self._pause_s * 2, _PAUSE_S_MAX)
