"""Metrics of an embedding service, in prometheus_client's default registry beside those of its pump client."""

from __future__ import annotations

from binlog.runtime.metrics import counter, exponential, gauge, histogram

TRANSACTIONS = counter("sdk_transactions_total", "Transactions with rows whose commit has ended", ["outcome"])
SECONDS = histogram(
    "sdk_transaction_duration_seconds",
    "From commit's call to its end, waiting for a place included",
    ["outcome"],
    buckets=exponential(0.0005, 2, 18),
)
ROWS = counter("sdk_rows_total", "Rows of committed transactions")
IN_FLIGHT = gauge("sdk_in_flight", "Transactions being sent")
QUEUED = gauge("sdk_queued", "Transactions waiting to be sent, because as many as may be are")
