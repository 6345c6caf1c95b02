"""Waiting for the delivery of a commit: as long as a caller should wait, which is less than a pump may be away.

Only the pump that has a prewrite can store its commit, so nothing is gained by going elsewhere, and nothing by giving
up either: the delivery goes on, and the caller is told that it does.
"""

from __future__ import annotations

import asyncio

from pumpclient.errors import CommitUndelivered
from pumpclient.writer import Limits


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
