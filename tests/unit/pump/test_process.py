"""What a running pump says of its tasks."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from pump.process import tell_failure


async def test_task_that_ends_by_an_unexpected_error_is_logged_with_its_name() -> None:
    async def fails() -> None:
        raise RuntimeError("no such thing")

    async def ends() -> None: ...

    with capture_logs() as logs:
        for work in (fails(), ends()):
            task = asyncio.create_task(work, name="free space")
            task.add_done_callback(tell_failure)
            await asyncio.wait([task])
            await asyncio.sleep(0)  # callbacks run behind the one that ends the wait
    assert [(one["log_level"], one["task"], str(one["exc_info"])) for one in logs] == [
        ("error", "free space", "no such thing")
    ]
