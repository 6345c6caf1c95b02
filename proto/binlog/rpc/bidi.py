"""A call with a stream of requests and a stream of answers.

Its handler takes messages when it likes. Until it does, their bytes fill the stream's window; for a message that is not
complete the window is opened as its bytes come, so that one may be larger than the window. A message for which there
is no room is read nevertheless, so that the handler can refuse it and the stream lives on; where too much is read in
that way already, its window stays closed until something is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from binlog.rpc.call import Call, Link, gunzip
from binlog.rpc.messages import Buffer, Message
from binlog.rpc.method import Method, Received
from binlog.rpc.status import RpcError, Status


@dataclass(slots=True, eq=False)
class _Place:
    """What is counted of a message, and why not where it is not."""

    size: int
    taken: int = 0
    tolerated: int = 0
    refused: Exception | None = None
    blocked: bool = False  # nor is it tolerated: it is not read on


class BidiCall(Call):
    """Its handler runs from the beginning."""

    def __init__(self, link: Link, stream_id: int, path: bytes, method: Method, *, gzip: bool) -> None:
        super().__init__(link, stream_id, path, method, gzip=gzip)
        self._queue: deque[Message] = deque()
        self._arrived = asyncio.Event()
        self._ended = False
        self._receiving = _Place(0)  # the message that was announced last
        self._uncredited = 0
        self._start(self._work())

    # Receiving

    @property
    def is_stalled(self) -> bool:
        return not self._collector.is_between and not self._queue and not self._receiving.blocked

    def _announced(self, size: int) -> _Place:
        place = self._receiving = _Place(size)
        if self._method.counted:
            self._find_room(place)
        return place

    def _find_room(self, place: _Place) -> None:
        try:
            self._link.room.take(place.size)
        except Exception as error:  # noqa: BLE001  the handler's to name
            place.refused = error
            self._tolerate(place)
        else:
            place.taken += place.size

    def _tolerate(self, place: _Place) -> None:
        place.blocked = not self._link.room.tolerate(place.size)
        if place.blocked:
            self._link.wait_for_room(lambda: self._retry(place))
        else:
            place.tolerated += place.size

    def _retry(self, place: _Place) -> None:
        if not place.blocked or self.over:
            return
        if self._link.room.fits(place.size):
            place.blocked, place.refused = False, None
            self._find_room(place)
        else:
            self._tolerate(place)
        self._give_credit()

    def _receive(self, found: list[Message], size: int, end: bool) -> None:
        for message in found:
            message.place.blocked = False  # it came within the window, and is not counted
            self._queue.append(message)
        self._uncredited += size
        self._ended = end
        if end and not self._collector.is_between:
            raise RpcError(Status.INTERNAL, "the requests ended within a message")
        if found or end:
            self._arrived.set()
        self._give_credit()

    def _give_credit(self) -> None:
        if not self._queue and not self._receiving.blocked and self._uncredited:
            size, self._uncredited = self._uncredited, 0
            self._link.credit(self.stream_id, size)

    def _release(self, place: _Place) -> None:
        taken, tolerated = place.taken, place.tolerated
        place.taken, place.tolerated, place.blocked = 0, 0, False
        if taken:
            self._link.room.give(taken)
        if tolerated:
            self._link.room.forgive(tolerated)

    def _close(self) -> None:
        for message in self._queue:
            self._release(message.place)
        self._queue.clear()
        if not self._collector.is_between:
            self._release(self._receiving)
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
            self._give_credit()
            received = await self._received(message)
            del message
            yield received
            del received

    async def _received(self, message: Message) -> Received:
        place = message.place
        try:
            data = message.data if not message.compressed else await self._plain(message)
        except BaseException:
            self._release(place)
            raise
        return Received(data, place.refused, lambda: self._release(place))

    async def _plain(self, message: Message) -> Buffer:
        size, place, room = self._plain_size(message), message.place, self._link.room
        if self._method.counted:
            try:
                room.take(size)
            except Exception as error:
                if not room.tolerate(size):
                    raise
                place.refused = place.refused or error
                place.tolerated += size
            else:
                place.taken += size
        return await gunzip(message, size)
