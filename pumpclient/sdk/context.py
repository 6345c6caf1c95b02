"""What the transactions and the DDL statements of a service share, and how they wait for a commit or a rollback.

Only the pump that has the prewrite can store its commit, so no other pump can be tried instead. When the caller's time
is over, the caller is informed, and the delivery continues in the background.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from binlog.cluster.etcd import Etcd
from binlog.cluster.timestamp import TimestampSource

from pumpclient.client import PumpsClient
from pumpclient.errors import CommitUndelivered
from pumpclient.sdk.catalog import Catalog
from pumpclient.sdk.lease import WriterLease
from pumpclient.sdk.permits import Permits
from pumpclient.sdk.report import OnTransaction
from pumpclient.sdk.underway import UnderWay


def begin(sending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a delivery as a task that continues when its caller stops waiting.

    Its exception, if any, is marked as retrieved, so that asyncio does not report it: the client has logged it.
    """
    delivery = asyncio.ensure_future(sending)
    delivery.add_done_callback(lambda task: task.cancelled() or task.exception())
    return delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContext:
    """What one open service uses. `rowids`: hidden row ids of tables without a clustered key."""

    etcd: Etcd
    client: PumpsClient
    timestamps: TimestampSource
    rowids: Iterator[int]
    lease: WriterLease
    permits: Permits
    on_transaction: OnTransaction | None = None
    catalog: Catalog = field(default_factory=Catalog)
    under_way: UnderWay = field(default_factory=UnderWay)

    async def commit_ts(self, start_ts: int) -> int:
        """Get the commit_ts. Without one the transaction never commits, so its prewrite is rolled back."""
        try:
            return await self.timestamps.get()
        except BaseException:
            # The rollback is sent even if this task is cancelled; its delivery continues after this task.
            await self.taken_back(start_ts)
            raise

    async def delivered(self, delivery: asyncio.Task[None], *, start_ts: int, commit_ts: int, pump: str) -> None:
        """Return when the delivery has succeeded; raise the exception of the delivery, or CommitUndelivered after
        `commit_wait_s`.

        Cancelling the caller does not cancel the delivery.
        """
        limits = self.client.limits
        done, _ = await asyncio.wait({delivery}, timeout=limits.commit_wait_s)
        if not done:
            last = (
                f"no answer within {limits.commit_wait_s:g} s; it is still being sent, for {limits.commit_budget_s:g} "
                "s in total, and will be stored if the pump answers by then"
            )
            raise CommitUndelivered(start_ts, commit_ts, pump=pump, tries=0, last=last, under_way=True)
        delivery.result()

    async def taken_back(self, start_ts: int) -> None:
        """Send a rollback and wait for the pump's answer, for at most `commit_wait_s`.

        The transaction is not committed whatever the pump answers, and even if the caller is cancelled. So errors of
        the rollback are not raised.
        """
        await asyncio.wait({begin(self.client.rollback(start_ts))}, timeout=self.client.limits.commit_wait_s)
