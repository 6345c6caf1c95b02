"""A call, from its first byte to its status."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from binlog.rpc import messages, status
from binlog.rpc.messages import Buffer, Collector, Message, TooLong
from binlog.rpc.method import Method, Received
from binlog.rpc.status import RpcError, Status
from binlog.runtime.log import get_logger

if TYPE_CHECKING:
    from binlog.rpc.session import RpcSession

SEND_AHEAD_BYTES = 256 << 10  # bytes of a stream's messages that may wait for their reader
GUNZIP_INLINE_BYTES_MAX = 4096
STALL_SHARE = 60  # 1/60 of a message must arrive in each period of Timing.stall_s
QUEUE_MAX = 64
_PIECE_BYTES = 64 << 10  # bytes of a stream of requests that are processed in one step

_log = get_logger("rpc")


def status_of(error: BaseException, method: Method, path: bytes) -> RpcError:
    """Return the status to send for a handler's error. An unexpected error is logged."""
    if isinstance(error, RpcError):
        return error
    if not isinstance(error, Exception):
        return RpcError(Status.CANCELLED, "the call was cancelled")
    found = method.translate(error)
    if found is None:
        _log.error("a call failed", method=path.decode(errors="replace"), exc_info=error)
        found = RpcError(Status.UNKNOWN, f"unexpected {type(error).__name__}; see the server's log")
    return found


class Call:
    """A call. Belongs to the event loop. `link`: its connection, whose methods do nothing for a call that has ended.

    It is over when its status was sent or the peer went away. Its handler may then still run for a moment. The
    resources of the call are released when the handler has ended.
    """

    def __init__(self, link: RpcSession, stream_id: int, path: bytes, method: Method, *, gzip: bool) -> None:
        self._link = link
        self.stream_id = stream_id
        self._path = path
        self._method = method
        self._gzip = gzip
        self._collector = Collector(method.request_bytes_max, self._announced)
        self._task: asyncio.Task[None] | None = None
        self._is_batched = False  # whether a batched handler has it and has not answered
        self._head_sent = False
        self._sent: asyncio.Event | None = None  # made when its reader is slow
        self.over = False
        self.deadline_s: float | None = None
        self.received_s = 0.0  # time of the last progress
        self.came = 0  # bytes received since then

    # Calls from the connection

    def on_data(self, data: bytes, *, end: bool) -> None:
        if self.over:
            return
        try:
            self._receive(self._collect(data), len(data), end)
        except TooLong as error:
            self.fail(self._method.too_long(error.size, error.head, self._method.request_bytes_max))
        except Exception as error:  # noqa: BLE001  the method translates errors of its MemoryBudget
            self.fail(error)

    def on_sent(self) -> None:
        """Note that data was sent."""
        if self._sent is not None:
            self._sent.set()

    def cancel(self) -> None:
        """Note that no peer waits for an answer any more."""
        self.over = True
        if self._task is None:
            if not self._is_batched:
                self._close()
        elif not self._task.cancelling():  # only once: its handler may be cleaning up
            self._task.cancel()

    def fail(self, error: Exception) -> None:
        """End the call with an error, whatever its handler does."""
        if not self.over:
            self._refuse(error)
            self.cancel()

    @property
    def is_stalled(self) -> bool:
        """Whether the peer has to send the rest of a message."""
        raise NotImplementedError

    def progressed(self, size: int, now_s: float) -> None:
        """Note that bytes arrived. A large message must bring a share of its bytes to count as progressing.

        Otherwise a single byte now and then would let it occupy the memory budget without limit.
        """
        self.came += size
        if self._collector.is_between or self.came >= self._collector.size // STALL_SHARE:
            self.came = 0
            self.received_s = now_s

    # Implemented by the kinds of calls

    def _collect(self, data: bytes) -> list[Message]:
        """Return the messages that are complete. May raise."""
        return self._collector.feed(data)

    def _announced(self, size: int) -> Any:
        """Handle the start of a message of this size. May raise."""
        raise NotImplementedError

    def _receive(self, found: list[Message], size: int, end: bool) -> None:
        """Handle complete messages. `size`: the bytes that arrived. `end`: whether they were the last. May raise."""
        raise NotImplementedError

    def _close(self) -> None:
        """Release resources, when no handler runs any more. The connection then refers to this call no more."""
        self._collector.forget()
        self._link.ended(self)

    # For the handler

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if not self._is_batched:
            if not self.over:  # the task was cancelled from outside, or the error is a bug
                self._refuse(error or asyncio.CancelledError())
            self._close()
        # A cancelled task refers to its frames, which refer to this call and to the answer that was being sent. In a
        # reference cycle, that answer would stay in memory until the garbage collector runs.
        self._task = None

    def _refuse(self, error: BaseException) -> None:
        """Send the status of an error."""
        found = status_of(error, self._method, self._path)
        self._end(found.status, found.text, found.kind)

    def _end(self, code: Status, text: str = "", kind: str = "") -> None:
        if self.over:
            return
        connection = self._link.connection
        if self._head_sent:
            connection.send_end(self.stream_id, status.trailers(code, text, kind))
        else:
            connection.send_head(self.stream_id, status.refusal(code, text, kind), end=True)
        self._link.flush_soon()
        self.over = True

    async def _send(self, message: bytes | Sequence[bytes]) -> None:
        """Send a message, or several, of a stream of answers. Wait while the reader is slow."""
        link = self._link
        if not self._head_sent:
            self._head_sent = True
            link.connection.send_head(self.stream_id, status.RESPONSE)
        link.send_message(self.stream_id, message)
        del message
        while link.connection.waiting_bytes(self.stream_id) > SEND_AHEAD_BYTES and not self.over:
            if self._sent is None:
                self._sent = asyncio.Event()
            self._sent.clear()
            link.tell_sent(self)
            await self._sent.wait()

    def _plain_size(self, message: Message) -> int:
        """Return the size of a compressed message after decompression. May raise."""
        if not self._gzip:
            raise RpcError(Status.INTERNAL, "a message is compressed, but the request names no grpc-encoding")
        size = messages.gzip_size(message.data)
        if size > self._method.request_bytes_max:
            raise self._method.too_long(size, b"", self._method.request_bytes_max)
        return size


