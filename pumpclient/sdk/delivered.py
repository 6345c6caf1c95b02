"""Waiting for a commit or a rollback to be delivered: as long as a caller should, and pumps are away for longer.

Only the pump that has a prewrite can store its commit, so nothing is gained by going elsewhere, and nothing by giving
up either: the delivery goes on, and the caller is told that it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from pumpclient.errors import CommitUndelivered
from pumpclient.writer import Limits


def begin(sending: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start it as a task that goes on when its caller stops waiting. What it raises is then dropped without asyncio's
    report of an exception that nobody retrieved: the client has logged it."""
    delivery = asyncio.ensure_future(sending)
    delivery.add_done_callback(lambda task: task.cancelled() or task.exception())
    return delivery


async def delivered(delivery: asyncio.Task[None], limits: Limits, *, start_ts: int, commit_ts: int, pump: str) -> None:
    """Return when it has ended well; raise what it ended with, or CommitUndelivered after `commit_wait_s`. A caller who
    is cancelled does not cancel it."""
    done, _ = await asyncio.wait({delivery}, timeout=limits.commit_wait_s)
    if not done:
        last = (
            f"no answer within {limits.commit_wait_s:g} s; it is still being sent, for {limits.commit_budget_s:g} s in "
            "all, and stored if the pump comes back by then"
        )
        raise CommitUndelivered(start_ts, commit_ts, pump=pump, tries=0, last=last, under_way=True)
    delivery.result()


async def taken_back(rollback: Coroutine[Any, Any, None], limits: Limits) -> None:
    """Wait until the pump has answered, for `commit_wait_s` at most. Whatever it answers, and also where the caller is
    cancelled, the transaction is not committed: so what the rollback raises is not raised here."""
    await asyncio.wait({begin(rollback)}, timeout=limits.commit_wait_s)
