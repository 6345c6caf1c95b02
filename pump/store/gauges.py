"""Gauges that a scrape reads from the store. The services' counters are in pump.metrics.call_metrics."""

from __future__ import annotations

import time

from binlog.cluster import tso
from binlog.runtime.metrics import counter, gauge

from pump.store.store import Store

OVERLOADED = counter("pump_overloaded_total", "Calls refused because too many bytes were in flight")
IN_FLIGHT_BYTES = gauge("pump_in_flight_bytes", "Bytes of requests and answers in memory")
SCORE = gauge("pump_score", "Share of writes this pump asks for, 1 to 1000: from write time, disk and backlog")
EXPIRED_WRITERS = counter(
    "pump_expired_writer_prewrites_count",
    "Pending prewrites settled because their writer's lease had ended",
    ["outcome"],
)

_MAX_COMMIT = gauge("pump_storage_max_commit_ts", "Resolved ts, physical ms")
_GC = gauge("pump_storage_gc_ts", "Purge point, physical ms")
_SIZE = gauge("pump_storage_storage_size_bytes", "The disk of data-dir", ["type"])
_PENDING = gauge("pump_pending_count", "Prewrites without an outcome")
_PENDING_AGE = gauge("pump_pending_oldest_seconds", "Age of the oldest pending prewrite")
_UNDECIDED = gauge("pump_pending_below_gc_safepoint", "Pending prewrites of which TiKV keeps no record any more")
_LATE = gauge("pump_late_commit_count", "Commits accepted at or below a resolved ts that was already published")
_DAMAGE = gauge("pump_damaged_count", "Damaged places found in the value log at start")
_BROKEN = gauge("pump_log_broken", "1 after a write or sync of the value log failed")


def _oldest_age_s(store: Store) -> float:
    oldest = store.pending.first(1)
    return time.monotonic() - oldest[0].since_s if oldest else 0.0


def expose(store: Store) -> None:
    """Let the gauges read this store when they are scraped."""
    _MAX_COMMIT.set_function(lambda: tso.physical_ms(store.resolved_ts))
    _GC.set_function(lambda: tso.physical_ms(store.reads.purged_ts))
    _SIZE.labels("capacity").set_function(lambda: store.space.capacity_bytes)
    _SIZE.labels("available").set_function(lambda: store.space.available_bytes)
    _PENDING.set_function(lambda: len(store.pending))
    _PENDING_AGE.set_function(lambda: _oldest_age_s(store))
    _UNDECIDED.set_function(lambda: len(store.pending.below_safepoint()))
    _LATE.set_function(lambda: store.writes.late_commits)
    _DAMAGE.set_function(lambda: len(store.damage))
    _BROKEN.set_function(lambda: 1 if store.log.broken else 0)


def withdraw() -> None:
    """Set the gauges to 0 and let them read nothing more, because the store is closed."""
    labelled = (_SIZE.labels("capacity"), _SIZE.labels("available"))
    for each in (_MAX_COMMIT, _GC, *labelled, _PENDING, _PENDING_AGE, _UNDECIDED, _LATE, _DAMAGE, _BROKEN):
        each.set_function(float)
