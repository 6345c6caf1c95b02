"""Single writes of many callers, given to the store together: those that arrive in one turn of the loop.

The store's work for a group is little more than for one of them. Nobody waits for more to come: a turn ends when what
has arrived is handled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from binlog.errors import BinlogError
from binlog.runtime.log import get_logger

GROUP_MAX = 256  # so that the loop is never held for milliseconds
GROUPED_BYTES_MAX = 64 << 10  # a larger payload goes alone

Answers = Sequence[BinlogError | None]
Answered = Callable[[BaseException | None], object]

_log = get_logger("pump.turn")


class TurnWriter:
    """Belongs to the event loop. `write` takes payloads, and a list for the places of those that it did not look at
    because they must wait for somebody; they are written alone."""

    def __init__(self, write: Callable[[Sequence[bytes], list[int] | None], Awaitable[Answers]]) -> None:
        self._write = write
        self._waiting: list[tuple[bytes, Answered]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, payload: bytes, answered: Answered) -> None:
        """`answered` is called once, later, on the loop: with None once the binlog is durable, else with why not."""
        if len(payload) > GROUPED_BYTES_MAX:
            self._start([(payload, answered)])
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._begin)
        self._waiting.append((payload, answered))

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, []
        for at in range(0, len(waiting), GROUP_MAX):
            self._start(waiting[at : at + GROUP_MAX])

    def _start(self, group: Sequence[tuple[bytes, Answered]]) -> None:
        task = asyncio.create_task(self._group(group))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _group(self, group: Sequence[tuple[bytes, Answered]]) -> None:
        alone: list[int] | None = None if len(group) == 1 else []
        answers: Sequence[BaseException | None]
        try:
            answers = await self._write([payload for payload, _ in group], alone)
        except Exception as error:  # noqa: BLE001  a mistake of ours must leave nobody waiting
            answers, alone = [error] * len(group), None
        except BaseException as error:
            for _, answered in group:
                _tell(answered, error)
            raise
        left = set(alone or ())
        for place, (payload, answered) in enumerate(group):
            if place in left:
                self._start([(payload, answered)])
            else:
                _tell(answered, answers[place])


def _tell(answered: Answered, error: BaseException | None) -> None:
    try:
        answered(error)
    except Exception:  # noqa: BLE001  the others of the group wait for theirs
        _log.exception("cannot send the answer to a write")
