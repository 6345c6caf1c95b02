"""Single writes of many callers, given to the store together.

The store's work for a group is little more than for one of them, its sync is no more at all, and callers that were just
answered come again soon. So a small group is held back while another one is being written, and then for some turns of
the loop in which nobody comes: microseconds, where a sync takes a hundred and more. Where callers come one by one,
nobody waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple

from binlog.errors import BinlogError
from binlog.rpc.method import Asker
from binlog.runtime.log import get_logger

from pump.writing import Done

GROUP_MAX = 256  # so that the loop is never held for milliseconds
GROUPED_BYTES_MAX = 64 << 10  # a larger payload goes alone
SMALL_MAX = 64  # writes; a larger group waits for nobody
IDLE_TURNS_MAX = 8  # in which nobody came
GATHERING_S = 0.0005  # at most, where turns are long
ALONE_BELOW = 1.5  # writes of the largest recent group
FORGETTING = 0.9  # how much of the size of the largest recent group is left after the next

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
        self._count = 0  # writes of those
        self._seen = self._idle_turns = 0
        self._until_s = 0.0
        self._is_scheduled = False
        self._under_way = 0  # groups
        self._recent = 1.0  # writes of the largest recent group
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, callers: Callers, payloads: Sequence[bytes]) -> None:
        """Write one binlog for each number."""
        if len(payloads) == 1 and len(payloads[0]) > GROUPED_BYTES_MAX:
            self._start(callers, payloads[0])
            return
        self._waiting.append(_Arrived(callers, payloads))
        self._count += len(payloads)
        self._schedule()

    def _schedule(self) -> None:
        """Decide in the next turn of the loop; while a group is under way, only about a large one."""
        if not self._is_scheduled and (not self._under_way or self._count >= SMALL_MAX):
            self._is_scheduled = True
            self._seen = self._idle_turns = 0
            self._until_s = time.monotonic() + GATHERING_S
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        if self._gathers():
            asyncio.get_running_loop().call_soon(self._begin)
            return
        self._is_scheduled = False
        self._recent = max(float(self._count), self._recent * FORGETTING)
        waiting, self._waiting, self._count = self._waiting, [], 0
        for group in _groups(waiting):
            self._group(group)

    def _gathers(self) -> bool:
        """Whether it pays to wait for more."""
        count = self._count
        if count >= SMALL_MAX or self._recent < ALONE_BELOW:
            return False
        if count == self._seen:
            self._idle_turns += 1
        self._seen = count
        return self._idle_turns < IDLE_TURNS_MAX and time.monotonic() < self._until_s

    def _group(self, group: Sequence[_Arrived]) -> None:
        payloads = [payload for arrived in group for payload in arrived.payloads]

        def done(answers: Answers, left: Sequence[int]) -> None:
            self._under_way -= 1
            if left or any(answers):
                self._answer_each(group, answers, left)
            else:
                for arrived in group:
                    self._answer(arrived.callers, None)
            if self._waiting:
                self._schedule()

        self._under_way += 1
        try:
            self._submit(payloads, done)
        except Exception as error:  # noqa: BLE001  a mistake of ours must leave nobody waiting
            self._under_way -= 1
            self._answer_each(group, [error] * len(payloads), ())
            if self._waiting:
                self._schedule()

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
