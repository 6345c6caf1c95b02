"""One connection of a server: the I/O around binlog.http2.Connection, and its calls."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from binlog.http2.connection import Connection
from binlog.http2.frames import PREFACE, Code
from binlog.http2.headers import encode_response
from binlog.http2.limits import ConnectionLimits
from binlog.http2.streams import Data, Event, Failed, Request, Reset, Whole
from binlog.rpc import status
from binlog.rpc.call import SEND_AHEAD_BYTES, STALL_SHARE, BidiCall, Call, SingleCall, status_of
from binlog.rpc.messages import PREFIX, PREFIX_BYTES, framed
from binlog.rpc.method import VARYING, MemoryBudget, Method, Route, route, timeout_s
from binlog.rpc.status import RpcError, Status
from binlog.runtime.log import get_logger

WRITE_BYTES_MAX = 256 << 10  # data that may be queued in the transport
READ_PAUSE_BYTES = 1 << 20  # with so many unread bytes of answers and control frames, we stop reading from the peer
WARN_EVERY_S = 1.0
TIMEOUTS_MAX = 8192

_OK = status.trailers(Status.OK)
_NEVER_S = float("inf")
_log = get_logger("rpc")

_timeouts: dict[bytes | None, float] = {None: _NEVER_S}  # of all connections; seconds


@dataclass(slots=True, eq=False)
class BatchedCalls:
    """The Responder for the batched methods of its connection (see Method.batched): no object for each call, and one
    answer for many. A call's number is its stream id. Belongs to the event loop."""

    _link: RpcSession
    _connection: Connection
    _budget: MemoryBudget
    # Calls that are not answered: counted bytes, deadline, method, path.
    _unanswered: dict[int, tuple[int, float, Method, bytes]] = field(default_factory=dict)

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


@dataclass(frozen=True, slots=True)
class Timing:
    """Times in seconds."""

    ping_after_s: float = 60.0  # a peer is pinged after this time without a byte
    ping_timeout_s: float = 20.0  # a peer must answer a ping within this time
    greeting_s: float = 20.0  # a peer's first frames must arrive within this time
    stall_s: float = 60.0  # the next part of an incomplete message must arrive within this time: see call.STALL_SHARE


@dataclass(slots=True, eq=False)
class Settings:
    """The settings that all connections of a server share."""

    methods: Mapping[bytes, Method]
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    timing: Timing = field(default_factory=Timing)
    refuse: Callable[[asyncio.Transport], str | None] = lambda _transport: None  # why a peer may make no calls
    http1: Callable[[], asyncio.Protocol] | None = None  # for connections that are not HTTP/2
    told_s: float = 0.0  # when a peer's protocol error was last logged


