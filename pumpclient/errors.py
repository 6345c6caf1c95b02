"""Errors of the pump client. Every message names the transaction and the pump."""

from __future__ import annotations

from binlog.errors import BinlogError


class PumpClientError(BinlogError):
    """Base class of the pump client's errors."""


class NoPump(PumpClientError):
    """No pump is registered, or no registered pump accepts writes (C-01, C-12)."""


class PrewriteFailed(PumpClientError):
    """No pump acknowledged the prewrite (C-13). Pumps that may hold a copy are sent a rollback in the background."""

    def __init__(self, start_ts: int, *, tries: int, last: str) -> None:
        super().__init__(f"prewrite {start_ts}: write binlog failed after {tries} tries, the last error: {last}")
        self.start_ts = start_ts
        self.tries = tries
        self.last = last


class PayloadTooLarge(PumpClientError):
    """The binlog is larger than a pump accepts. All pumps would refuse it, so it is not retried (C-10)."""

    def __init__(self, start_ts: int, *, payload_bytes: int, detail: str) -> None:
        super().__init__(f"binlog {start_ts} of {payload_bytes} bytes is too large: {detail}")
        self.start_ts = start_ts
        self.payload_bytes = payload_bytes


class UnknownTransaction(PumpClientError):
    """A commit or rollback names a start_ts that has no acknowledged prewrite in this client (C-08)."""

    def __init__(self, start_ts: int) -> None:
        super().__init__(f"transaction {start_ts} has no acknowledged prewrite here, or has already ended")
        self.start_ts = start_ts


class DuplicateTransaction(PumpClientError):
    """A prewrite names a start_ts that is already open. Each start_ts belongs to one transaction."""

    def __init__(self, start_ts: int) -> None:
        super().__init__(f"transaction {start_ts} is already open in this client")
        self.start_ts = start_ts


class TooManyTransactions(PumpClientError):
    """The limit of open transactions is reached. The program probably omits commits or rollbacks (C-09)."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} transactions are open in this client, which is its limit")
        self.limit = limit


class CommitTsChanged(PumpClientError):
    """A commit names another commit_ts than an earlier attempt. A commit_ts that was sent never changes (rule 19: one
    transaction on several pumps)."""

    def __init__(self, start_ts: int, *, sent: int, asked: int) -> None:
        super().__init__(f"transaction {start_ts}: commit_ts {sent} has been sent, it cannot become {asked}")
        self.start_ts = start_ts
        self.sent = sent
        self.asked = asked


class TransactionRolledBack(PumpClientError):
    """The pump had rolled the transaction back before its commit arrived. Its rows are not visible and never will be.

    Either the lease of the writer that the prewrite names had ended, or an operator settled the transaction. Write the
    rows again in a new transaction.
    """

    def __init__(self, start_ts: int, commit_ts: int, *, pump: str) -> None:
        super().__init__(
            f"transaction {start_ts} was rolled back by pump {pump} before its commit {commit_ts} arrived: the lease "
            "of this writer had ended (the process was suspended or could not reach etcd for longer than the TTL), or "
            "an operator settled it. Its rows are not visible: write them again in a new transaction"
        )
        self.start_ts = start_ts
        self.commit_ts = commit_ts
        self.pump = pump


class CommitUndelivered(PumpClientError):
    """The pump that holds the prewrite did not acknowledge the commit or rollback within the budget (C-11).

    The outcome is unknown: the pump may or may not have stored the commit. If not, the prewrite is pending there and
    holds back the pump's resolved ts. To learn the outcome, repeat the same call or run `binlogctl inspect`.

    A service revokes the lease of the writer that the prewrite names when no other transaction uses it. The pumps then
    roll back what is still pending. They settle a DDL by its published job. A prewrite without a writer stays pending
    until `binlogctl settle` is run with exactly this commit_ts (0: a rollback).

    `under_way`: the commit is still being retried in the background, because a Service stopped waiting before the
    budget was spent.
    """

    def __init__(
        self, start_ts: int, commit_ts: int, *, pump: str, tries: int, last: str, under_way: bool = False
    ) -> None:
        kind = f"commit {commit_ts}" if commit_ts else "rollback"
        taken = (
            f"has not acknowledged the {kind} yet" if under_way else f"did not acknowledge the {kind} in {tries} tries"
        )
        super().__init__(f"transaction {start_ts}: pump {pump} {taken}: {last}")
        self.start_ts = start_ts
        self.commit_ts = commit_ts
        self.pump = pump
        self.last = last
        self.under_way = under_way


class ClientClosed(PumpClientError):
    """The client or the service is closed."""
