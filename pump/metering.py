"""What the services count: how long each way in takes, what was written, refused and read."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from binlog.errors import BinlogError
from binlog.runtime.metrics import counter, exponential, gauge, histogram, observe_many

RPC_SECONDS = histogram(
    "pump_rpc_duration_seconds",
    "Duration of calls; of WriteBatch and Tso: of each message; of pulls: until the last message",
    ["method", "label"],
    buckets=exponential(0.00005, 2, 18),
)
LOSS = counter("pump_loss_binlog_count", "Binlogs that were not written")
_WRITTEN = counter("pump_written_binlogs_total", "Binlogs written", ["method"])
_WRITTEN_BYTES = counter("pump_written_bytes_total", "Bytes of them", ["method"])
_READ = counter("pump_read_binlogs_total", "Binlogs sent to pulls", ["method"])
_READ_BYTES = counter("pump_read_bytes_total", "Bytes of them", ["method"])
_PULLS = gauge("pump_pulls", "Pulls under way", ["method"])


# `labels` makes strings of them and takes a lock, for each call.
_rpc_seconds = cache(RPC_SECONDS.labels)
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
        observe_many(_rpc_seconds(method, label), seconds, count)


@contextmanager
def pulling(method: str) -> Iterator[None]:
    """While a pull is under way."""
    with _PULLS.labels(method).track_inprogress():
        yield


def read(method: str, *, count: int, size: int) -> None:
    """A message of a pull is on its way."""
    _read(method).inc(count)
    _read_bytes(method).inc(size)


def written(method: str, payloads: Sequence[bytes], results: Sequence[BinlogError | None]) -> None:
    """What became of binlogs: the empty probe counts for nothing."""
    if any(results):
        lost(payload for payload, error in zip(payloads, results, strict=True) if error is not None)
        payloads = [payload for payload, error in zip(payloads, results, strict=True) if error is None]
    sizes = list(map(len, payloads))
    _written(method).inc(len(sizes) - sizes.count(0))
    _written_bytes(method).inc(sum(sizes))


def lost(payloads: Iterable[bytes]) -> None:
    """Refused as they came, or for the state that the pump is in."""
    LOSS.inc(sum(1 for payload in payloads if payload))
