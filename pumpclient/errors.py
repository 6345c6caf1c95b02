"""Errors of the pump client. Every message names the transaction and the pump."""

from __future__ import annotations

from binlog.errors import BinlogError


class PumpClientError(BinlogError):
    """Base class of the pump client's errors."""


class NoPump(PumpClientError):
    """No pump is registered, or none may be written to (C-01, C-12)."""


class PrewriteFailed(PumpClientError):
    """No pump acknowledged the prewrite (C-13). Copies whose outcome is unknown are being rolled back."""

    def __init__(self, start_ts: int, *, tries: int, last: str) -> None:
        super().__init__(f"prewrite {start_ts}: write binlog failed after {tries} tries, the last error: {last}")
        self.start_ts = start_ts
        self.tries = tries
        self.last = last


class PayloadTooLarge(PumpClientError):
    """The binlog is larger than a pump takes; no pump will take it, so nothing is retried (C-10)."""

    def __init__(self, start_ts: int, *, payload_bytes: int, detail: str) -> None:
        super().__init__(f"binlog {start_ts} of {payload_bytes} bytes is too large: {detail}")
        self.start_ts = start_ts
        self.payload_bytes = payload_bytes


class UnknownTransaction(PumpClientError):
    """A commit or rollback for a start_ts that has no acknowledged prewrite in this client (C-08)."""

    def __init__(self, start_ts: int) -> None:
        super().__init__(f"transaction {start_ts} has no acknowledged prewrite here, or has already ended")
        self.start_ts = start_ts


class DuplicateTransaction(PumpClientError):
    """A second prewrite for a start_ts that is still open: a start_ts belongs to one transaction."""

    def __init__(self, start_ts: int) -> None:
        super().__init__(f"transaction {start_ts} is already open in this client")
        self.start_ts = start_ts


class TooManyTransactions(PumpClientError):
    """The bound on open transactions is reached: commits or rollbacks are missing (C-09)."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} transactions are open in this client, which is its limit")
        self.limit = limit


class CommitTsChanged(PumpClientError):
    """A commit_ts once sent never changes (correctness rule 19)."""

    def __init__(self, start_ts: int, *, sent: int, asked: int) -> None:
        super().__init__(f"transaction {start_ts}: commit_ts {sent} has been sent, it cannot become {asked}")
        self.start_ts = start_ts
        self.sent = sent
        self.asked = asked


class TransactionRolledBack(PumpClientError):
    """The pump had rolled the transaction back before its commit came: nothing of it is visible, or ever will be.

    The lease of the writer that its prewrite names had ended, or an operator settled it. Make it again as a new one.
    """

    def __init__(self, start_ts: int, commit_ts: int, *, pump: str) -> None:
        super().__init__(
            f"transaction {start_ts} was rolled back by pump {pump} before its commit {commit_ts} came: the lease of "
            "this writer had ended (the process stood still, or did not reach etcd, for longer than the lease lives), "
            "or an operator settled it. Nothing of it is visible: repeat it as a new transaction"
        )
        self.start_ts = start_ts
        self.commit_ts = commit_ts
        self.pump = pump


class CommitUndelivered(PumpClientError):
    """The pump that holds the prewrite did not answer the commit or rollback within the budget (C-11, not silent).

    A transaction is committed when its pump has stored the commit, which may or may not have happened. If it has not,
    the prewrite is pending there and holds back its pump's resolved ts. The same call may be made again, which tells
    the outcome; `binlogctl inspect` does, too. A service ends the lease of the writer that the prewrite names as soon
    as no other transaction uses it, and the pumps roll back what is pending then (of a DDL: as its published job says).
    A prewrite without a writer waits for `binlogctl settle` with exactly this commit_ts (0: a rollback).

    `under_way`: it is still being sent, as a Service does when its caller has waited for long enough.
    """

    def __init__(
        self, start_ts: int, commit_ts: int, *, pump: str, tries: int, last: str, under_way: bool = False
    ) -> None:
        kind = f"commit {commit_ts}" if commit_ts else "rollback"
        taken = f"has not taken the {kind} yet" if under_way else f"did not take the {kind} in {tries} tries"
        super().__init__(f"transaction {start_ts}: pump {pump} {taken}: {last}")
        self.start_ts = start_ts
        self.commit_ts = commit_ts
        self.pump = pump
        self.last = last
        self.under_way = under_way


class ClientClosed(PumpClientError):
    """The client was closed."""
