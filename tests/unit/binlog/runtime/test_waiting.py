from __future__ import annotations

import asyncio

from binlog.runtime.waiting import cancel, is_set_within


async def test_wait_ends_with_the_event_or_the_time() -> None:
    event = asyncio.Event()
    assert not await is_set_within(0.001, event)
    asyncio.get_running_loop().call_soon(event.set)
    assert await is_set_within(60, event)
    assert await is_set_within(0, event)


async def test_cancelled_tasks_have_ended_whatever_they_raise() -> None:
    async def fails() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while it ends")

    tasks = [asyncio.ensure_future(fails()), asyncio.ensure_future(asyncio.Event().wait())]
    await asyncio.sleep(0)
    await cancel(*tasks)
    assert all(task.done() for task in tasks)
