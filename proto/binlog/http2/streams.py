"""The streams of a connection: which there are, what they may do, and how they end."""

from __future__ import annotations

from dataclasses import dataclass

from binlog.http2 import frames
from binlog.http2.events import Event, Request, Reset
from binlog.http2.frames import Code, ProtocolError
from binlog.http2.headers import Head
from binlog.http2.limits import EARNED_BY_STREAM, Budget, ConnectionLimits
from binlog.http2.outgoing import Outgoing
from binlog.http2.stream import Closed, State, Step, Stream

_CLOSED, _HALF_CLOSED_REMOTE = State.CLOSED, State.HALF_CLOSED_REMOTE


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
        """Handle the end of a response. If the request has not ended, the peer is told to send no more (RFC
        9113, 8.1).
        """
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
