"""Every metric of the original's pump, with its labels and buckets, and what moves it."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from pathlib import Path

import pytest
from binlog.cluster.registry import Registry
from binlog.errors import LogBroken
from binlog.runtime.metrics import exponential, render
from prometheus_client.parser import text_string_to_metric_families

from pump import metrics
from pump.errors import DamagedRecord
from pump.log.value_log import ValueLog
from pump.rpc.original_service import Gate
from pump.store.store import expose, withdraw
from pump.tasks.gc import GarbageCollector
from tests.support.memory_etcd import MemoryEtcd
from tests.unit.pump.build import SetClock, appended, commit, opened, prewrite, write

ROOT = Path(__file__).resolve().parents[4]

# Name, kind, the values of each label, buckets (first, factor, count).
UPSTREAM: tuple[tuple[str, str, dict[str, set[str]], tuple[float, float, int] | None], ...] = (
    ("pump_rpc_duration_seconds", "histogram", {"method": set(), "label": {"succ", "fail"}}, (0.00005, 2, 18)),
    ("pump_loss_binlog_count", "counter", {}, None),
    ("pump_detected_drainer_binlog_purge_count", "counter", {"id": set()}, None),
    ("pump_storage_gc_ts", "gauge", {}, None),
    ("pump_storage_done_gc_ts", "gauge", {}, None),
    ("pump_storage_max_commit_ts", "gauge", {}, None),
    ("pump_storage_deleted_kv_total", "counter", {}, None),
    ("pump_storage_storage_size_bytes", "gauge", {"type": {"capacity", "available"}}, None),
    ("pump_storage_query_tikv_count", "counter", {}, None),
    (
        "pump_storage_error_count",
        "counter",
        {"type": {"write_binlog", "write_binlog_batch", "batch_write_kv", "read_value", "feed_pre_write_value"}},
        None,
    ),
    ("pump_storage_write_binlog_size", "histogram", {"type": {"single", "batch"}}, (16, 2, 25)),
    (
        "pump_storage_write_binlog_duration_time",
        "histogram",
        {"type": {"single", "batch", "to_disk", "fsync", "rotate"}},
        (0.00005, 2, 20),
    ),
)
NOT_HERE = ("pump_storage_slow_chaser_count", "drainer_slow_chaser_catchup_time_seconds")


def shown() -> dict[str, dict[tuple[str, ...], float]]:
    """Sample name without binlog_ → (values of its labels) → value; of a histogram its sum and its count."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for line in render().decode().splitlines():
        sample = re.fullmatch(r"binlog_(\w+?)(?:{(.*)})? (\S+)", line)
        if sample and "_bucket" not in sample[1]:
            labels = tuple(text for _, text in re.findall(r'(\w+)="([^"]*)"', sample[2] or ""))
            found.setdefault(sample[1], {})[labels] = float(sample[3])
    return found


def value(name: str, *labels: str) -> float:
    return shown().get(name, {}).get(labels, 0.0)


@pytest.mark.parametrize(("name", "kind", "labels", "buckets"), UPSTREAM, ids=[row[0] for row in UPSTREAM])
def test_metric_of_original_has_same_name_type_labels_and_buckets(
    name: str, kind: str, labels: dict[str, set[str]], buckets: tuple[float, float, int] | None
) -> None:
    for label in ("succ", "fail"):
        metrics.observe("WriteBinlog", label, 0.0)
    metrics.DRAINER_FAR_BEHIND.labels("d1").inc()
    withdraw()  # labelled gauges are there once a store was
    text = render().decode()
    assert f"# TYPE binlog_{name} {kind}\n" in text
    for label, values in labels.items():
        for each in values:
            assert f'{label}="{each}"' in "".join(
                line for line in text.splitlines() if line.startswith(f"binlog_{name}")
            )
    if buckets is not None:
        first, factor, count = buckets
        bounds = {
            float(sample.labels["le"])
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"binlog_{name}_bucket"
        }
        assert bounds == {*exponential(first, factor, count), float("inf")}


