"""The only module that uses prometheus_client: metrics with the names of the original's dashboards."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Sequence
from http.client import HTTPException
from itertools import accumulate

import prometheus_client
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import default_handler
from prometheus_client.registry import REGISTRY, Collector
from prometheus_client.utils import floatToGoString

from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "binlog_"
PUSH_TIMEOUT_S = 5.0
FEW = 16

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

_log = get_logger("metrics")
_PLAIN: set[str] = set()  # counters shown under the very name they were given


def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
    """A counter `binlog_<name>`."""
    return Counter(_counter_name(name), text, labels)


def _counter_name(name: str) -> str:
    """The library shows every counter as `…_total`; upstream's have no such ending."""
    full = PREFIX + name
    if not full.endswith("_total"):
        _PLAIN.add(full)
    return full


def gauge(name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
    """A gauge `binlog_<name>`."""
    return Gauge(PREFIX + name, text, labels)


def histogram(name: str, text: str, labels: Sequence[str] = (), *, buckets: Sequence[float]) -> Histogram:
    """A histogram `binlog_<name>` in which several threads observe; `buckets` as `exponential` makes them."""
    return Histogram(PREFIX + name, text, labels, buckets=buckets)


def exponential(start: float, factor: float, count: int) -> list[float]:
    """`count` upper bounds, each `factor` times the one before."""
    return [start * factor**i for i in range(count)]


def total_of(metric: Counter) -> float:
    """Over all its labels."""
    return sum(sample.value for family in metric.collect() for sample in family.samples)


class Series:
    """One series of a HotHistogram. One thread observes."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """`count` times the value."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def observe_each(self, values: Sequence[float]) -> None:
        """Values that repeat cost less where there are many."""
        pairs = [(value, 1) for value in values] if len(values) < FEW else Tally(values).items()
        for value, count in pairs:
            self.observe(value, count)

    def sample(self) -> tuple[list[tuple[str, float]], float]:
        """(upper bound, how many at or below it) of each bucket, and the sum."""
        bounds = [floatToGoString(bound) for bound in (*self._bounds, float("inf"))]  # type: ignore[no-untyped-call]
        return list(zip(bounds, accumulate(self._counts), strict=True)), self._sum


class HotHistogram(Collector):
    """A histogram `binlog_<name>` for hot places, at a tenth of the library's price, for there are no locks."""

    def __init__(self, name: str, text: str, labels: Sequence[str], *, bounds: Sequence[float]) -> None:
        """`bounds` as `exponential` makes them."""
        self._name, self._text, self._labels, self._bounds = PREFIX + name, text, labels, bounds
        self._series: dict[tuple[str, ...], Series] = {}
        REGISTRY.register(self)

    def labels(self, *values: str) -> Series:
        """That of these labels; it is shown from the first time on that it is asked for."""
        found = self._series.get(values)
        if found is None:
            found = self._series.setdefault(values, Series(self._bounds))
        return found

    def collect(self) -> Iterable[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, series in list(self._series.items()):
            counts, total = series.sample()
            family.add_metric(values, counts, total)
        yield family


class ShownCounter(Collector):
    """A counter `binlog_<name>` of what is counted elsewhere in this process."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self._name, self._text, self._labels = _counter_name(name), text, labels
        self._totals: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}
        REGISTRY.register(self)

    def show(self, total: float, *values: str) -> None:
        """The total of these labels; one that fell is not shown."""
        self._totals[values] = max(total, self._totals.get(values, 0.0))

    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, total in list(self._totals.items()):
            family.add_metric(values, total)
        yield family


def render() -> bytes:
    """The text exposition of everything, with the process's own metrics."""
    return _plain_names(prometheus_client.generate_latest(REGISTRY))


def _plain_names(exposition: bytes) -> bytes:
    """Takes `_total`, which the library appends to every counter, off those whose own name has no such ending."""

    def plain(match: re.Match[str]) -> str:
        return match[1] + match[2] if match[2] in _PLAIN else match[0]

    text = exposition.decode()
    return re.sub(r"^((?:# (?:HELP|TYPE) )?)(binlog_\w+)_total\b", plain, text, flags=re.MULTILINE).encode()


def _sender(
    url: str, method: str, timeout: float | None, headers: list[tuple[str, str]], data: bytes
) -> Callable[[], None]:
    return default_handler(url, method, timeout, headers, _plain_names(data))


async def push(gateway: str, instance: str, *, interval_s: float) -> None:
    """Add everything to a Pushgateway (`K-10`: job `binlog`) every so often, until cancelled; failures are logged.

    `gateway`: host:port, or a URL. A gateway that does not answer holds a thread for PUSH_TIMEOUT_S at most.
    """
    outage = Outage(_log, "metrics could not be pushed", "metrics are pushed again")
    while True:
        await asyncio.sleep(interval_s)
        try:
            await asyncio.to_thread(
                prometheus_client.pushadd_to_gateway,
                gateway,
                job="binlog",
                registry=REGISTRY,
                grouping_key={"instance": instance},
                timeout=min(interval_s, PUSH_TIMEOUT_S),
                handler=_sender,
            )
            outage.over(gateway=gateway)
        except (OSError, HTTPException, ValueError) as error:  # ValueError: an address that is no URL
            outage.failed(gateway=gateway, error=error)
