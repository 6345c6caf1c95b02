"""Metrics with the names in the original's dashboards. Only this module uses prometheus_client."""

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

from binlog.runtime.log import Outage, get_logger

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "binlog_"
PUSH_TIMEOUT_S = 5.0
FEW = 16

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

_log = get_logger("metrics")
_PLAIN: set[str] = set()  # counters that are shown without an added `_total`


def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
    """Make a counter `binlog_<name>`."""
    return Counter(_counter_name(name), text, labels)


def _counter_name(name: str) -> str:
    """Return the full name. The library appends `_total` to every counter; the original's names do not have it."""
    full = PREFIX + name
    if not full.endswith("_total"):
        _PLAIN.add(full)
    return full


def gauge(name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
    """Make a gauge `binlog_<name>`."""
    return Gauge(PREFIX + name, text, labels)


def histogram(name: str, text: str, labels: Sequence[str] = (), *, buckets: Sequence[float]) -> Histogram:
    """Make a histogram `binlog_<name>` in which several threads may observe. `buckets`: see `exponential`."""
    return Histogram(PREFIX + name, text, labels, buckets=buckets)


def exponential(start: float, factor: float, count: int) -> list[float]:
    """Return `count` upper bounds, each `factor` times the preceding one."""
    return [start * factor**i for i in range(count)]


def total_of(metric: Counter) -> float:
    """Return a counter's total over all its labels."""
    return sum(sample.value for family in metric.collect() for sample in family.samples)


class Series:
    """One series of a HotHistogram. Only one thread may observe."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Observe the value `count` times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def observe_each(self, values: Sequence[float]) -> None:
        """Observe each value. In a long list, repeated values are counted first, which costs less."""
        pairs = [(value, 1) for value in values] if len(values) < FEW else Tally(values).items()
        for value, count in pairs:
            self.observe(value, count)

    def sample(self) -> tuple[list[tuple[str, float]], float]:
        """Return the cumulative buckets as (upper bound, number of values at or below it), and the sum."""
        bounds = [floatToGoString(bound) for bound in (*self._bounds, float("inf"))]  # type: ignore[no-untyped-call]
        return list(zip(bounds, accumulate(self._counts), strict=True)), self._sum


class HotHistogram(Collector):
    """A histogram `binlog_<name>` for code that runs often. It has no locks and costs a tenth of the library's."""

    def __init__(self, name: str, text: str, labels: Sequence[str], *, bounds: Sequence[float]) -> None:
        """`bounds`: see `exponential`."""
        self._name, self._text, self._labels, self._bounds = PREFIX + name, text, labels, bounds
        self._series: dict[tuple[str, ...], Series] = {}
        REGISTRY.register(self)

    def labels(self, *values: str) -> Series:
        """Return the series of these labels. It is shown from the first call on."""
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
    """A counter `binlog_<name>` whose value is counted elsewhere in this process."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self._name, self._text, self._labels = _counter_name(name), text, labels
        self._totals: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}
        REGISTRY.register(self)

    def show(self, total: float, *values: str) -> None:
        """Set the total for these labels. A decrease is ignored."""
        self._totals[values] = max(total, self._totals.get(values, 0.0))

    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, total in list(self._totals.items()):
            family.add_metric(values, total)
        yield family


def render() -> bytes:
    """Return all metrics, including those of the process, in the text exposition format."""
    return _plain_names(prometheus_client.generate_latest(REGISTRY))


def _plain_names(exposition: bytes) -> bytes:
    """Remove the `_total` that the library appends, from counters whose own name does not end so."""

    def plain(match: re.Match[str]) -> str:
        return match[1] + match[2] if match[2] in _PLAIN else match[0]

    text = exposition.decode()
    return re.sub(r"^((?:# (?:HELP|TYPE) )?)(binlog_\w+)_total\b", plain, text, flags=re.MULTILINE).encode()


def _sender(
    url: str, method: str, timeout: float | None, headers: list[tuple[str, str]], data: bytes
) -> Callable[[], None]:
    return default_handler(url, method, timeout, headers, _plain_names(data))


async def push(gateway: str, instance: str, *, interval_s: float) -> None:
    """Push all metrics to a Pushgateway (`K-10`: job `binlog`) every `interval_s` seconds until cancelled. Failures are
    logged.

    `gateway`: host:port, or a URL. A gateway that does not answer blocks a thread for at most PUSH_TIMEOUT_S.
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
