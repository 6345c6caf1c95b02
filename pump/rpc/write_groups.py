"""Collects single writes of many callers into groups that the store writes together (docs/architecture.md).

The store needs little more CPU for a group than for one write, and only one sync. A small group waits while another
group is being written, and then until no write has arrived for a few turns of the loop. That takes microseconds; a sync
takes a hundred and more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from binlog.errors import BinlogError
from binlog.rpc.method import Responder
from binlog.runtime.log import get_logger

from pump.store.write_path import Done

GROUP_MAX = 256  # so that the loop is never held for milliseconds
GROUPED_BYTES_MAX = 64 << 10  # a larger payload is written alone
SMALL_MAX = 64  # writes; a group of this size or larger does not wait for more
IDLE_TURNS_MAX = 8  # turns of the loop without a new write, after which a group is written
GATHERING_S = 0.0005  # the longest time for which a group waits, if turns of the loop are long
ALONE_BELOW = 1.5  # a write does not wait if the largest recent group had fewer writes
FORGETTING = 0.9  # factor by which the size of the largest recent group decays with each group

Answers = Sequence[BinlogError | None]

_log = get_logger("pump.rpc.write_groups")


class Callers(NamedTuple):
    """Calls that arrived together: the connection to answer on, the numbers of the calls on that connection, and the
    time of their arrival (seconds of the monotonic clock)."""

    responder: Responder
    numbers: Sequence[int]
    began_s: float


_Arrived = tuple[Callers, Sequence[bytes]]  # the payloads are parallel to the numbers


@dataclass(slots=True, eq=False)
class TurnWriter:
    """Groups the binlogs given to `take` and writes them. Use it only on the event loop.

    `submit` writes a group of small payloads. It reports the results, and the positions of payloads that it did not
    write because they must wait for the timestamp source. These payloads, and large ones, are each passed to `write`.
    `tell` is called on the loop, once for each caller: with None when the binlog is durable, otherwise with the
    error."""

    _submit: Callable[[Sequence[bytes], Done], None]
    _write: Callable[[Sequence[bytes]], Awaitable[Answers]]
    _tell: Callable[[Callers, BaseException | None], object]
    _waiting: list[_Arrived] = field(default_factory=list)
    _count: int = 0  # payloads in _waiting
    _seen: int = 0
    _idle_turns: int = 0
    _until_s: float = 0.0
    _is_scheduled: bool = False
    _under_way: int = 0  # groups
    _recent: float = 1.0  # writes of the largest recent group
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def take(self, callers: Callers, payloads: Sequence[bytes]) -> None:
        """Accept one payload for each of the callers' numbers. It is written and answered later."""
        if len(payloads) == 1 and len(payloads[0]) > GROUPED_BYTES_MAX:
            self._start(callers, payloads[0])
            return
        self._waiting.append((callers, payloads))
        self._count += len(payloads)
        self._schedule()

    def _schedule(self) -> None:
        """Schedule `_begin` for the next turn of the loop. While a group is being written: only if the waiting writes
        are at least SMALL_MAX."""
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
        """Return whether the waiting writes should wait for more."""
        count = self._count
        if count >= SMALL_MAX or self._recent < ALONE_BELOW:
            return False
        if count == self._seen:
            self._idle_turns += 1
        self._seen = count
        return self._idle_turns < IDLE_TURNS_MAX and time.monotonic() < self._until_s

    def _group(self, group: Sequence[_Arrived]) -> None:
        payloads = [payload for _, each in group for payload in each]

        def done(answers: Answers, left: Sequence[int]) -> None:
            self._under_way -= 1
            if left or any(answers):
                self._answer_each(group, answers, left)
            else:
                for callers, _ in group:
                    self._answer(callers, None)
            if self._waiting:
                self._schedule()

        self._under_way += 1
        try:
            self._submit(payloads, done)
        except Exception as error:  # noqa: BLE001  a bug here must not leave callers without an answer
            self._under_way -= 1
            self._answer_each(group, [error] * len(payloads), ())
            if self._waiting:
                self._schedule()

    def _answer_each(
        self, group: Sequence[_Arrived], answers: Sequence[BaseException | None], left: Sequence[int]
    ) -> None:
        alone = set(left)
        place = 0
        for (responder, numbers, began_s), payloads in group:
            for number, payload in zip(numbers, payloads, strict=True):
                callers = Callers(responder, (number,), began_s)
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
        except Exception as error:  # noqa: BLE001  a bug here must not leave callers without an answer
            answer = error
        except BaseException as error:
            self._answer(callers, error)
            raise
        self._answer(callers, answer)

    def _answer(self, callers: Callers, error: BaseException | None) -> None:
        try:
            self._tell(callers, error)
        except Exception:  # noqa: BLE001  the other callers of the group still wait for their answers
            _log.exception("cannot send the answer to a write")


def _groups(waiting: Sequence[_Arrived]) -> Iterator[list[_Arrived]]:
    """Split waiting writes into groups of about GROUP_MAX payloads. Payloads that arrived together stay in one
    group."""
    group: list[_Arrived] = []
    count = 0
    for arrived in waiting:
        if count >= GROUP_MAX:
            yield group
            group, count = [], 0
        group.append(arrived)
        count += len(arrived[1])
    if group:
        yield group