class RpcSession(asyncio.Protocol):
    """A connection. `connection`: what calls send on, followed by `flush_soon`."""

    def __init__(
        self, settings: Settings, opened: Callable[[RpcSession], bool], changed: Callable[[RpcSession], None]
    ) -> None:
        """`opened`: returns False if there are too many connections. `changed`: called when it is closed or idle."""
        self._settings = settings
        self.budget = settings.budget
        self._opened = opened
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._now_s = time.monotonic()
        self.connection = Connection(settings.limits, varying=VARYING, now_s=self._now_s, single_frame=True)
        self._calls: dict[int, Call] = {}
        self._batched = BatchedCalls(self, self.connection, settings.budget)
        self._timed: dict[int, Call] = {}  # calls with a deadline
        self._no_grpc: dict[int, Route] = {}  # plain HTTP requests that have not ended
        self._senders: set[Call] = set()  # calls that wait for their reader
        self._first = b""  # first bytes, while the protocol of the connection is not known yet
        self._greeted = False
        self._received_s = self._opened_s = self._now_s
        self._pinged_s: float | None = None
        self._closing_s: float | None = None
        self._flushing = False
        self._paused = self._read_paused = False
        self._refusal: str | None = None
        self.transport: asyncio.Transport | None = None
        self.handed_over: asyncio.Transport | None = None  # set when another protocol than HTTP/2 has taken over

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if not self._opened(self):
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(WRITE_BYTES_MAX, WRITE_BYTES_MAX // 4)
        self._refusal = self._settings.refuse(self.transport)

    def data_received(self, data: bytes) -> None:
        self._received_s = self._now_s = time.monotonic()
        self._pinged_s = None
        if not self._greeted:
            data = self._first + data
            if not PREFACE.startswith(data[: len(PREFACE)]) and self._settings.http1 is not None:
                self._hand_over(self._settings.http1(), data)
                return
            if len(data) < len(PREFACE) and PREFACE.startswith(data):
                self._first = data
                return
            self._greeted, self._first = True, b""
        self._flushing = True  # output is flushed at the end of this method
        events = self.connection.receive(data, self._now_s)
        if wholes := [event for event in events if type(event) is tuple]:
            self._on_wholes(cast("list[Whole]", wholes))
        for event in events if len(wholes) < len(events) else ():
            self._on_event(event)
        if self.connection.is_urgent or not self._batched:
            self._flush()
        else:  # only answers to pings: a client that measures round trips sends a ping with every call
            self._flushing = False

    def _on_event(self, event: Event) -> None:
        kind = type(event)
        if kind is Data:
            self._on_data(*cast(Data, event))
        elif kind is Request:
            self._on_request(cast(Request, event))
        elif kind is Reset:
            self._on_reset(cast(Reset, event))
        elif kind is Failed:
            self._on_failed(cast(Failed, event))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        for call in list(self._calls.values()):
            call.cancel()
        self._changed(self)

    def _hand_over(self, protocol: asyncio.Protocol, data: bytes) -> None:
        transport, self.transport = self.transport, None
        assert transport is not None
        self.handed_over = transport
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        self._changed(self)
        if not transport.is_closing():  # the protocol may have refused it
            protocol.data_received(data)

    def _on_wholes(self, requests: list[Whole]) -> None:
        """Handle complete requests ahead of other events: only a reset can follow on their streams."""
        for _, head, _, _ in requests:
            head.note = head.note or route(head, self._settings.methods)
        for stream_id, head, varying, data in (
            requests if self._refusal is not None else self._batched.dispatch(requests, self._now_s)
        ):
            self.connection.generally(stream_id, len(data))
            self._on_request(Request(stream_id, head, varying, False))
            self._on_data(stream_id, data, True)

    def _on_request(self, event: Request) -> None:
        stream_id, head = event.stream_id, event.head
        found = head.note
        if found is None:
            found = head.note = route(head, self._settings.methods)
        if found.method is None or self._refusal is not None:
            self._turn_away(stream_id, found, end=event.end)
            return
        method = found.method
        kind = SingleCall if method.bidi is None else BidiCall
        call = self._calls[stream_id] = kind(self, stream_id, head.path, method, gzip=found.gzip)
        call.received_s = self._now_s
        if event.varying is not None:
            try:
                call.deadline_s = self._now_s + timeout_s(event.varying)
                self._timed[stream_id] = call
            except RpcError as error:
                call.fail(error)
                return
        if event.end:
            call.on_data(b"", end=True)

    def _turn_away(self, stream_id: int, found: Route, *, end: bool) -> None:
        """Refuse a call immediately. Plain HTTP is answered when the request has ended, as its clients expect."""
        connection = self.connection
        if found.http_status == 200:
            error = found.error
            if error is None or self._refusal is not None:
                error = RpcError(Status.UNAUTHENTICATED, self._refusal or "")
            connection.send_head(stream_id, status.refusal(error.status, error.text, error.kind), end=True)
        elif end:
            connection.send_head(stream_id, encode_response(found.http_status, b"text/plain; charset=utf-8"))
            connection.send_data(stream_id, found.text.encode())
            connection.send_end(stream_id)
        else:
            self._no_grpc[stream_id] = found
            return
        connection.finished(stream_id)

    def _on_data(self, stream_id: int, data: bytes, end: bool) -> None:
        call = self._calls.get(stream_id)
        if call is not None:
            call.progressed(len(data), self._now_s)
            call.on_data(data, end=end)
            return
        self.connection.credit(stream_id, len(data))
        if end and (found := self._no_grpc.pop(stream_id, None)) is not None:
            self._turn_away(stream_id, found, end=True)

    def _on_reset(self, event: Reset) -> None:
        call = self._calls.get(event.stream_id)
        if call is not None:
            call.cancel()
        elif self._no_grpc.pop(event.stream_id, None) is not None:
            self.connection.finished(event.stream_id)

    def _on_failed(self, event: Failed) -> None:
        settings = self._settings
        if self._now_s - settings.told_s > WARN_EVERY_S:  # peers must not be able to fill the log
            settings.told_s = self._now_s
            _log.warning("a connection was closed", peer=self.peer, error=event.code.name, reason=event.reason)
        for call in list(self._calls.values()):
            call.cancel()
        self._flush()
        if self.transport is not None:
            self.transport.close()

    @property
    def peer(self) -> str:
        found: Any = self.transport.get_extra_info("peername") if self.transport is not None else None
        return f"{found[0]}:{found[1]}" if isinstance(found, tuple) else str(found or "a local process")

    # The Link of calls

    def send_answer(self, stream_id: int, message: bytes) -> None:
        data = PREFIX.pack(0, len(message)) + message
        self.connection.send_answer(stream_id, status.RESPONSE, data, _OK)
        self.flush_soon()

    def send_message(self, stream_id: int, message: bytes | Sequence[bytes]) -> None:
        for piece in framed(message):
            self.connection.send_data(stream_id, piece)
        self.flush_soon()

    def flush_answers(self) -> None:
        if not self._flushing:
            self._flush()

    def batched_ended(self) -> None:
        if self.is_idle:
            self._changed(self)

    def tell_sent(self, call: Call) -> None:
        self._senders.add(call)
        self.flush_soon()

    def ended(self, call: Call) -> None:
        self._calls.pop(call.stream_id, None)
        self._timed.pop(call.stream_id, None)
        self._senders.discard(call)
        self.connection.finished(call.stream_id)
        if self.is_idle:
            self._changed(self)

    # Sending

    def flush_soon(self) -> None:
        """Flush once for everything that happens in this turn of the loop."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        connection = self.connection
        before = transport.get_write_buffer_size()
        pieces = connection.take_output(0 if self._paused else max(0, WRITE_BYTES_MAX - before))
        if pieces:
            transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            waiting = connection.waiting_bytes
            for call in [call for call in self._senders if waiting(call.stream_id) <= SEND_AHEAD_BYTES]:
                self._senders.discard(call)
                call.on_sent()
        if not self._paused and connection.has_data_ready:
            self.flush_soon()
        unread = transport.get_write_buffer_size() > READ_PAUSE_BYTES
        if unread != self._read_paused:
            self._read_paused = unread
            (transport.pause_reading if unread else transport.resume_reading)()

    # Deadlines

    def tick(self, now_s: float) -> None:
        """Handle timeouts. Called several times per second."""
        timing = self._settings.timing
        if self.transport is None or self._is_closing(now_s):
            return
        self._open_fresh()
        self._batched.tick(now_s)
        for call in [call for call in self._timed.values() if call.deadline_s is not None and call.deadline_s <= now_s]:
            self._end(call, RpcError(Status.DEADLINE_EXCEEDED, "the deadline of the call has passed"))
        for call in list(self._calls.values()):
            if call.is_stalled and now_s - call.received_s > timing.stall_s and not self._read_paused:
                what = "no byte" if not call.came else f"less than a {STALL_SHARE}th"
                text = f"{what} of the message came for {timing.stall_s:g} s"
                self._end(call, RpcError(Status.UNAVAILABLE, text))
        if self._pinged_s is not None:
            if now_s - self._pinged_s > timing.ping_timeout_s:
                self._give_up("it does not answer")
        elif not self._greeted:
            if now_s - self._opened_s > timing.greeting_s:
                self._give_up("it sends no request")
        elif now_s - self._received_s > timing.ping_after_s:
            self._pinged_s = now_s
            self.connection.ping(b"alive?\0\0")
        if self._greeted:
            self._flush()

    def _end(self, call: Call, error: RpcError) -> None:
        """End a call that took too long. If answers are still queued, the status would follow them, and the peer may
        never accept them: then reset the stream, as the peer does when its deadline has passed.
        """
        call.fail(error)
        if self.connection.waiting_bytes(call.stream_id):
            self.connection.reset(call.stream_id, Code.CANCEL)
            self.flush_soon()

    def _is_closing(self, now_s: float) -> bool:
        """Return whether the connection is being closed. A peer that does not let it close is disconnected."""
        if self.transport is None or not self.transport.is_closing():
            return False
        if self._closing_s is None:
            self._closing_s = now_s
        elif now_s - self._closing_s > self._settings.timing.ping_timeout_s:
            self.transport.abort()
        return True

    def _give_up(self, reason: str) -> None:
        if self.transport is not None and not self.transport.is_closing():
            _log.info("a connection was aborted", peer=self.peer, reason=reason)
            self.transport.abort()

    # Shutdown

    def drain(self) -> None:
        """Accept no more calls."""
        self._open_fresh()
        self.connection.drain()
        self._flush()

    def _open_fresh(self) -> None:
        """Start the calls of which only the header block has arrived."""
        for request in self.connection.open_fresh():
            self._on_request(request)

    @property
    def is_idle(self) -> bool:
        return not self._calls and not self._batched

    def stop(self, text: str) -> None:
        """End the open calls and close the connection."""
        self._batched.stop(text)
        for call in list(self._calls.values()):
            call.fail(RpcError(Status.UNAVAILABLE, text))
        self._flush()
        if self.transport is not None:
            self.transport.close()
