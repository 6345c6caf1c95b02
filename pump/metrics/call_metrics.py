"""Metrics of the services: durations of calls, and binlogs written, refused and read."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache

from binlog.errors import BinlogError, LogBroken
from binlog.runtime.metrics import HotHistogram, counter, exponential, gauge, total_of

from pump.metrics.storage_metrics import ERROR_WRITE, SIZE_SINGLE, TIME_SINGLE

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
