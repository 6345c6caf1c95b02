"""What fails now and is tried again, for the page, /status and a metric. One register for the process, like metrics."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

# A deadlock between slots is over at the next try and no trouble; what fails for the third time in a row is.
TRIES_TOLD = 3


@dataclass(frozen=True, slots=True)
class Trouble:
    """`what` has failed `tries` times in a row, since unix second `since_s`, the last time at `last_s` with `error`."""

    what: str
    error: str
    since_s: float
    last_s: float
    tries: int


class Troubles:
    """May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, Trouble] = {}
        self._last: Trouble | None = None

    def failed(self, what: str, error: BaseException, *, tries: int = 1) -> None:
        """`tries`: TRIES_TOLD where one failure is worth telling."""
        now_s = time.time()
        with self._lock:
            before = self._found.get(what) or Trouble(what, "", now_s, now_s, 0)
            after = replace(before, error=str(error), last_s=now_s, tries=before.tries + tries)
            self._found[what] = after
            if after.tries >= TRIES_TOLD:
                self._last = after

    def over(self, what: str) -> None:
        with self._lock:
            self._found.pop(what, None)

    @property
    def now(self) -> Trouble | None:
        """What has been failing longest."""
        with self._lock:
            told = [trouble for trouble in self._found.values() if trouble.tries >= TRIES_TOLD]
        return min(told, key=lambda trouble: trouble.since_s, default=None)

    @property
    def last(self) -> Trouble | None:
        """The newest that was told, over or not."""
        with self._lock:
            return self._last


TROUBLES = Troubles()
