"""Waits until a commit or a rollback is delivered, but not longer than a caller should wait.

Only the pump that has the prewrite can store its commit, so no other pump can be tried instead. When the caller's time
is over, the caller is informed, and the delivery continues in the background.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from pumpclient.errors import CommitUndelivered
from pumpclient.writer import Limits


def begin(sending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start the delivery as a task that continues when its caller stops waiting.

    Its exception, if any, is marked as retrieved, so that asyncio does not report it: the client has logged it.
    """
    delivery = asyncio.ensure_future(sending)
    delivery.add_done_callback(lambda task: task.cancelled() or task.exception())
    return delivery


async def delivered(delivery: asyncio.Task[None], limits: Limits, *, start_ts: int, commit_ts: int, pump: str) -> None:
    """Return when the delivery has succeeded; raise the exception of the delivery, or CommitUndelivered after
    `commit_wait_s`.

    Cancelling the caller does not cancel the delivery.
    """
    done, _ = await asyncio.wait({delivery}, timeout=limits.commit_wait_s)
    if not done:
        last = (
            f"no answer within {limits.commit_wait_s:g} s; it is still being sent, for {limits.commit_budget_s:g} s in "
            "total, and will be stored if the pump answers by then"
        )
        raise CommitUndelivered(start_ts, commit_ts, pump=pump, tries=0, last=last, under_way=True)
    delivery.result()


async def taken_back(rollback: Coroutine[Any, Any, None], limits: Limits) -> None:
    """Wait for the pump's answer to the rollback, for at most `commit_wait_s`.

    The transaction is not committed whatever the pump answers, and even if the caller is cancelled. So errors of the
    rollback are not raised.
    """
    await asyncio.wait({begin(rollback)}, timeout=limits.commit_wait_s)
