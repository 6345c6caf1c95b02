"""What a store counts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

LATE_KEPT = 100  # of the newest late commits; and so many have a line of their own


@dataclass(slots=True)
class Counters:
    """What metrics and status show."""

    written: int = 0
    refused: int = 0
    commits: int = 0
    late_commits: int = 0
    late_ts: deque[int] = field(default_factory=lambda: deque(maxlen=LATE_KEPT))
