"""Metrics of a service that embeds the SDK, in prometheus_client's default registry, as those of its pump client."""

from __future__ import annotations

from binlog.runtime.metrics import counter, exponential, gauge, histogram

TRANSACTIONS = counter("sdk_transactions_total", "Transactions with rows whose commit has ended", ["outcome"])
SECONDS = histogram(
    "sdk_transaction_duration_seconds",
    "Duration of commit, including the time in the queue",
    ["outcome"],
    buckets=exponential(0.0005, 2, 18),
)
ROWS = counter("sdk_rows_total", "Rows of committed transactions")
IN_FLIGHT = gauge("sdk_in_flight", "Transactions being sent")
QUEUED = gauge("sdk_queued", "Transactions that wait in commit, because the maximum number is being sent")
