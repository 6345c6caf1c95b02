"""What the services count: how long each way in takes, what was written, refused and read."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from binlog.errors import BinlogError, LogBroken
from binlog.runtime.metrics import HotHistogram, counter, exponential, gauge, total_of

from pump.storage_metrics import ERROR_WRITE, SIZE_SINGLE, TIME_SINGLE

# Every call is answered, and observed, by the event loop.
RPC_SECONDS = HotHistogram(
    "pump_rpc_duration_seconds",
    "Duration of calls; of WriteBatch and Tso: of each message; of pulls: until the last message",
    ["method", "label"],
    bounds=exponential(0.00005, 2, 18),
)
WRITES = ("WriteBinlog", "WriteBatch")
LOSS = counter("pump_loss_binlog_count", "Binlogs that were not written")
_WRITTEN = counter("pump_written_binlogs_total", "Binlogs written", ["method"])
_WRITTEN_BYTES = counter("pump_written_bytes_total", "Bytes of them", ["method"])
_READ = counter("pump_read_binlogs_total", "Binlogs sent to pulls", ["method"])
_READ_BYTES = counter("pump_read_bytes_total", "Bytes of them", ["method"])
_PULLS = gauge("pump_pulls", "Pulls under way", ["method"])


# `labels` makes strings of them and takes a lock, for each call.
_written = cache(_WRITTEN.labels)
_written_bytes = cache(_WRITTEN_BYTES.labels)
_read = cache(_READ.labels)
_read_bytes = cache(_READ_BYTES.labels)


@contextmanager
def timed(method: str) -> Iterator[None]:
    """Take the time of a call: `fail` when it raises, a cancelled one and one whose caller went away too."""
    began_s, label = time.monotonic(), "fail"
    try:
        yield
        label = "succ"
    finally:
        observe(method, label, time.monotonic() - began_s)


def observe(method: str, label: str, seconds: float, count: int = 1) -> None:
    """So many calls of so many seconds each. `label`: succ or fail, as upstream has them."""
    if count:
        RPC_SECONDS.labels(method, label).observe(seconds, count)


def write_seconds() -> tuple[float, float]:
    """Of all calls that wrote binlogs since this process began: their seconds, and their number."""
    found = {"_sum": 0.0, "_count": 0.0}
    for family in RPC_SECONDS.collect():
        for sample in family.samples:
            ending = sample.name.removeprefix(family.name)
            if ending in found and sample.labels["label"] == "succ" and sample.labels["method"] in WRITES:
                found[ending] += sample.value
    return found["_sum"], found["_count"]


def written_bytes() -> int:
    """Bytes of all binlogs that were written since this process began."""
    return int(total_of(_WRITTEN_BYTES))


@contextmanager
def pulling(method: str) -> Iterator[None]:
    """While a pull is under way."""
    with _PULLS.labels(method).track_inprogress():
        yield


def read(method: str, *, count: int, size: int) -> None:
    """A message of a pull is on its way."""
    _read(method).inc(count)
    _read_bytes(method).inc(size)


def written(method: str, payloads: Sequence[bytes], results: Sequence[BinlogError | None], *, took_s: float) -> None:
    """What became of binlogs that the storage was given together; the empty probe counts for nothing."""
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
    """Refused as they came, or for the state that the pump is in."""
    LOSS.inc(sum(1 for payload in payloads if payload))


def totals() -> dict[str, float]:
    """Binlogs written and read since the start."""
    return {"written": total_of(_WRITTEN), "read": total_of(_READ)}
