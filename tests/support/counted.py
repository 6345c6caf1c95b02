"""What metrics have counted since a moment."""

from __future__ import annotations

from collections.abc import Callable

from binlog.runtime.metrics import total_of
from prometheus_client import Counter


def counting(metric: Counter) -> Callable[[], float]:
    """Return a function that returns by how much the metric has grown since this call, over all its labels."""
    before = total_of(metric)
    return lambda: total_of(metric) - before
