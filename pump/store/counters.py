"""Counters of a store."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

LATE_KEPT = 100  # the newest late commits that are kept; the first ones, as many, each have a log line


@dataclass(slots=True)
class Counters:
    """The counters that metrics and status show."""

    written: int = 0
    refused: int = 0
    commits: int = 0
    late_commits: int = 0
    late_ts: deque[int] = field(default_factory=lambda: deque(maxlen=LATE_KEPT))
