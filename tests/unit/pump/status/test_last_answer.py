"""What pages show of a server that hangs or fails."""

from __future__ import annotations

import asyncio

from binlog.errors import BinlogError

from pump.status.last_answer import LastAnswer


async def test_last_answer_of_server_that_hangs_is_shown_with_its_age() -> None:
    answers: list[asyncio.Future[int]] = []

    async def ask() -> int:
        answers.append(asyncio.get_running_loop().create_future())
        return await answers[-1]

    last = LastAnswer("etcd", ask, 0, wait_s=0.01)
    value, problem = await last.get()
    assert value == 0 and problem.startswith("etcd has not answered for 0.") and "ago" not in problem
    answers[0].set_result(7)
    assert await last.get() == (7, "")
    value, problem = await last.get()
    assert value == 7 and problem.endswith("; as of 0 s ago")
    await asyncio.gather(last.get(), last.get())
    assert len(answers) == 2, "one question at a time"
    answers[1].set_exception(BinlogError("no leader"))
    assert await last.get() == (7, "no leader; as of 0 s ago")
