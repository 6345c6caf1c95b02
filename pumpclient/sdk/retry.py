"""Retries of a complete transaction: after which errors, and after which pause."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from binlog.errors import EtcdError, TimestampUnavailable

from pumpclient.errors import ClientClosed, CommitUndelivered, NoPump, PrewriteFailed, TransactionRolledBack
from pumpclient.sdk.transaction import Transaction

WITHIN_S = 30.0
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 2.0

# After each of these errors the transaction is not visible and never will be, and another attempt may succeed.
AGAIN = (PrewriteFailed, NoPump, TransactionRolledBack, TimestampUnavailable, EtcdError)


class Retry:
    """The attempts of one call of `run`. The pause doubles each time and is then shortened at random, so that callers
    which failed at the same time do not retry at the same time.
    """

    def __init__(
        self, within_s: float, *, clock: Callable[[], float] = time.monotonic, dice: random.Random | None = None
    ) -> None:
        self._clock = clock
        self._dice = dice or random.Random()
        self._end_s = clock() + within_s
        self._pause_s = PAUSE_FIRST_S

    def pause_s(self, error: Exception) -> float:
        """Return the seconds to wait before the next attempt. Raises `error` if no time is left, or the client is
        closed: it can query no pump.
        """
        if self._clock() >= self._end_s or isinstance(error.__cause__, ClientClosed):
            raise error
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, PAUSE_MAX_S)
        return pause_s * self._dice.uniform(0.5, 1.0)

    async def begun(self, begin: Callable[[], Awaitable[Transaction]]) -> Transaction:
        """Open a transaction."""
        while True:
            try:
                return await begin()
            except AGAIN as error:
                await asyncio.sleep(self.pause_s(error))

    async def committed(self, txn: Transaction) -> bool:
        """Commit a transaction and return whether it is committed; if not, it may be retried."""
        try:
            await txn.commit()
            return True
        except (CommitUndelivered, *AGAIN) as error:
            await asyncio.sleep(self.pause_s(error))
            if not isinstance(error, CommitUndelivered):
                return False
        while True:  # before a pump has answered whether it is committed, it must not be retried
            try:
                return await txn.outcome()
            except CommitUndelivered as error:
                await asyncio.sleep(self.pause_s(error))
