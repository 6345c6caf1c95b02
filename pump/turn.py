"""Single writes of many callers, given to the store together: those that arrive in one turn of the loop.

The store's work for a group is little more than for one of them. Nobody waits for more to come: a turn ends when what
has arrived is handled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from binlog.errors import BinlogError

GROUP_MAX = 256  # so that the loop is never held for milliseconds
GROUPED_BYTES_MAX = 64 << 10  # a larger payload goes alone

Answers = Sequence[BinlogError | None]


class TurnWriter:
    """Belongs to the event loop. `write` takes payloads, and a list for the places of those that it did not look at
    because they must wait for somebody; they are written alone."""

    def __init__(self, write: Callable[[Sequence[bytes], list[int] | None], Awaitable[Answers]]) -> None:
        self._write = write
        self._waiting: list[tuple[bytes, asyncio.Future[BinlogError | None]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def write(self, payload: bytes) -> BinlogError | None:
        """None once durable, else why not. Who is cancelled does not wait any more; his binlog is written."""
        if len(payload) > GROUPED_BYTES_MAX:
            return (await self._write([payload], None))[0]
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[BinlogError | None] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._begin)
        self._waiting.append((payload, answer))
        return await answer

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, []
        for at in range(0, len(waiting), GROUP_MAX):
            task = asyncio.create_task(self._group(waiting[at : at + GROUP_MAX]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _group(self, group: Sequence[tuple[bytes, asyncio.Future[BinlogError | None]]]) -> None:
        alone: list[int] | None = None if len(group) == 1 else []
        answers: Answers
        try:
            answers = await self._write([payload for payload, _ in group], alone)
        except BinlogError as error:
            answers = [error] * len(group)
        except BaseException as error:
            for _, answer in group:
                if not answer.done():
                    answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        left = set(alone or ())
        for place, (payload, answer) in enumerate(group):
            if place in left:
                task = asyncio.create_task(self._group([(payload, answer)]))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif not answer.done():
                answer.set_result(answers[place])
