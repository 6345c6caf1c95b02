"""Waits on the event loop: for an event or a time, and for the end of tasks that are not needed any more."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any


async def is_set_within(seconds: float, event: asyncio.Event) -> bool:
    """Wait for the event, at most so long. Return whether it is set. Not `wait_for`, which may swallow a cancellation
    in Python 3.11."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