def test_metrics_left_out_are_named_in_compatibility_page() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text()
    assert all(f"`binlog_{name}`" in page for name in NOT_HERE)
    assert not [name for name in NOT_HERE if name in render().decode()]


async def test_write_metrics_count_sizes_and_times_of_batches_and_single_binlogs(tmp_path: Path) -> None:
    """A batch is what was appended together, a single each binlog in it; the probe and a refusal are none."""
    gate = Gate(7, lambda: "")
    gate.closed = ""
    size, took = "pump_storage_write_binlog_size", "pump_storage_write_binlog_duration_time"
    async with opened(tmp_path, SetClock(100)) as store:
        before = shown()

        def grown(name: str, *labels: str) -> float:
            return value(name, *labels) - before.get(name, {}).get(labels, 0.0)

        payloads = [prewrite(10), commit(10, 20), b"", b"\x08"]
        results = await gate.write(store, "WriteBatch", 7, payloads)
        assert [error is None for error in results] == [True, True, True, False]
        whole = len(prewrite(10)) + len(commit(10, 20))
        assert grown(f"{size}_count", "single") == 2
        assert grown(f"{size}_sum", "single") == whole
        assert grown(f"{size}_count", "batch") == 1
        assert grown(f"{size}_sum", "batch") == whole
        assert grown(f"{took}_count", "single") == 2
        for kind in ("batch", "to_disk", "fsync"):
            assert grown(f"{took}_count", kind) == 1
            assert grown(f"{took}_sum", kind) > 0
        assert grown(f"{took}_sum", "single") >= 2 * grown(f"{took}_sum", "batch")
        assert grown(f"{took}_count", "rotate") == 0


def test_log_file_rotation_is_timed(tmp_path: Path) -> None:
    log = ValueLog(tmp_path, file_bytes_max=100)
    log.open()
    before = value("pump_storage_write_binlog_duration_time_count", "rotate")
    for ts in range(10, 20):
        appended(log, [prewrite(ts)], ts)
    assert value("pump_storage_write_binlog_duration_time_count", "rotate") - before == len(log.files()) - 1 > 0
    log.close()


async def test_storage_errors_are_counted_by_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(7, lambda: "")
    gate.closed = ""
    name = "pump_storage_error_count"
    async with opened(tmp_path, SetClock(1000)) as store:
        await write(store, prewrite(10), commit(10, 20), prewrite(30), commit(30, 40))
        before = shown().get(name, {})
        path = store.log.file(0).path
        data = bytearray(path.read_bytes())
        data[data.index(prewrite(30)[:12]) + 5] ^= 1
        path.write_bytes(data)
        await store.resolver.refresh()
        with pytest.raises(DamagedRecord):
            _ = [chunk async for chunk in store.reads.pull(0, store.resolved_ts, bytes_max=1 << 20)]

        def failing(_fd: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(store.log, "sync", failing)
        (error,) = await gate.write(store, "WriteBinlog", 7, [prewrite(50)])
        assert isinstance(error, LogBroken)
        after = shown()[name]
    grown = {labels[0]: count - before.get(labels, 0.0) for labels, count in after.items()}
    assert grown == {
        "read_value": 1,
        "write_binlog": 1,
        "write_binlog_batch": 1,
        "batch_write_kv": 0,
        "feed_pre_write_value": 0,
    }


async def test_gc_metrics_count_deleted_keys_and_show_purge_point(tmp_path: Path) -> None:
    now_ms = 1_700_000_000_000
    ts = now_ms << 18
    async with opened(tmp_path, SetClock(ts)) as store:
        await write(store, prewrite(10), commit(10, 20))
        await store.resolver.refresh()
        before = value("pump_storage_deleted_kv_total")
        collector = GarbageCollector(store, Registry(MemoryEtcd()), timedelta(seconds=1))
        point = await collector.collect()
        expose(store)
        try:
            assert value("pump_storage_deleted_kv_total") - before == 4  # ts: of both, the outcome, the complete one
            assert value("pump_storage_done_gc_ts") == (point >> 18) - 600_000
            assert value("pump_storage_gc_ts") == point >> 18
        finally:
            withdraw()
    await asyncio.sleep(0)
