"""Batched unary calls of one connection (see Method.batched): without an object for each, and one answer for
many.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from binlog.http2.connection import Connection
from binlog.http2.streams import Whole
from binlog.rpc import status
from binlog.rpc.call import status_of
from binlog.rpc.messages import PREFIX, PREFIX_BYTES
from binlog.rpc.method import MemoryBudget, Method, timeout_s
from binlog.rpc.status import RpcError, Status

if TYPE_CHECKING:
    from binlog.rpc.session import RpcSession

TIMEOUTS_MAX = 8192

_OK = status.trailers(Status.OK)
_NEVER_S = float("inf")

_timeouts: dict[bytes | None, float] = {None: _NEVER_S}  # of all connections; seconds


class BatchedCalls:
    """The Responder for the batched methods of its connection. A call's number is its stream id. Belongs to the event
    loop."""

    def __init__(self, link: RpcSession, connection: Connection, budget: MemoryBudget) -> None:
        self._link = link
        self._connection = connection
        self._budget = budget
        # Calls that are not answered: counted bytes, deadline, method, path.
        self._unanswered: dict[int, tuple[int, float, Method, bytes]] = {}

    def __len__(self) -> int:
        """Return the number of calls that handlers work for, whether or not their peers still wait."""
        return len(self._unanswered)

    def dispatch(self, requests: Sequence[Whole], now_s: float) -> list[Whole]:
        """Pass requests to their batched handlers. Return those whose method has none, and those that it should not
        see."""
        left: list[Whole] = []
        at = 0
        while at < len(requests):
            note = requests[at][1].note
            method: Method | None = note.method if note is not None else None
            end = at + 1
            while end < len(requests) and requests[end][1].note is note:
                end += 1
            if method is None or method.batched is None:
                left += requests[at:end]
            else:
                self._dispatch(method, requests[at:end], now_s, left)
            at = end
        return left

    def _dispatch(self, method: Method, requests: Sequence[Whole], now_s: float, left: list[Whole]) -> None:
        assert method.batched is not None
        bytes_max, counted = method.request_bytes_max, method.counted
        numbers: list[int] = []
        messages: list[bytes] = []
        entries: list[tuple[int, float, Method, bytes]] = []
        unpack = PREFIX.unpack_from
        total, before = 0, len(left)
        for request in requests:
            number, head, timeout, data = request
            seconds = _timeouts.get(timeout) or _seconds(timeout)
            try:
                flag, size = unpack(data)
            except struct.error:
                flag, size = 1, 0
            if flag or size != len(data) - PREFIX_BYTES or size > bytes_max or seconds is None:
                left.append(request)
                continue
            numbers.append(number)
            messages.append(data[PREFIX_BYTES:])
            entries.append((size if counted else 0, now_s + seconds, method, head.path))
            total += size
        if not numbers:
            return
        if counted and not self._reserve(entries[0][0], total):
            del left[before:]
            left += requests  # handled one by one, because some may fit
            return
        self._unanswered.update(zip(numbers, entries, strict=True))
        try:
            method.batched(self, numbers, messages)
        except BaseException as error:
            for number in numbers:
                self.refuse(number, error)
            if not isinstance(error, Exception):
                raise

    def _reserve(self, first: int, total: int) -> bool:
        """Reserve memory for all of them, or for none. An empty budget accepts a single request of any size, but not
        several of that size together, so the first one is taken separately.
        """
        budget = self._budget
        if not budget.fits(first):
            return False
        budget.take(first)
        if total > first:
            if not budget.fits(total - first):
                budget.give(first)
                return False
            budget.take(total - first)
        return True

    # Responder

    def answer(self, numbers: Sequence[int], message: bytes) -> int:
        pop = self._unanswered.pop
        size, found = 0, []
        for number in numbers:
            entry = pop(number, None)
            if entry is not None:
                size += entry[0]
                found.append(number)
        if self._link.transport is not None:
            data = PREFIX.pack(0, len(message)) + message
            count = self._connection.answer(found, status.RESPONSE, data, _OK)
            self._link.flush_answers()
        else:
            count = 0
        self._give_back(size)
        return count

    def refuse(self, number: int, error: BaseException) -> bool:
        entry = self._unanswered.pop(number, None)
        if entry is None:
            return False
        size, _, method, path = entry
        waited = self._end(number, status_of(error, method, path))
        self._connection.finished(number)
        self._give_back(size)
        return waited

    def _give_back(self, size: int) -> None:
        if size:
            self._budget.give(size)
        if not self._unanswered:
            self._link.batched_ended()

    def _end(self, number: int, error: RpcError) -> bool:
        """Send the status of an error. Return whether the peer still waited."""
        if self._link.transport is None or not self._connection.is_waiting(number):
            return False
        self._connection.send_head(number, status.refusal(error.status, error.text, error.kind), end=True)
        self._link.flush_answers()
        return True

    # Deadlines and shutdown

    def tick(self, now_s: float) -> None:
        """End the calls whose deadline has passed. Their bytes are counted until their handler is done with them."""
        for number in [number for number, entry in self._unanswered.items() if entry[1] <= now_s]:
            self._end(number, RpcError(Status.DEADLINE_EXCEEDED, "the deadline of the call has passed"))

    def stop(self, text: str) -> None:
        """Answer all open calls with an error."""
        for number in self._unanswered:
            self._end(number, RpcError(Status.UNAVAILABLE, text))


def _seconds(timeout: bytes | None) -> float | None:
    """Return the seconds of a timeout; None if it is invalid, which the general code then reports."""
    try:
        found = timeout_s(timeout or b"")
    except RpcError:
        return None
    if len(_timeouts) >= TIMEOUTS_MAX:
        _timeouts.clear()
        _timeouts[None] = _NEVER_S
    _timeouts[timeout] = found
    return found
