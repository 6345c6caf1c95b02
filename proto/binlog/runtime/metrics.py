"""The only module that uses prometheus_client: metrics with the names of the original's dashboards."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import Sequence

import prometheus_client
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.registry import REGISTRY

from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "binlog_"

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

_log = get_logger("metrics")
_PLAIN: set[str] = set()  # counters shown under the very name they were given


def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
    """A counter `binlog_<name>`. The library shows every counter as `…_total`; upstream's have no such ending."""
    full = PREFIX + name
    if not full.endswith("_total"):
        _PLAIN.add(full)
    return Counter(full, text, labels)


def gauge(name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
    """A gauge `binlog_<name>`."""
    return Gauge(PREFIX + name, text, labels)


def histogram(name: str, text: str, labels: Sequence[str] = (), *, buckets: Sequence[float]) -> Histogram:
    """A histogram `binlog_<name>`; `buckets` as `exponential` makes them."""
    return Histogram(PREFIX + name, text, labels, buckets=buckets)


def observe_many(found: Histogram, amount: float, count: int) -> None:
    """Observe the same amount so many times, for what one time costs."""
    buckets = found._buckets
    found._sum.inc(amount * count)
    buckets[min(bisect_left(found._upper_bounds, amount), len(buckets) - 1)].inc(count)


def exponential(start: float, factor: float, count: int) -> list[float]:
    """`count` upper bounds, each `factor` times the one before."""
    return [start * factor**i for i in range(count)]


def render() -> bytes:
    """The text exposition of everything, with the process's own metrics."""
    text = prometheus_client.generate_latest(REGISTRY).decode()

    def plain(match: re.Match[str]) -> str:
        return match[1] + match[2] if match[2] in _PLAIN else match[0]

    return re.sub(r"^((?:# (?:HELP|TYPE) )?)(binlog_\w+)_total\b", plain, text, flags=re.MULTILINE).encode()


async def push(gateway: str, instance: str, *, interval_s: float) -> None:
    """Add everything to a Pushgateway (`K-10`: job `binlog`) every so often, until cancelled; failures are logged."""
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
                timeout=interval_s,
            )
            outage.over(gateway=gateway)
        except OSError as error:
            outage.failed(gateway=gateway, error=error)
