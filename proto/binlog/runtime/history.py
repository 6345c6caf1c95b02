"""Values over the last hour, kept in memory, for the charts of status pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

INTERVAL_S = 10.0
SPAN_S = 3600.0


class History:
    """Samples at least INTERVAL_S apart, those of the last SPAN_S. Times are of a monotonic clock, in seconds."""

    def __init__(self, *, interval_s: float = INTERVAL_S, span_s: float = SPAN_S) -> None:
        self.interval_s = interval_s
        self.span_s = span_s
        self._samples: deque[tuple[float, Mapping[str, float]]] = deque()
        self._counters: dict[str, float] = {}
        self._counted_s = 0.0

    def due(self, now_s: float) -> bool:
        """Whether the next sample is to be taken."""
        return not self._samples or now_s - self._samples[-1][0] >= self.interval_s

    def add(self, now_s: float, gauges: Mapping[str, float], counters: Mapping[str, float] = {}) -> None:
        """A sample: `gauges` as they are; of `counters`, which only grow, what they grew by in a second since the
        sample before. A counter that fell was started anew and counts from 0; the first sample has no rates."""
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
        """(seconds before now, value) of each sample that has `name`, oldest first."""
        return [(now_s - moment_s, values[name]) for moment_s, values in self._samples if name in values]
