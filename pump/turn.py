"""Single writes of many callers, given to the store together: those that arrive in one turn of the loop.

The store's work for a group is little more than for one of them. Nobody waits for more to come: a turn ends when what
has arrived is handled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

from binlog.errors import BinlogError
from binlog.rpc.method import Asker
from binlog.runtime.log import get_logger

from pump.writing import Done

GROUP_MAX = 256  # so that the loop is never held for milliseconds
GROUPED_BYTES_MAX = 64 << 10  # a larger payload goes alone

Answers = Sequence[BinlogError | None]

_log = get_logger("pump.turn")


class Callers(NamedTuple):
    """Calls that arrived together: the connection to answer on, their numbers there, and when they came (seconds of
    the monotonic clock)."""

    asker: Asker
    numbers: Sequence[int]
    began_s: float


class _Arrived(NamedTuple):
    callers: Callers
    payloads: Sequence[bytes]  # parallel to the numbers


class TurnWriter:
    """Belongs to the event loop. `submit` takes small payloads, and whom to tell what became of them and which places
    it did not look at because they must wait for somebody; those, and large ones, are given to `write` alone. `tell` is
    called once for each caller, later, on the loop: with None once the binlog is durable, else with why not."""

    def __init__(
        self,
        submit: Callable[[Sequence[bytes], Done], None],
        write: Callable[[Sequence[bytes]], Awaitable[Answers]],
        tell: Callable[[Callers, BaseException | None], object],
    ) -> None:
        self._submit = submit
        self._write = write
        self._tell = tell
        self._waiting: list[_Arrived] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, callers: Callers, payloads: Sequence[bytes]) -> None:
        """Write one binlog for each number."""
        if len(payloads) == 1 and len(payloads[0]) > GROUPED_BYTES_MAX:
            self._start(callers, payloads[0])
            return
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._begin)
        self._waiting.append(_Arrived(callers, payloads))

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, []
        for group in _groups(waiting):
            self._group(group)

    def _group(self, group: Sequence[_Arrived]) -> None:
        payloads = [payload for arrived in group for payload in arrived.payloads]

        def done(answers: Answers, left: Sequence[int]) -> None:
            if left or any(answers):
                self._answer_each(group, answers, left)
            else:
                for arrived in group:
                    self._answer(arrived.callers, None)

        try:
            self._submit(payloads, done)
        except Exception as error:  # noqa: BLE001  a mistake of ours must leave nobody waiting
            self._answer_each(group, [error] * len(payloads), ())

    def _answer_each(
        self, group: Sequence[_Arrived], answers: Sequence[BaseException | None], left: Sequence[int]
    ) -> None:
        alone = set(left)
        place = 0
        for (asker, numbers, began_s), payloads in group:
            for number, payload in zip(numbers, payloads, strict=True):
                callers = Callers(asker, (number,), began_s)
                if place in alone:
                    self._start(callers, payload)
                else:
                    self._answer(callers, answers[place])
                place += 1

    def _start(self, callers: Callers, payload: bytes) -> None:
        task = asyncio.create_task(self._alone(callers, payload))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _alone(self, callers: Callers, payload: bytes) -> None:
        answer: BaseException | None
        try:
            (answer,) = await self._write((payload,))
        except Exception as error:  # noqa: BLE001  a mistake of ours must leave nobody waiting
            answer = error
        except BaseException as error:
            self._answer(callers, error)
            raise
        self._answer(callers, answer)

    def _answer(self, callers: Callers, error: BaseException | None) -> None:
        try:
            self._tell(callers, error)
        except Exception:  # noqa: BLE001  the others of the group wait for theirs
            _log.exception("cannot send the answer to a write")


def _groups(waiting: Sequence[_Arrived]) -> Iterator[list[_Arrived]]:
    """Of about GROUP_MAX payloads each: what arrived together stays together."""
    group: list[_Arrived] = []
    count = 0
    for arrived in waiting:
        if count >= GROUP_MAX:
            yield group
            group, count = [], 0
        group.append(arrived)
        count += len(arrived.payloads)
    if group:
        yield group
