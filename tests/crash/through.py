"""Load that goes on through a fault which no pump may fall over: writers and readers of all pumps, and somebody who
asks for timestamps all the time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence

from binlog.cluster.timestamp import TimestampSource

from tests.crash.load import Stream
from tests.crash.pumps import Life
from tests.integration.pump.rpc import Client, until


class Through:
    """What goes on. A writer or reader that ends has failed."""

    def __init__(self, lives: Sequence[Life], source: TimestampSource) -> None:
        self.lives = lives
        self.source = source
        self.last_ts = 0
        self.tasks: list[asyncio.Task[None]] = []

    def acknowledged(self) -> list[int]:
        return [sum(each.outcome_acked for each in life.journal.sent.values()) for life in self.lives]

    async def _ask(self) -> None:
        while True:
            first, second = await self.source.get(), await self.source.get()
            assert self.last_ts < first < second, f"timestamps went back from {self.last_ts} to {first}, {second}"
            self.last_ts = second

    async def _write(self, life: Life, client: Client) -> None:
        load = life.load(self.source, random.Random(1))
        await load.run(client)
        raise AssertionError(f"the load of {life.name} ended: {load.ended_by}")

    async def _follow(self, stream: Stream, client: Client) -> None:
        """While no pump can get a timestamp it answers no drainer, who asks again."""
        while True:
            await stream.follow(client)
            await asyncio.sleep(0.2)

    async def goes_on(self, count: int = 30) -> None:
        """Wait until every pump has acknowledged so many transactions more."""
        before = self.acknowledged()

        async def more() -> bool:
            self.check()
            return all(now >= then + count for now, then in zip(self.acknowledged(), before, strict=True))

        await until(more, deadline_s=120)

    def check(self) -> None:
        """Nobody has ended: then everything was written, and timestamps only rose."""
        ended = [(task.get_name(), task.exception()) for task in self.tasks if task.done()]
        assert not ended, f"ended: {ended}"

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def going(lives: Sequence[Life], source: TimestampSource) -> AsyncIterator[Through]:
    """The pumps serve. At the end everything is finished, and what drainers have read is compared."""
    through = Through(lives, source)
    clients = [life.client() for life in lives]
    tasks = through.tasks
    tasks.append(asyncio.create_task(through._ask(), name="timestamps"))
    for life, client in zip(lives, clients, strict=True):
        tasks.append(asyncio.create_task(through._write(life, client), name=f"load of {life.name}"))
        for stream in life.streams:
            tasks.append(asyncio.create_task(through._follow(stream, client), name=f"drainer of {life.name}"))
    try:
        await through.goes_on()
        yield through
        await through.goes_on()
        through.check()
        await through.stop()
        for life, client in zip(lives, clients, strict=True):
            await life.load(source, random.Random(2)).finish(client)
            await life.check_streams(client, "at the end")
    finally:
        await through.stop()
        for client in clients:
            await client.close()
