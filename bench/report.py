"""Prints a measurement: the figure, the figure it is compared with, and the ratio."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Stopwatch:
    """Seconds between entering and leaving `timed`."""

    seconds: float = 0.0


@contextmanager
def timed() -> Iterator[Stopwatch]:
    watch = Stopwatch()
    begin = time.perf_counter()
    yield watch
    watch.seconds = time.perf_counter() - begin


@dataclass
class Report:
    """Lines of `name: value unit`, and ratios between them."""

    title: str
    values: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        print(f"\n== {self.title}", flush=True)

    def add(self, name: str, value: float, unit: str, *, digits: int = 1) -> float:
        self.values[name] = value
        print(f"{name:<58} {value:>12,.{digits}f} {unit}", flush=True)
        return value

    def ratio(self, name: str, other: str) -> None:
        if self.values.get(other):
            ratio = self.values[name] / self.values[other]
            print(f"{'  ratio ' + name + ' / ' + other:<58} {ratio:>12.2f}", flush=True)

    def note(self, text: str) -> None:
        print(f"  {text}", flush=True)


def median_of(runs: int, measure: Callable[[], float]) -> float:
    """Return the median of several runs, because the machine is noisy."""
    return statistics.median(measure() for _ in range(runs))


def spread(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return f"min {ordered[0]:.3f}, median {statistics.median(ordered):.3f}, max {ordered[-1]:.3f}"
