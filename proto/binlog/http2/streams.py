"""The streams of a connection: the events on them, what they may do, their output, and how they end."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import NamedTuple

from binlog.http2 import frames
from binlog.http2.frames import FRAME_SIZE_MIN, WINDOW_DEFAULT, WINDOW_MAX, Code, ProtocolError, StreamError
from binlog.http2.headers import Head
from binlog.http2.limits import EARNED_BY_STREAM, Budget, ConnectionLimits

LATE_FRAME_BYTES_MIN = 1024  # a late frame counts as at least this many bytes


class Request(NamedTuple):
    """A stream begins. It counts as open until `Connection.finished` is called. `end`: no data follows."""

    stream_id: int
    head: Head
    varying: bytes | None  # the value of HeaderDecoder's `varying` field
    end: bool


class Data(NamedTuple):
    """Bytes of a stream. They occupy its window until `Connection.credit` is called. `end`: no data follows."""

    stream_id: int
    data: bytes
    end: bool


class Reset(NamedTuple):
    """A stream was ended early, by the peer or because of its error. Nothing can be sent on it."""

    stream_id: int
    code: int
    reason: str


class Failed(NamedTuple):
    """The connection is dead. Send the remaining output and close it. No event follows."""

    code: Code
    reason: str


# A complete request: (stream, head, varying value, data). It stands for a Request and the Data that ends it; nothing
# must be credited. It is a plain tuple because there are very many of them, and a named tuple takes ten times as long
# to make.
Whole = tuple[int, Head, bytes | None, bytes]

Event = Whole | Request | Data | Reset | Failed


class State(IntEnum):
    """The states of RFC 9113, section 5.1, for a server without push. An idle stream has no object."""

    OPEN = auto()
    HALF_CLOSED_REMOTE = auto()  # the peer has sent everything
    HALF_CLOSED_LOCAL = auto()  # we have sent everything
    CLOSED = auto()


class Step(IntEnum):
    RECEIVED_END = auto()
    SENT_END = auto()
    RESET = auto()


TRANSITIONS: dict[State, dict[Step, State]] = {
    State.OPEN: {
        Step.RECEIVED_END: State.HALF_CLOSED_REMOTE,
        Step.SENT_END: State.HALF_CLOSED_LOCAL,
        Step.RESET: State.CLOSED,
    },
    State.HALF_CLOSED_REMOTE: {Step.SENT_END: State.CLOSED, Step.RESET: State.CLOSED},
    State.HALF_CLOSED_LOCAL: {Step.RECEIVED_END: State.CLOSED, Step.RESET: State.CLOSED},
    State.CLOSED: {},
}


# Access to a member through its class is slow, and these are compared for each frame.
_OPEN, _HALF_CLOSED_REMOTE, _HALF_CLOSED_LOCAL, _CLOSED = State


@dataclass(slots=True, eq=False)
class Stream:
    """A stream.

    `receive_window`: the bytes that the peer may still send. `uncredited`: the bytes received but not consumed. `sent`:
    the bytes we sent, minus those the peer has credited; the peer's initial window minus `sent` is what we may still
    send.
    """

    stream_id: int
    opened_s: float
    receive_window: int
    content_length: int | None
    state: State = State.OPEN
    received: int = 0
    uncredited: int = 0
    credit: int = 0  # consumed, but not yet announced to the peer
    sent: int = 0
    waiting: deque[memoryview] = field(default_factory=deque)
    waiting_bytes: int = 0
    last: bytes | None = None  # the trailers (b"": only END_STREAM) to send after the queued data

    def step(self, step: Step) -> State:
        """Change the state. A KeyError is a bug: the caller must check the state first."""
        self.state = TRANSITIONS[self.state][step]
        return self.state

    @property
    def may_receive(self) -> bool:
        return self.state is _OPEN or self.state is _HALF_CLOSED_LOCAL

    @property
    def may_send(self) -> bool:
        """Whether more can be queued."""
        return self.last is None and (self.state is _OPEN or self.state is _HALF_CLOSED_REMOTE)


@dataclass(slots=True, eq=False)
class Closed:
    """The most recently closed streams, and whether we ended them before the peer did.

    If so, the peer may not know it yet, and may have sent what the stream's window allowed.
    """

    _count_max: int
    _cut_off: OrderedDict[int, bool] = field(default_factory=OrderedDict)
    _late: dict[int, int] = field(default_factory=dict)  # bytes that may still arrive for these streams

    def add(self, stream_id: int, *, cut_off: bool, window: int = 0) -> None:
        """Add a stream. `window`: the bytes that the peer could still send when we ended it."""
        self._cut_off[stream_id] = cut_off
        if window > 0:
            self._late[stream_id] = window
        if len(self._cut_off) > self._count_max:
            self._late.pop(self._cut_off.popitem(last=False)[0], None)

    def expected(self, stream_id: int, size: int) -> bool:
        """Count late data, and return whether it can have been in flight when the stream was ended."""
        left = self._late.pop(stream_id, 0) - max(size, LATE_FRAME_BYTES_MIN)
        if left > 0:
            self._late[stream_id] = left
        return left >= 0

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._cut_off

    def was_cut_off(self, stream_id: int) -> bool:
        return self._cut_off.get(stream_id, False)


class Outgoing:
    """Control frames and header blocks are sent immediately. Data is queued on its stream until `flush` sends it."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._frame_limit = limits.data_frame_bytes_max
        self._pieces: list[bytes | memoryview] = []
        self._ready: OrderedDict[int, Stream] = OrderedDict()
        self._blocked: dict[int, Stream] = {}  # streams whose own window is exhausted
        self.window = WINDOW_DEFAULT  # the connection's window
        self.initial_window = WINDOW_DEFAULT  # a stream's initial window, as the peer last set it
        self.frame_bytes_max = FRAME_SIZE_MIN
        self.data_frames = 0  # number sent so far
        self.is_urgent = False  # there is output that should not wait for more output
        self._sent_min = 0  # a lower bound of `sent` of all streams

    def write(self, frame: bytes, *, urgent: bool = True) -> None:
        self._pieces.append(frame)
        if urgent:
            self.is_urgent = True

    def take(self) -> list[bytes | memoryview]:
        """Return the output to send now, and remove it."""
        pieces, self._pieces = self._pieces, []
        self.is_urgent = False
        return pieces

    # Limits set by the peer

    def frame_size(self, size: int) -> None:
        self.frame_bytes_max = min(size, self._frame_limit)

    def set_initial_window(self, size: int, streams: Iterable[Stream]) -> None:
        """Set the initial window of all streams. Raises ProtocolError if a stream's would exceed the maximum."""
        if size - self._sent_min > WINDOW_MAX:
            self._sent_min = min((stream.sent for stream in streams), default=0)
            if size - self._sent_min > WINDOW_MAX:
                raise ProtocolError(Code.FLOW_CONTROL_ERROR, "SETTINGS make a stream's window above 2^31-1")
        if size > self.initial_window:
            self._ready.update(self._blocked)
            self._blocked.clear()
        self.initial_window = size

    def grow(self, increment: int) -> None:
        """Increase the connection's window. Raises ProtocolError if it would exceed the maximum."""
        self.window += increment
        if self.window > WINDOW_MAX:
            raise ProtocolError(Code.FLOW_CONTROL_ERROR, "the connection's window is above 2^31-1")

    def grow_stream(self, stream: Stream, increment: int) -> None:
        """Increase a stream's window. Raises StreamError if it would exceed the maximum."""
        stream.sent -= increment
        self._sent_min = min(self._sent_min, stream.sent)
        if self.initial_window - stream.sent > WINDOW_MAX:
            raise StreamError(stream.stream_id, Code.FLOW_CONTROL_ERROR, "its window is above 2^31-1")
        if self._blocked.pop(stream.stream_id, None) is not None:
            self._ready[stream.stream_id] = stream

    # Data

    def fits_now(self, stream: Stream, size: int) -> bool:
        """Return whether the data can be sent immediately in one frame."""
        return (
            not stream.waiting
            and size <= self.frame_bytes_max
            and size <= self.window
            and size <= self.initial_window - stream.sent
        )

    def spend(self, stream: Stream, size: int) -> None:
        """Count data that is sent in one frame."""
        self.data_frames += 1
        self.window -= size
        stream.sent += size

    def queue(self, stream: Stream, data: bytes | memoryview) -> None:
        if not data:
            return
        stream.waiting.append(memoryview(data))
        stream.waiting_bytes += len(data)
        if stream.stream_id not in self._blocked:
            self._ready[stream.stream_id] = stream

    def forget(self, stream: Stream) -> None:
        """Send nothing more of a stream."""
        self._ready.pop(stream.stream_id, None)
        self._blocked.pop(stream.stream_id, None)
        stream.waiting.clear()
        stream.waiting_bytes = 0

    @property
    def has_ready(self) -> bool:
        return bool(self._ready) and self.window > 0

    def flush(self, bytes_max: int) -> Iterator[Stream]:
        """Output about `bytes_max` bytes of data, a frame of each stream in turn. Yield streams that queue no more."""
        while self._ready and self.window > 0 and bytes_max > 0:
            stream_id, stream = self._ready.popitem(last=False)
            allowed = min(self.window, self.initial_window - stream.sent, self.frame_bytes_max)
            if allowed <= 0:
                self._blocked[stream_id] = stream
                continue
            bytes_max -= self._send_frame(stream, allowed)
            if stream.waiting:
                self._ready[stream_id] = stream
            else:
                yield stream

    def _send_frame(self, stream: Stream, allowed: int) -> int:
        piece = stream.waiting[0]
        if len(piece) <= allowed:
            stream.waiting.popleft()
        else:
            stream.waiting[0] = piece[allowed:]
            piece = piece[:allowed]
        size = len(piece)
        stream.waiting_bytes -= size
        self.spend(stream, size)
        end = stream.last == b"" and not stream.waiting
        self._pieces.append(frames.data_header(stream.stream_id, size, end=end))
        self._pieces.append(piece)
        return size


