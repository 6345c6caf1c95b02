"""The metrics of a service that embeds the SDK, in prometheus_client's default registry as those of its pump client,
and the report on each finished `commit`, for them and for the service's own callback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from binlog.runtime.log import get_logger
from binlog.runtime.metrics import counter, exponential, gauge, histogram

log = get_logger(__name__)

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


class Outcome(StrEnum):
    """COMMITTED: the rows are visible. FAILED: they never will be. UNKNOWN: query Transaction.outcome."""

    COMMITTED = "committed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TransactionReport:
    """The result of the `commit` of one transaction with rows.

    `pump`: the id of the pump that accepted the rows, or None. `seconds`: the duration of `commit`. `queued_s`: the
    part of it before the transaction was sent. `error`: the exception that `commit` raised, or None.
    """

    start_ts: int
    commit_ts: int | None
    outcome: Outcome
    rows: int
    payload_bytes: int
    pump: str | None
    seconds: float
    queued_s: float
    error: BaseException | None


OnTransaction = Callable[[TransactionReport], None]


def report(done: TransactionReport, hook: OnTransaction | None) -> None:
    """Count the transaction and call the hook. An exception from the hook is logged; it does not affect the
    transaction.
    """
    TRANSACTIONS.labels(done.outcome.value).inc()
    SECONDS.labels(done.outcome.value).observe(done.seconds)
    if done.outcome is Outcome.COMMITTED:
        ROWS.inc(done.rows)
    if hook is None:
        return
    try:
        hook(done)
    except Exception as error:  # noqa: BLE001  whatever the service's function raises
        log.error("on_transaction raised", start_ts=done.start_ts, error=repr(error))
