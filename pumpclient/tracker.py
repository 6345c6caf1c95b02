"""Tracks which pumps have, or may have, the prewrite of each open transaction (C-08, C-09; rules 5:
clean-up rollbacks, and 19: one transaction on several pumps). Pure.

    begin ─► unknown(pump)* ─► acked(pump) ─► ending(commit_ts) ─► settled   ─► clean up the others
                            └► failed                                       ─► clean up all

A clean-up rollback goes to a pump only if (a) the transaction is settled and (b) that pump did not acknowledge the
prewrite. This module ensures both: only `settled` and `failed` return a `CleanUp`, and neither includes the
acknowledging pump.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pumpclient.errors import CommitTsChanged, DuplicateTransaction, TooManyTransactions, UnknownTransaction

OPEN_MAX = 1_000_000


@dataclass(slots=True)
class OpenTransaction:
    """An open transaction. `pump` acknowledged it, `unknown` may hold a copy; `commit_ts` 0 means rollback."""

    start_ts: int
    prewrite_key: bytes
    opened_s: float
    pump: str | None = None
    unknown: set[str] = field(default_factory=set)
    commit_ts: int | None = None
    reported: bool = False
    undelivered: bool = False


@dataclass(frozen=True, slots=True)
class CleanUp:
    """Roll back `start_ts` on each of `pumps`, until each has answered."""

    start_ts: int
    prewrite_key: bytes
    pumps: tuple[str, ...]


class Tracker:
    """The open transactions of one client. When `open_max` are open, `begin` raises TooManyTransactions."""

    def __init__(self, *, open_max: int = OPEN_MAX) -> None:
        self._open_max = open_max
        self._open: dict[int, OpenTransaction] = {}  # in order of opening

    def __len__(self) -> int:
        return len(self._open)

    def is_open(self, start_ts: int) -> bool:
        """Return whether the transaction has begun, and has neither failed nor been settled."""
        return start_ts in self._open

    def begin(self, start_ts: int, prewrite_key: bytes, *, now_s: float) -> None:
        if start_ts in self._open:
            raise DuplicateTransaction(start_ts)
        if len(self._open) >= self._open_max and not self._evict():
            raise TooManyTransactions(self._open_max)
        self._open[start_ts] = OpenTransaction(start_ts, prewrite_key, now_s)

    def _evict(self) -> bool:
        """Remove the oldest transaction if its end was undelivered, or if it expired and was reported."""
        oldest = next(iter(self._open.values()))
        if oldest.undelivered or (oldest.reported and oldest.commit_ts is None):
            del self._open[oldest.start_ts]
            return True
        return False

    def _get(self, start_ts: int) -> OpenTransaction:
        transaction = self._open.get(start_ts)
        if transaction is None:
            raise UnknownTransaction(start_ts)
        return transaction

    def unknown(self, start_ts: int, pump: str) -> None:
        """Note that a try on `pump` ended without an answer that rules out a copy there."""
        self._get(start_ts).unknown.add(pump)

    def acked(self, start_ts: int, pump: str) -> None:
        transaction = self._get(start_ts)
        transaction.pump = pump
        transaction.unknown.discard(pump)

    def failed(self, start_ts: int) -> CleanUp:
        """Note that no pump acknowledged the prewrite: it never commits, and every copy must be rolled back."""
        transaction = self._open.pop(start_ts, None)
        if transaction is None:
            raise UnknownTransaction(start_ts)
        assert transaction.pump is None, f"transaction {start_ts} was acknowledged by {transaction.pump}"
        return CleanUp(start_ts, transaction.prewrite_key, tuple(sorted(transaction.unknown)))

    def ending(self, start_ts: int, commit_ts: int) -> str:
        """Return the pump for the commit or rollback. Call this before sending: it fixes the commit_ts."""
        transaction = self._get(start_ts)
        if transaction.pump is None:
            raise UnknownTransaction(start_ts)
        if transaction.commit_ts is not None and transaction.commit_ts != commit_ts:
            raise CommitTsChanged(start_ts, sent=transaction.commit_ts, asked=commit_ts)
        transaction.commit_ts = commit_ts
        transaction.undelivered = False
        return transaction.pump

    def prewrite_key(self, start_ts: int) -> bytes:
        return self._get(start_ts).prewrite_key

    def settled(self, start_ts: int) -> CleanUp:
        """Note that the acknowledging pump has stored the end. Return the remaining copies to clean up."""
        transaction = self._get(start_ts)
        assert transaction.commit_ts is not None, f"transaction {start_ts} is settled without an end"
        del self._open[start_ts]
        return CleanUp(start_ts, transaction.prewrite_key, tuple(sorted(transaction.unknown)))

    def undelivered(self, start_ts: int) -> None:
        """Note that the time for sending the end is over. Nothing is settled or cleaned up; a retry is allowed."""
        self._get(start_ts).undelivered = True

    def expired(self, *, now_s: float, ttl_s: float) -> list[OpenTransaction]:
        """Return the transactions open longer than `ttl_s` without commit or rollback. Each is returned once (C-09)."""
        late: list[OpenTransaction] = []
        for transaction in self._open.values():
            if now_s - transaction.opened_s <= ttl_s:
                break  # opened in order: all later ones are younger
            if not transaction.reported:
                transaction.reported = True
                late.append(transaction)
        return late
