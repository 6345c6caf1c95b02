"""Histograms of hot places, and metrics that are pushed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import structlog
from aiohttp import web
from binlog.runtime import metrics
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.servers import free_port

BOUNDS = metrics.exponential(0.5, 2, 4)
HOT = metrics.HotHistogram("test_hot_seconds", "t", ["type", "label"], bounds=BOUNDS)
ELSEWHERE = metrics.ShownCounter("test_elsewhere", "t", ["mode"])
ELSEWHERE_PLAIN = metrics.ShownCounter("test_elsewhere_rows_total", "t")
PUSHED = metrics.counter("test_pushed_count", "pushed")
TOTAL = metrics.counter("test_pushed_total", "pushed")


@given(st.lists(st.tuples(st.floats(0, 20), st.integers(1, 5)), max_size=30), st.lists(st.integers(0, 20), max_size=40))
def test_hot_histogram_counts_as_prometheus_histogram_does(repeated: list[tuple[float, int]], each: list[int]) -> None:
    mine = metrics.Series(BOUNDS)
    registry = CollectorRegistry()
    theirs = Histogram("h", "t", buckets=BOUNDS, registry=registry)
    for value, count in repeated:
        mine.observe(value, count)
        for _ in range(count):
            theirs.observe(value)
    mine.observe_each(each)
    for number in each:
        theirs.observe(number)
    (family,) = registry.collect()
    samples = {(sample.name, sample.labels.get("le")): sample.value for sample in family.samples}
    counts, total = mine.sample()
    assert [(bound, samples["h_bucket", bound]) for bound, _ in counts] == counts
    assert total == pytest.approx(samples["h_sum", None])


def test_hot_histogram_is_exposed_as_histogram_per_label() -> None:
    """Each series from the first time on that its labels are asked for."""
    HOT.labels("a", "x").observe(0.6, 2)
    HOT.labels("a", "x").observe(0.6)
    HOT.labels("b", "x")
    family = shown("binlog_test_hot_seconds")
    assert family.type == "histogram"
    values = {(s.name.rpartition("_")[2], s.labels["type"], s.labels.get("le")): s.value for s in family.samples}
    assert values["bucket", "a", "1.0"] == values["count", "a", None] == 3
    assert values["sum", "a", None] == pytest.approx(1.8)
    assert values["bucket", "b", "+Inf"] == 0
    assert {s.labels["label"] for s in family.samples} == {"x"}


def test_a_hot_histogram_without_calls_has_no_series() -> None:
    metrics.HotHistogram("test_unused_seconds", "t", ["type"], bounds=BOUNDS)
    assert shown("binlog_test_unused_seconds").samples == []


def shown(name: str) -> Metric:
    return {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}[name]


class Gateway:
    """A Pushgateway that keeps what it was sent; `status` is its answer."""

    def __init__(self) -> None:
        self.pushed: asyncio.Queue[tuple[str, str, str]] = asyncio.Queue()
        self.status = 200

    async def push(self, request: web.Request) -> web.Response:
        await self.pushed.put((request.method, request.path, await request.text()))
        return web.Response(status=self.status)


@pytest.fixture
async def gateway() -> AsyncIterator[tuple[Gateway, str]]:
    made, app = Gateway(), web.Application()
    app.router.add_route("*", "/{rest:.*}", made.push)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield made, f"127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_metrics_are_pushed_to_gateway_repeatedly(gateway: tuple[Gateway, str]) -> None:
    """K-10: POST, job binlog, the node's id as instance; under the names that a scrape shows."""
    made, addr = gateway
    PUSHED.inc(5)
    TOTAL.inc(6)
    task = asyncio.create_task(metrics.push(addr, "host:8250", interval_s=0.05))
    try:
        async with asyncio.timeout(60):
            method, path, text = await made.pushed.get()
            await made.pushed.get()
        assert (method, path) == ("POST", "/metrics/job/binlog/instance/host:8250")
        assert "\nbinlog_test_pushed_count 5.0\n" in text
        assert "\nbinlog_test_pushed_total 6.0\n" in text
        assert "process_resident_memory_bytes" in text
    finally:
        await ended(task)


async def test_failing_push_gateway_is_logged_once_and_retried(gateway: tuple[Gateway, str]) -> None:
    made, addr = gateway
    made.status = 500
    with structlog.testing.capture_logs() as lines:
        task = asyncio.create_task(metrics.push(f"http://{addr}", "p", interval_s=0.05))
        try:
            async with asyncio.timeout(60):
                for _ in range(3):
                    await made.pushed.get()
                made.status = 200
                while not any(line["event"] == "metrics are pushed again" for line in lines):
                    await made.pushed.get()
        finally:
            await ended(task)
    failures = [line for line in lines if line["event"] == "metrics could not be pushed"]
    assert len(failures) == 1
    assert "500" in str(failures[0]["error"])


@pytest.mark.parametrize("gateway", ["127.0.0.1:{port}", "ftp://h:1", "http://127.0.0.1:port", "h h"])
async def test_unreachable_push_gateway_does_not_end_pushing(gateway: str) -> None:
    nobody = free_port()
    with structlog.testing.capture_logs() as lines:
        task = asyncio.create_task(metrics.push(gateway.format(port=nobody), "p", interval_s=0.01))
        try:
            async with asyncio.timeout(60):
                while not lines:
                    assert not task.done()
                    await asyncio.sleep(0.01)
        finally:
            await ended(task)
    assert lines[0]["event"] == "metrics could not be pushed"


def test_shown_counter_never_decreases() -> None:
    """`rate` of a gauge means nothing when it falls; a counter never does."""
    for total in (3, 3, 7, 5):
        ELSEWHERE.show(total, "inline")
    text = metrics.render().decode()
    assert "# TYPE binlog_test_elsewhere counter\n" in text
    assert '\nbinlog_test_elsewhere{mode="inline"} 7.0\n' in text


def test_shown_counter_without_labels_starts_at_0() -> None:
    assert "\nbinlog_test_elsewhere_rows_total 0.0\n" in metrics.render().decode()
