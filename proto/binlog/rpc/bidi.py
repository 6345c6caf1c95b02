"""A call with a stream of requests and a stream of answers.

Its handler reads messages at its own pace. Until then, their bytes fill the stream's window. For an incomplete message,
the window is opened as its bytes arrive, so that a message may be larger than the window. A message that the memory
budget does not allow is nevertheless read, so that the handler can refuse it and the stream can continue. If too much
has been read in this way, the window stays closed until memory is released.

Of the messages that wait for the handler, QUEUE_MAX are kept as objects, and the others as received bytes: an empty
message has five bytes, and would be sixty times as large as an object.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from binlog.rpc.call import Call, gunzip
from binlog.rpc.messages import Buffer, Message
from binlog.rpc.method import Method, Received
from binlog.rpc.status import RpcError, Status

if TYPE_CHECKING:
    from binlog.rpc.session import RpcSession

QUEUE_MAX = 64
_PIECE_BYTES = 64 << 10  # bytes that are processed in one step


@dataclass(slots=True, eq=False)
class _Reservation:
    """The bytes that are counted for a message, and the reason if they are not counted."""

    size: int
    taken: int = 0
    tolerated: int = 0
    refused: Exception | None = None
    blocked: bool = False  # not tolerated either: reading is stopped


class BidiCall(Call):
    """Its handler runs from the beginning of the call."""

    def __init__(self, link: RpcSession, stream_id: int, path: bytes, method: Method, *, gzip: bool) -> None:
        super().__init__(link, stream_id, path, method, gzip=gzip)
        self._queue: deque[Message] = deque()
        self._arrived = asyncio.Event()
        self._unread = bytearray()  # bytes that arrived while the queue was full
        self._end_came = self._ended = False
        self._receiving = _Reservation(0)  # the message that was announced last
        self._reservations: set[_Reservation] = set()  # of messages that the handler has not received
        self._uncredited = 0
        self._start(self._work())

    # Receiving

    @property
    def is_stalled(self) -> bool:
        return not self._collector.is_between and not self._queue and not self._receiving.blocked

    def _collect(self, data: bytes) -> list[Message]:
        found: list[Message] = []
        if not self._unread and len(self._queue) < QUEUE_MAX:
            found = self._collector.feed(data, QUEUE_MAX - len(self._queue))
            data = data[self._collector.consumed :]
        self._unread += data
        while self._unread and (count := QUEUE_MAX - len(self._queue) - len(found)) > 0:
            found += self._collector.feed(bytes(self._unread[:_PIECE_BYTES]), count)
            del self._unread[: self._collector.consumed]
        return found

    def _announced(self, size: int) -> _Reservation:
        reservation = self._receiving = _Reservation(size)
        if self._method.counted:
            self._reservations.add(reservation)
            self._take_budget(reservation)
        return reservation

    def _take_budget(self, reservation: _Reservation) -> None:
        try:
            self._link.budget.take(reservation.size)
        except Exception as error:  # noqa: BLE001  the handler translates it
            reservation.refused = error
            self._tolerate(reservation)
        else:
            reservation.taken += reservation.size

    def _tolerate(self, reservation: _Reservation) -> None:
        reservation.blocked = not self._link.budget.tolerate(reservation.size)
        if reservation.blocked:
            self._link.budget.wait(lambda: self._retry(reservation))
        else:
            reservation.tolerated += reservation.size

    def _retry(self, reservation: _Reservation) -> None:
        if not reservation.blocked or self.over:
            return
        if self._link.budget.fits(reservation.size):
            reservation.blocked, reservation.refused = False, None
            self._take_budget(reservation)
        else:
            self._tolerate(reservation)
        self._give_credit(late=True)

    def _receive(self, found: list[Message], size: int, end: bool) -> None:
        for message in found:
            message.reservation.blocked = False  # it arrived within the window, and is not counted
            self._queue.append(message)
        self._uncredited += size
        self._end_came = self._end_came or end
        self._ended = self._end_came and not self._unread
        if self._ended and not self._collector.is_between:
            raise RpcError(Status.INTERNAL, "the requests ended within a message")
        if found or self._ended:
            self._arrived.set()
        self._give_credit()

    def _give_credit(self, *, late: bool = False) -> None:
        """Open the window for consumed bytes. `late`: the peer may have had no window until now, so its time starts
        again.
        """
        if not self._queue and not self._receiving.blocked and self._uncredited:
            size, self._uncredited = self._uncredited, 0
            self._link.connection.credit(self.stream_id, size)
            self._link.flush_soon()
            if late:
                self.received_s = time.monotonic()

    def _release(self, reservation: _Reservation) -> None:
        self._reservations.discard(reservation)
        taken, tolerated = reservation.taken, reservation.tolerated
        reservation.taken, reservation.tolerated, reservation.blocked = 0, 0, False
        if taken:
            self._link.budget.give(taken)
        if tolerated:
            self._link.budget.forgive(tolerated)

    def _close(self) -> None:
        self._queue.clear()
        self._unread.clear()
        for reservation in list(self._reservations):  # including announced messages that never reached the queue
            self._release(reservation)
        super()._close()

    # The handler

    async def _work(self) -> None:
        assert self._method.bidi is not None
        try:
            async with contextlib.aclosing(self._requests()) as requests:
                answers = self._method.bidi(requests)
                async with contextlib.aclosing(answers):  # type: ignore[type-var]  # handlers are generators
                    async for answer in answers:
                        await self._send(answer)
        except Exception as error:  # noqa: BLE001  every error has its status
            self._refuse(error)
        else:
            self._end(Status.OK)

    async def _requests(self) -> AsyncGenerator[Received]:
        while True:
            while not self._queue:
                if self._ended:
                    return
                self._arrived.clear()
                await self._arrived.wait()
            message = self._queue.popleft()
            if self._unread:
                self.on_data(b"", end=False)
            self._give_credit(late=True)
            received = await self._received(message)
            del message
            yield received
            del received

    async def _received(self, message: Message) -> Received:
        reservation = message.reservation
        try:
            data = message.data if not message.compressed else await self._plain(message)
        except BaseException:
            self._release(reservation)
            raise
        self._reservations.discard(reservation)
        return Received(data, reservation.refused, lambda: self._release(reservation))

    async def _plain(self, message: Message) -> Buffer:
        size, reservation, budget = self._plain_size(message), message.reservation, self._link.budget
        if self._method.counted:
            try:
                budget.take(size)
            except Exception as error:
                if not budget.tolerate(size):
                    raise
                reservation.refused = reservation.refused or error
                reservation.tolerated += size
            else:
                reservation.taken += size
        return await gunzip(message, size)
