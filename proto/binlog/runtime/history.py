"""Values of the last hour, kept in memory for the charts of status pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

INTERVAL_S = 10.0
SPAN_S = 3600.0


class History:
    """Samples of the last SPAN_S seconds, at least INTERVAL_S apart. Times are in seconds of a monotonic clock."""

    def __init__(self, *, interval_s: float = INTERVAL_S, span_s: float = SPAN_S) -> None:
        self.interval_s = interval_s
        self.span_s = span_s
        self._samples: deque[tuple[float, Mapping[str, float]]] = deque()
        self._counters: dict[str, float] = {}
        self._counted_s = 0.0

    def due(self, now_s: float) -> bool:
        """Return whether it is time for the next sample."""
        return not self._samples or now_s - self._samples[-1][0] >= self.interval_s

    def add(self, now_s: float, gauges: Mapping[str, float], counters: Mapping[str, float] = {}) -> None:
        """Add a sample.

        `gauges` are stored as they are. `counters` only increase; their rate per second since the previous sample is
        stored. A counter that decreased has been restarted and counts from 0. The first sample has no rates.
        """
        values = dict(gauges)
        passed_s = now_s - self._counted_s
        for name, total in counters.items():
            before = self._counters.get(name)
            if before is not None and passed_s > 0:
                values[name] = (total - before if total >= before else total) / passed_s
            self._counters[name] = total
        self._counted_s = now_s
        self._samples.append((now_s, values))
        while self._samples[0][0] < now_s - self.span_s:
            self._samples.popleft()

    def series(self, name: str, now_s: float) -> list[tuple[float, float]]:
        """Return (seconds before now, value) of each sample that contains `name`, oldest first."""
        return [(now_s - moment_s, values[name]) for moment_s, values in self._samples if name in values]
