"""The streams of a connection: sending on them, and ending them."""

from __future__ import annotations

from binlog.http2 import frames
from binlog.http2.events import Event, Reset
from binlog.http2.frames import Code, ProtocolError
from binlog.http2.headers import Head, HeaderDecoder
from binlog.http2.limits import EARNED_BY_DATA, EARNED_BY_STREAM, Budget, Limits
from binlog.http2.outgoing import Outgoing
from binlog.http2.stream import Closed, State, Step, Stream

_CLOSED = State.CLOSED


class Streams:
    """The part of a `Connection` that its owner calls. Calls for a stream that no longer exists do nothing."""

    def __init__(self, limits: Limits, varying: bytes, now_s: float) -> None:
        self._limits = limits
        self._now_s = now_s
        self._budget = Budget(limits, now_s)
        self._decoder = HeaderDecoder(limits, varying)
        self._outgoing = Outgoing(limits)
        self._streams: dict[int, Stream] = {}
        self._closed = Closed(limits.remembered_streams_max)
        self._fresh: dict[int, tuple[Head, bytes | None]] = {}  # see BriefRequests
        self._whole: dict[int, float] = {}  # stream id -> time of arrival
        self._under_way: set[int] = set()
        self._last_id = 0
        self._events: list[Event] = []
        self._settled = False  # the peer's first SETTINGS have arrived
        self._draining = False
        self._dead = False
        self._window = frames.WINDOW_DEFAULT
        self._credit = 0

    def take_output(self, data_bytes_max: int) -> list[bytes | memoryview]:
        """Return the bytes to send: all frames except data, and about `data_bytes_max` bytes of data, if windows allow
        it.
        """
        if not self._dead:
            before = self._outgoing.data_frames
            for stream in self._outgoing.flush(data_bytes_max):
                if stream.last is not None:
                    self._send_last(stream, data_ended=stream.last == b"")
            self._budget.earn(EARNED_BY_DATA * (self._outgoing.data_frames - before))
        return self._outgoing.take()

    @property
    def has_data_ready(self) -> bool:
        """Whether `take_output` would return data."""
        return not self._dead and self._outgoing.has_ready

    @property
    def is_urgent(self) -> bool:
        """Whether there is more to send than answers to pings. Those may be sent together with the next answer to a
        call.
        """
        return self._outgoing.is_urgent or self.has_data_ready

    def send_head(self, stream_id: int, block: bytes, *, end: bool = False) -> None:
        """Send the first header block of the response."""
        stream = self._sending(stream_id)
        if stream is not None:
            self._outgoing.write(frames.headers(stream_id, block, end=end))
            if end:
                self._sent_end(stream)

    def send_data(self, stream_id: int, data: bytes | memoryview) -> None:
        """Queue data. `data` must not be changed until it is sent."""
        stream = self._sending(stream_id)
        if stream is not None:
            self._outgoing.queue(stream, data)

    def send_end(self, stream_id: int, trailers: bytes = b"") -> None:
        """End the response after the queued data, with or without trailers."""
        stream = self._sending(stream_id)
        if stream is not None:
            stream.last = trailers
            if not stream.waiting:
                self._send_last(stream, data_ended=False)

    def send_answer(self, stream_id: int, head: bytes, data: bytes, trailers: bytes) -> None:
        """Send a complete response, in one piece if windows allow it."""
        stream = self._sending(stream_id)
        if stream is None:
            return
        if not self._outgoing.fits_now(stream, len(data)):
            self.send_head(stream_id, head)
            self.send_data(stream_id, data)
            self.send_end(stream_id, trailers)
            return
        self._outgoing.spend(stream, len(data))
        self._outgoing.write(
            b"".join(
                (
                    frames.headers(stream_id, head, end=False),
                    frames.data_header(stream_id, len(data), end=False),
                    data,
                    frames.headers(stream_id, trailers, end=True),
                )
            )
        )
        self._sent_end(stream)

    def waiting_bytes(self, stream_id: int) -> int:
        """Return the number of bytes of a stream that are queued and not yet sent."""
        stream = self._streams.get(stream_id)  # streams in other tables have nothing queued
        return stream.waiting_bytes if stream is not None else 0

    def reset(self, stream_id: int, code: Code) -> None:
        """End a stream immediately from our side."""
        stream = self._find(stream_id)
        if stream is not None:
            self._outgoing.write(frames.rst_stream(stream_id, code))
            self._drop(stream, cut_off=True)

    def credit(self, stream_id: int, size: int) -> None:
        """Note that bytes of `Data` were consumed, so that the peer may send as many more."""
        stream = self._streams.get(stream_id)
        if stream is None or not size:
            return
        assert size <= stream.uncredited, "more is given back than came"
        stream.uncredited -= size
        self._grant(size)
        stream.credit += size
        if stream.may_receive and stream.credit >= self._limits.stream_window_bytes // 4:
            stream.receive_window += stream.credit
            self._outgoing.write(frames.window_update(stream_id, stream.credit))
            stream.credit = 0

    def finished(self, stream_id: int) -> None:
        """Note that no handler works for the stream any longer."""
        self._under_way.discard(stream_id)

    def ping(self, payload: bytes) -> None:
        """Send a ping with eight bytes. An `Acknowledged` event returns them."""
        self._outgoing.write(frames.ping(payload, ack=False))

    def drain(self) -> None:
        """Accept no new streams. Open streams continue."""
        if not self._draining and not self._dead:
            self._draining = True
            self._outgoing.write(frames.goaway(self._last_id, Code.NO_ERROR, "the server is stopping"))

    @property
    def under_way(self) -> int:
        return len(self._under_way) + len(self._fresh) + len(self._whole)

    @property
    def _open_count(self) -> int:
        return max(len(self._under_way), len(self._streams)) + len(self._fresh) + len(self._whole)

    # Lifecycle of a stream

    def _find(self, stream_id: int) -> Stream | None:
        """Return a stream that is not closed, or None."""
        return self._streams.get(stream_id)

    def _sending(self, stream_id: int) -> Stream | None:
        stream = self._find(stream_id)
        return stream if stream is not None and stream.may_send else None

    def _send_last(self, stream: Stream, *, data_ended: bool) -> None:
        if stream.last:
            self._outgoing.write(frames.headers(stream.stream_id, stream.last, end=True))
        elif not data_ended:
            self._outgoing.write(frames.data_header(stream.stream_id, 0, end=True))
        self._sent_end(stream)

    def _sent_end(self, stream: Stream) -> None:
        """Handle the end of a response. If the request has not ended, the peer is told to send no more (RFC
        9113, 8.1).
        """
        self._budget.earn(EARNED_BY_STREAM)
        if stream.step(Step.SENT_END) is _CLOSED:
            self._drop(stream, cut_off=False)
        else:
            self.reset(stream.stream_id, Code.NO_ERROR)

    def _cut_off(self, stream_id: int, code: Code, reason: str) -> None:
        """End a stream because of an error of the peer."""
        self._outgoing.write(frames.rst_stream(stream_id, code))
        stream = self._find(stream_id)
        if stream is None:
            if not self._closed.was_cut_off(stream_id):
                self._closed.add(stream_id, cut_off=True)
            return
        self._drop(stream, cut_off=True)
        self._events.append(Reset(stream_id, code, reason))

    def _drop(self, stream: Stream, *, cut_off: bool) -> None:
        del self._streams[stream.stream_id]
        if stream.state is not _CLOSED:
            stream.step(Step.RESET)
        self._outgoing.forget(stream)
        self._closed.add(stream.stream_id, cut_off=cut_off, window=stream.receive_window if cut_off else 0)
        self._grant(stream.uncredited)
        stream.uncredited = 0

    def _grant(self, size: int) -> None:
        """Note that bytes of the connection's window are free again."""
        self._credit += size
        if self._credit >= self._limits.connection_window_bytes // 4:
            self._window += self._credit
            self._outgoing.write(frames.window_update(0, self._credit))
            self._credit = 0

    def _pay(self, cost: float) -> None:
        if not self._budget.pay(cost, self._now_s):
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, "too many frames that make no progress")