async def gunzip(message: Message, size: int) -> Buffer:
    """Uncompress a message, a large one in a thread."""
    if len(message.data) <= GUNZIP_INLINE_BYTES_MAX:
        return messages.gunzip(message.data, size)
    return await asyncio.to_thread(messages.gunzip, message.data, size)


class SingleCall(Call):
    """A call with one request, and one answer or a stream of answers. Its request is counted until the call is over."""

    def __init__(self, link: RpcSession, stream_id: int, path: bytes, method: Method, *, gzip: bool) -> None:
        super().__init__(link, stream_id, path, method, gzip=gzip)
        self._request: Message | None = None
        self._held = 0

    @property
    def is_stalled(self) -> bool:
        return self._task is None and not self._is_batched

    def _announced(self, size: int) -> None:
        if self._request is not None:
            raise RpcError(Status.INTERNAL, "this method takes one message")
        if self._method.counted:
            self._link.budget.take(size)
            self._held += size

    def _receive(self, found: list[Message], size: int, end: bool) -> None:
        self._link.connection.credit(self.stream_id, size)
        self._link.flush_soon()
        if found:
            self._request, *more = found
            if more:
                raise RpcError(Status.INTERNAL, "this method takes one message")
        if not end:
            return
        request, self._request = self._request, None
        if request is None or not self._collector.is_between:
            raise RpcError(Status.INTERNAL, "the request ended without a whole message")
        if self._method.batched is not None and not request.compressed:
            self._give(request.data)
            return
        self._start(self._stream(request) if self._method.streaming is not None else self._answer(request))

    def _close(self) -> None:
        self._request = None
        if self._held:
            self._link.budget.give(self._held)
            self._held = 0
        super()._close()

    def _give(self, data: Buffer) -> None:
        """Pass the request to the batched handler."""
        assert self._method.batched is not None
        self._is_batched = True
        try:
            self._method.batched(self, (self.stream_id,), (data,))
        except BaseException:
            self._is_batched = False
            raise

    def answer(self, _numbers: Sequence[int], message: bytes) -> int:
        """Accept an answer from a batched handler."""
        return self._answered(message)

    def refuse(self, _number: int, error: BaseException) -> bool:
        """Accept an error from a batched handler."""
        return self._answered(status_of(error, self._method, self._path))

    def _answered(self, found: bytes | Exception) -> bool:
        waited = self._is_batched and not self.over
        if waited:
            if isinstance(found, bytes):
                self._link.send_answer(self.stream_id, found)
                self.over = True
            else:
                self._refuse(found)
        if self._is_batched:
            self._is_batched = False
            if self._task is None:  # else it closes the call when it ends
                self._close()
        return waited

    async def _plain(self, message: Message) -> Buffer:
        if not message.compressed:
            return message.data
        size = self._plain_size(message)
        self._announced(size)
        return await gunzip(message, size)

    async def _answer(self, request: Message) -> None:
        try:
            data = request.data if not request.compressed else await self._plain(request)
            if self._method.unary is None:
                self._give(data)
                return
            answer = await self._method.unary(data)
        except Exception as error:  # noqa: BLE001  every error has its status
            self._refuse(error)
        else:
            if not self.over:
                self._link.send_answer(self.stream_id, answer)
                self.over = True

    async def _stream(self, request: Message) -> None:
        assert self._method.streaming is not None
        try:
            answers = self._method.streaming(await self._plain(request))
            del request
            async with contextlib.aclosing(answers):  # type: ignore[type-var]  # handlers are generators
                async for answer in answers:
                    await self._send(answer)
                    del answer
        except Exception as error:  # noqa: BLE001  every error has its status
            self._refuse(error)
        else:
            self._end(Status.OK)


@dataclass(slots=True, eq=False)
class _Reservation:
    """The bytes that are counted for a message, and the reason if they are not counted."""

    size: int
    taken: int = 0
    tolerated: int = 0
    refused: Exception | None = None
    blocked: bool = False  # not tolerated either: reading is stopped


class BidiCall(Call):
    """A call with a stream of requests and a stream of answers. Its handler runs from the beginning of the call.

    It reads messages at its own pace. Until then, their bytes fill the stream's window. For an incomplete message, the
    window is opened as its bytes arrive, so that a message may be larger than the window. A message that the memory
    budget does not allow is nevertheless read, so that the handler can refuse it and the stream can continue. If too
    much has been read in this way, the window stays closed until memory is released.

    Of the messages that wait for the handler, QUEUE_MAX are kept as objects, and the others as received bytes: an empty
    message has five bytes, and would be sixty times as large as an object.
    """

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
        """Open the window for consumed bytes. `late`: the peer may have had no window, so its time starts again."""
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
