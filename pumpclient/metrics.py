"""Metrics of a process that writes binlogs. The original client has none."""

from __future__ import annotations

from binlog.runtime.metrics import counter, exponential, gauge, histogram

UNDELIVERED = counter(
    "pump_client_undelivered_total", "Commits and rollbacks that no pump acknowledged in time: pending prewrites"
)
EXPIRED = counter("pump_client_expired_total", "Prewrites that were open for too long without a commit or rollback")
TRIES_FAILED = counter("pump_client_tries_failed_total", "Writes to one pump that were not acknowledged", ["outcome"])
SLOW = counter("pump_client_slow_total", "Times a pump was suspended because it did not answer a prewrite in time")
OUTSIDE = counter("pump_client_outside_label_total", "Prewrites of strategy label taken by a pump without the labels")
ROLLBACKS_OWED = gauge("pump_client_rollbacks_owed", "Clean-up rollbacks that their pump has not answered yet")
RPC_SECONDS = histogram(
    "pump_client_rpc_duration_seconds",
    "Duration of one try to write a binlog to a pump, until its answer or the timeout",
    ["outcome"],
    buckets=exponential(0.00005, 2, 18),
)
ACKED_SECONDS = RPC_SECONDS.labels("acked")  # made once: `labels` builds strings and takes a lock at each call
WRITTEN = counter("pump_client_written_binlogs_total", "Binlogs that a pump acknowledged")
WRITTEN_BYTES = counter("pump_client_written_bytes_total", "Bytes of binlogs that a pump acknowledged")
