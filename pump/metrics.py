"""Metrics of a pump: of its storage, with upstream's names for upstream's dashboards and alarms, and of its services:
durations of calls, and binlogs written, refused and read. Gauges that read the store are in pump.store.store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache

from binlog.errors import BinlogError, LogBroken
from binlog.runtime.metrics import HotHistogram, counter, exponential, gauge, total_of

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
OVERLOADED = counter("pump_overloaded_total", "Calls refused because too many bytes were in flight")
IN_FLIGHT_BYTES = gauge("pump_in_flight_bytes", "Bytes of requests and answers in memory")
SCORE = gauge("pump_score", "Share of writes this pump asks for, 1 to 1000: from write time, disk and backlog")
EXPIRED_WRITERS = counter(
    "pump_expired_writer_prewrites_count",
    "Pending prewrites settled because their writer's lease had ended",
    ["outcome"],
)

# Every call is answered on the event loop, and only the event loop observes durations.
RPC_SECONDS = HotHistogram(
    "pump_rpc_duration_seconds",
    "Duration of calls; of WriteBatch and Tso: of each message; of pulls: until the last message",
    ["method", "label"],
    bounds=exponential(0.00005, 2, 18),
)
WRITES = ("WriteBinlog", "WriteBatch")
LOSS = counter("pump_loss_binlog_count", "Binlogs that were not written")
_WRITTEN = counter("pump_written_binlogs_total", "Binlogs written", ["method"])
_WRITTEN_BYTES = counter("pump_written_bytes_total", "Bytes of binlogs written", ["method"])
_READ = counter("pump_read_binlogs_total", "Binlogs sent to pulls", ["method"])
_READ_BYTES = counter("pump_read_bytes_total", "Bytes of binlogs sent to pulls", ["method"])
_PULLS = gauge("pump_pulls", "Pulls under way", ["method"])

# Cached, because `labels` formats strings and takes a lock in each call.
_written = cache(_WRITTEN.labels)
_written_bytes = cache(_WRITTEN_BYTES.labels)
_read = cache(_READ.labels)
_read_bytes = cache(_READ_BYTES.labels)


@contextmanager
def timed(method: str) -> Iterator[None]:
    """Measure the duration of a call. It counts as `fail` if it raises, is cancelled, or has lost its caller."""
    began_s, label = time.monotonic(), "fail"
    try:
        yield
        label = "succ"
    finally:
        observe(method, label, time.monotonic() - began_s)


def observe(method: str, label: str, seconds: float, count: int = 1) -> None:
    """Observe `count` calls of `seconds` each. `label`: succ or fail, as upstream names them."""
    if count:
        RPC_SECONDS.labels(method, label).observe(seconds, count)


def write_seconds() -> tuple[float, float]:
    """Return the seconds and the number of all calls that wrote binlogs since this process began."""
    found = {"_sum": 0.0, "_count": 0.0}
    for family in RPC_SECONDS.collect():
        for sample in family.samples:
            ending = sample.name.removeprefix(family.name)
            if ending in found and sample.labels["label"] == "succ" and sample.labels["method"] in WRITES:
                found[ending] += sample.value
    return found["_sum"], found["_count"]


def written_bytes() -> int:
    """Return the bytes of all binlogs that were written since this process began."""
    return int(total_of(_WRITTEN_BYTES))


def pulling(method: str) -> AbstractContextManager[None]:
    """Count a pull as under way while the context is open."""
    return _PULLS.labels(method).track_inprogress()


def read(method: str, *, count: int, size: int) -> None:
    """Count a message of a pull: `count` binlogs of `size` bytes."""
    _read(method).inc(count)
    _read_bytes(method).inc(size)


def written(method: str, payloads: Sequence[bytes], results: Sequence[BinlogError | None], *, took_s: float) -> None:
    """Count the results of binlogs that were given to the store together. The empty probe is not counted."""
    taken = payloads
    if any(results) or not all(payloads):
        taken = [payload for payload, error in zip(payloads, results, strict=True) if error is None and payload]
    sizes = list(map(len, taken))
    SIZE_SINGLE.observe_each(sizes)
    if taken:
        TIME_SINGLE.observe(took_s, len(taken))
    _written(method).inc(len(taken))
    _written_bytes(method).inc(sum(sizes))
    if len(taken) == len(payloads):
        return
    broken = sum(1 for error in results if isinstance(error, LogBroken))
    if broken:
        ERROR_WRITE.inc(broken)
    lost(payload for payload, error in zip(payloads, results, strict=True) if error is not None)


def lost(payloads: Iterable[bytes]) -> None:
    """Count binlogs that were not written, without empty probes."""
    LOSS.inc(sum(1 for payload in payloads if payload))


def totals() -> dict[str, float]:
    """Return the numbers of binlogs written and read since the start."""
    return {"written": total_of(_WRITTEN), "read": total_of(_READ)}