@dataclass(slots=True, eq=False)
class ReceiveWindow:
    """Flow control of the data that a connection receives; the windows of its streams are in `Stream`. `left`: the
    bytes that the peer may still send. `credit`: the bytes that are free again, but not yet announced to the peer; they
    are announced together, once they are a quarter of the whole window.
    """

    _step: int  # a quarter of the window
    _outgoing: Outgoing
    left: int = frames.WINDOW_DEFAULT
    credit: int = 0

    def take(self, size: int) -> None:
        """Count received data. Raises ProtocolError if it is more than the window allows."""
        self.left -= size
        if self.left < 0:
            raise ProtocolError(Code.FLOW_CONTROL_ERROR, "more data than the connection's window allows")

    def grant(self, size: int) -> None:
        """Note that bytes of the window are free again."""
        self.credit += size
        if self.credit >= self._step:
            self.left += self.credit
            self._outgoing.write(frames.window_update(0, self.credit))
            self.credit = 0


class Streams:
    """The open streams, each in one of three forms, and the most recently closed ones.

    `general`: streams with an object. The other forms are those of single-frame requests; `find` turns them into
    general streams. `fresh`: only the header block has arrived (its head, its varying value). `whole`: complete
    requests that are not answered yet (the time of their arrival). `last_id`: the largest id that the peer has used.
    """

    def __init__(
        self, limits: ConnectionLimits, outgoing: Outgoing, window: ReceiveWindow, budget: Budget, events: list[Event]
    ) -> None:
        self._count_max = limits.streams_max
        self._window_bytes = limits.stream_window_bytes
        self._outgoing = outgoing
        self._window = window
        self._budget = budget
        self._events = events
        self.general: dict[int, Stream] = {}
        self.fresh: dict[int, tuple[Head, bytes | None]] = {}
        self.whole: dict[int, float] = {}
        self.closed = Closed(limits.remembered_streams_max)
        self._under_way: set[int] = set()  # ids of general streams, also of ended ones, that handlers work for
        self.last_id = 0
        self.draining = False  # no new streams are accepted

    @property
    def accepts_more(self) -> bool:
        count = max(len(self._under_way), len(self.general)) + len(self.fresh) + len(self.whole)
        return count < self._count_max and not self.draining

    # A stream's life

    def open(self, stream_id: int, content_length: int | None) -> Stream:
        """Begin a general stream."""
        stream = self.general[stream_id] = Stream(stream_id, self._budget.now_s, self._window_bytes, content_length)
        return stream

    def handled(self, stream_id: int) -> None:
        """Note that a handler works for a stream until `finished`."""
        self._under_way.add(stream_id)

    def open_fresh(self, stream_id: int) -> Request:
        """Turn a request whose data has not arrived into a general one."""
        head, varying = self.fresh.pop(stream_id)
        self.open(stream_id, None)
        self._under_way.add(stream_id)
        return Request(stream_id, head, varying, False)

    def find(self, stream_id: int) -> Stream | None:
        """Return a stream that is not closed, and make a `Stream` object for it if there is none yet."""
        if stream_id in self.whole:
            opened_s = self.whole.pop(stream_id)
            self.general[stream_id] = Stream(stream_id, opened_s, self._window_bytes, None, _HALF_CLOSED_REMOTE)
            self._under_way.add(stream_id)
        elif stream_id in self.fresh:
            self._events.append(self.open_fresh(stream_id))
        return self.general.get(stream_id)

    def sending(self, stream_id: int) -> Stream | None:
        """Return a stream on which something can be sent, or None."""
        stream = self.find(stream_id)
        return stream if stream is not None and stream.may_send else None

    def received_end(self, stream: Stream) -> None:
        if stream.step(Step.RECEIVED_END) is _CLOSED:
            self.drop(stream, cut_off=False)

    def sent_end(self, stream: Stream) -> None:
        """End a response. If the request has not ended, the peer is told to send no more (RFC 9113, 8.1)."""
        self._budget.earn(EARNED_BY_STREAM)
        if stream.step(Step.SENT_END) is _CLOSED:
            self.drop(stream, cut_off=False)
        else:
            self.reset(stream.stream_id, Code.NO_ERROR)

    def reset(self, stream_id: int, code: Code) -> None:
        """End a stream immediately from our side."""
        stream = self.find(stream_id)
        if stream is not None:
            self._outgoing.write(frames.rst_stream(stream_id, code))
            self.drop(stream, cut_off=True)

    def cut_off(self, stream_id: int, code: Code, reason: str) -> None:
        """End a stream because of an error of the peer."""
        self._outgoing.write(frames.rst_stream(stream_id, code))
        stream = self.find(stream_id)
        if stream is None:
            if not self.closed.was_cut_off(stream_id):
                self.closed.add(stream_id, cut_off=True)
            return
        self.drop(stream, cut_off=True)
        self._events.append(Reset(stream_id, code, reason))

    def drop(self, stream: Stream, *, cut_off: bool) -> None:
        """Close a stream. `cut_off`: we ended it before the peer did."""
        del self.general[stream.stream_id]
        if stream.state is not _CLOSED:
            stream.step(Step.RESET)
        self._outgoing.forget(stream)
        self.closed.add(stream.stream_id, cut_off=cut_off, window=stream.receive_window if cut_off else 0)
        self._window.grant(stream.uncredited)
        stream.uncredited = 0

    def finished(self, stream_id: int) -> None:
        """Note that no handler works for the stream any longer."""
        self._under_way.discard(stream_id)

    def fail(self) -> None:
        """Close all streams, because the connection is dead."""
        self.draining = True
        for stream in self.general.values():
            self._outgoing.forget(stream)
        self.general.clear()
        self.fresh.clear()
        self._under_way.update(self.whole)  # handlers work for them
        self.whole.clear()

    # Checks and flow control

    def not_idle(self, stream_id: int, what: str) -> None:
        """Raise ProtocolError if the stream has not begun."""
        if stream_id == 0 or stream_id > self.last_id or not stream_id & 1:
            raise ProtocolError(Code.PROTOCOL_ERROR, f"{what} of stream {stream_id}, which is idle")

    def credit(self, stream_id: int, size: int) -> None:
        """Note that bytes of `Data` were consumed, so that the peer may send as many more."""
        stream = self.general.get(stream_id)
        if stream is None or not size:
            return
        assert size <= stream.uncredited, "more is given back than came"
        stream.uncredited -= size
        self._window.grant(size)
        stream.credit += size
        if stream.may_receive and stream.credit >= self._window_bytes // 4:
            stream.receive_window += stream.credit
            self._outgoing.write(frames.window_update(stream_id, stream.credit))
            stream.credit = 0
