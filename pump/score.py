"""How much of the cluster's writes this pump wants: one number from how long writes take, how much room its disk has,
and how much drainers have yet to read. Pure.

Pump clients with the strategy `score` choose a pump as often as its score is large. So a score is a share, not a rank:
a pump that is twice as slow gets half of the writes, not none, and what it then reports says how it fares with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

SCORE_MAX = 1000
SCORE_MIN = 1  # 0 says in a record that nothing is measured, as a Go pump's does
WRITE_FAIR_S = 0.02  # a pump whose writes take so long gets half of what an idle one gets
BACKLOG_FAIR_BYTES = 1 << 30  # likewise with so much that drainers have yet to read
SAMPLES_MAX = 512


@dataclass(frozen=True, slots=True)
class Measures:
    """`write_s`: mean seconds from a write's arrival to its answer. `room`: share, 0 to 1, of the disk that writes may
    still fill. `backlog_bytes`: binlogs that the drainer that is furthest behind has yet to read."""

    write_s: float = 0.0
    room: float = 1.0
    backlog_bytes: int = 0

    @property
    def score(self) -> int:
        """From SCORE_MIN to SCORE_MAX."""
        load = WRITE_FAIR_S / (WRITE_FAIR_S + self.write_s)
        backlog = BACKLOG_FAIR_BYTES / (BACKLOG_FAIR_BYTES + self.backlog_bytes)
        return max(SCORE_MIN, round(SCORE_MAX * load * self.room * backlog))


def room(available_bytes: int, capacity_bytes: int, stop_bytes: int) -> float:
    """The share of a disk that may still be written, of what may be written of it at all; 0 when writes are refused."""
    usable = capacity_bytes - stop_bytes
    return min(1.0, max(0.0, (available_bytes - stop_bytes) / usable)) if usable > 0 else 0.0


@dataclass(slots=True)
class WriteTime:
    """The mean duration of writes, from counters that only grow; the newest interval counts half.

    An interval without a write counts as one of instant writes: only writes can show that a pump has recovered, so one
    that got none for being slow must get some again.
    """

    mean_s: float = 0.0
    _seconds: float = 0.0
    _count: float = 0.0

    def update(self, seconds: float, count: float) -> float:
        """Take the counters as they are now: seconds of all writes, and their number."""
        took_s, writes = seconds - self._seconds, count - self._count
        self._seconds, self._count = seconds, count
        newest_s = took_s / writes if writes > 0 else 0.0
        self.mean_s = (self.mean_s + newest_s) / 2
        return self.mean_s


@dataclass(slots=True)
class Backlog:
    """Bytes above a position. `files`: greatest ts and size of what was there at the start; afterwards `sample` tells
    how many bytes had been written when a ts was resolved, so that all up to that ts were among them."""

    files: list[tuple[int, int]]
    _samples: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])

    def sample(self, resolved_ts: int, written_bytes: int) -> None:
        """`written_bytes` since the start; both only grow."""
        if resolved_ts <= self._samples[-1][0]:
            return  # the earlier sample of this ts is the tighter one
        self._samples.append((resolved_ts, written_bytes))
        if len(self._samples) > SAMPLES_MAX:
            # Coarser where it is older; never more exact than a file.
            self._samples = [self._samples[0], *self._samples[2:-1:2], self._samples[-1]]

    def above(self, positions: Iterable[int], written_bytes: int) -> int:
        """What the drainer with the least position has yet to read; 0 where there is no drainer."""
        least = min(positions, default=None)
        if least is None:
            return 0
        passed = 0
        for ts, so_far in self._samples:
            if ts > least:
                break
            passed = so_far
        return sum(size for max_ts, size in self.files if max_ts > least) + max(0, written_bytes - passed)
