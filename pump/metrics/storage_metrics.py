"""Metrics of a pump's storage, with upstream's names for upstream's dashboards and alarms."""

from __future__ import annotations

from binlog.runtime.metrics import HotHistogram, counter, exponential, gauge

_SIZE = HotHistogram(
    "pump_storage_write_binlog_size",
    "Bytes of a binlog (single), and of those that were appended together (batch)",
    ["type"],
    bounds=exponential(16, 2, 25),
)
_TIME = HotHistogram(
    "pump_storage_write_binlog_duration_time",
    "Seconds a binlog took in the storage (single), one append (batch), its writes with their sync (to_disk), a sync "
    "(fsync), a change of files (rotate)",
    ["type"],
    bounds=exponential(0.00005, 2, 20),
)
# `single` is observed only on the event loop, the others only in the writer's thread.
SIZE_SINGLE, SIZE_BATCH = (_SIZE.labels(kind) for kind in ("single", "batch"))
TIME_SINGLE, TIME_BATCH, TIME_TO_DISK, TIME_FSYNC, TIME_ROTATE = (
    _TIME.labels(kind) for kind in ("single", "batch", "to_disk", "fsync", "rotate")
)
_ERRORS = counter("pump_storage_error_count", "Failures of the storage", ["type"])
ERROR_WRITE, ERROR_WRITE_BATCH, ERROR_INDEX, ERROR_READ, ERROR_PREWRITE = (
    _ERRORS.labels(kind)
    for kind in ("write_binlog", "write_binlog_batch", "batch_write_kv", "read_value", "feed_pre_write_value")
)
DELETED_KEYS = counter("pump_storage_deleted_kv_total", "Keys of the index that garbage collection deleted")
DONE_GC = gauge("pump_storage_done_gc_ts", "Binlogs up to here have been removed, physical ms; 0 before the first time")
TIKV_ASKED = counter("pump_storage_query_tikv_count", "Times TiKV was asked for the outcome of a prewrite")
DRAINER_FAR_BEHIND = counter(
    "pump_detected_drainer_binlog_purge_count",
    "Times a drainer was found so far behind that garbage collection soon waits for it, or does",
    ["id"],
)
