"""The score of a pump: its wanted share of the cluster's writes, as one number, measured at each write of its record.

It is computed from the duration of writes, the free space of the disk, and the backlog that drainers have not read.
Pump clients with the strategy `score` choose a pump in proportion to its score. So a score is a share, not a rank: a
pump that is twice as slow gets half of the writes, not none, and its next score shows how it copes with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from binlog.cluster.registry import Registry, State
from binlog.errors import BinlogError
from binlog.runtime.log import Outage, get_logger

from pump import metrics
from pump.metrics import SCORE
from pump.store.store import Store
from pump.tasks.gc import drainers_of

SCORE_MAX = 1000
SCORE_MIN = 1  # 0 in a record means that nothing is measured, as in a Go pump's record
WRITE_FAIR_S = 0.02  # writes of this duration halve the score
BACKLOG_FAIR_BYTES = 1 << 30  # a backlog of this size halves the score
SAMPLES_MAX = 512

_log = get_logger("pump.tasks.score")


@dataclass(frozen=True, slots=True)
class Measures:
    """The measures of a score. `write_s`: mean seconds from a write's arrival to its answer. `room`: share, 0 to 1, of
    the disk that writes may still fill. `backlog_bytes`: binlogs that the slowest drainer has not read."""

    write_s: float = 0.0
    room: float = 1.0
    backlog_bytes: int = 0

    @property
    def score(self) -> int:
        """The score, from SCORE_MIN to SCORE_MAX."""
        load = WRITE_FAIR_S / (WRITE_FAIR_S + self.write_s)
        backlog = BACKLOG_FAIR_BYTES / (BACKLOG_FAIR_BYTES + self.backlog_bytes)
        return max(SCORE_MIN, round(SCORE_MAX * load * self.room * backlog))


def room(available_bytes: int, capacity_bytes: int, stop_bytes: int) -> float:
    """Return the share, 0 to 1, of the disk's usable bytes (capacity without `stop_bytes`) that is still available."""
    usable = capacity_bytes - stop_bytes
    return min(1.0, max(0.0, (available_bytes - stop_bytes) / usable)) if usable > 0 else 0.0


@dataclass(slots=True)
class WriteTime:
    """The mean duration of writes, from counters that only grow; the newest interval counts half.

    An interval without a write counts as if writes took no time. Only writes can show that a pump has recovered, so a
    pump that got none because it was slow must get some again.
    """

    mean_s: float = 0.0
    _seconds: float = 0.0
    _count: float = 0.0

    def update(self, seconds: float, count: float) -> float:
        """Add an interval and return the mean in seconds. `seconds`, `count`: the current counters of all writes."""
        took_s, writes = seconds - self._seconds, count - self._count
        self._seconds, self._count = seconds, count
        newest_s = took_s / writes if writes > 0 else 0.0
        self.mean_s = (self.mean_s + newest_s) / 2
        return self.mean_s


@dataclass(slots=True)
class Backlog:
    """Estimates the bytes of binlogs above a position. `files`: largest ts and bytes of each file at the start. For
    later binlogs, `sample` records the bytes that had been written when a ts was resolved; all binlogs up to that ts
    are among them."""

    files: list[tuple[int, int]]
    _samples: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])

    def sample(self, resolved_ts: int, written_bytes: int) -> None:
        """Record that `written_bytes` have been written since the start, now that `resolved_ts` is resolved. Both only
        grow."""
        if resolved_ts <= self._samples[-1][0]:
            return  # the earlier sample of this ts is more exact
        self._samples.append((resolved_ts, written_bytes))
        if len(self._samples) > SAMPLES_MAX:
            # Drop every second older sample: older samples become coarser.
            self._samples = [self._samples[0], *self._samples[2:-1:2], self._samples[-1]]

    def above(self, positions: Iterable[int], written_bytes: int) -> int:
        """Return the bytes that the drainer with the smallest position has not read; 0 if there is no drainer."""
        least = min(positions, default=None)
        if least is None:
            return 0
        passed = 0
        for ts, so_far in self._samples:
            if ts > least:
                break
            passed = so_far
        return sum(size for max_ts, size in self.files if max_ts > least) + max(0, written_bytes - passed)


class Measuring:
    """Measures the score of one open store. `measures`: the last measures; `take` measures again."""

    def __init__(self, store: Store, registry: Registry, *, stop_bytes: int) -> None:
        self._store = store
        self._registry = registry
        self._stop_bytes = stop_bytes
        self._write_time = WriteTime()
        self._write_time.update(*metrics.write_seconds())
        self._begun_bytes = metrics.written_bytes()
        self._backlog = Backlog([(file.max_ts, file.size) for file in store.log.files()])
        self._positions: list[int] = []
        self._outage = Outage(_log, "positions of drainers are unknown", "positions of drainers are known again")
        self.measures = Measures()

    async def take(self) -> int:
        """Measure and return the score. If etcd does not answer, the last known positions of the drainers are used."""
        with self._outage.catching(BinlogError):
            drainers = await drainers_of(self._registry)
            self._positions = [status.max_commit_ts for status in drainers if status.state is not State.OFFLINE]
        space, written = self._store.space, metrics.written_bytes() - self._begun_bytes
        self._backlog.sample(self._store.resolved_ts, written)
        self.measures = Measures(
            write_s=self._write_time.update(*metrics.write_seconds()),
            room=room(space.available_bytes, space.capacity_bytes, self._stop_bytes),
            backlog_bytes=self._backlog.above(self._positions, written),
        )
        SCORE.set(self.measures.score)
        return self.measures.score
