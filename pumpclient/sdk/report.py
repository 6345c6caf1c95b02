"""What is told of each transaction to the metrics, and to a service's own hook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from binlog.runtime.log import get_logger

from pumpclient.sdk import metrics

log = get_logger(__name__)


class Outcome(StrEnum):
    """COMMITTED: its rows are visible. FAILED: they never will be. UNKNOWN: see Transaction.outcome."""

    COMMITTED = "committed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TransactionReport:
    """One transaction with rows, as its `commit` ended.

    `pump`: the id of the one that took the rows, None where none did. `seconds` from the call of `commit` to its end,
    `queued_s` of them before it was sent. `error`: what `commit` raised.
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
    """Count it and call the hook, whose errors end no transaction: they are logged."""
    metrics.TRANSACTIONS.labels(done.outcome.value).inc()
    metrics.SECONDS.labels(done.outcome.value).observe(done.seconds)
    if done.outcome is Outcome.COMMITTED:
        metrics.ROWS.inc(done.rows)
    if hook is None:
        return
    try:
        hook(done)
    except Exception as error:  # noqa: BLE001  whatever the service's function raises
        log.error("on_transaction raised", start_ts=done.start_ts, error=repr(error))
