"""Handlers of a peer's data and header blocks.

Most calls are single-frame requests: a cached header block, and all of the data in one frame. They need no `Stream`
object: until anything other than an answer concerns such a request, it is only an entry in a table. A peer's frames are
checked by the same rules as elsewhere. Frames of any other form are handled by the general code; if their stream began
as such a request, a `Stream` is made for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from binlog.http2 import frames
from binlog.http2.events import Data, Event, Request
from binlog.http2.frames import STREAM_MAX, Code, ProtocolError, StreamError
from binlog.http2.headers import HeaderDecoder, Malformed, check_trailers
from binlog.http2.limits import COST_FRAME, Budget, ConnectionLimits
from binlog.http2.outgoing import Outgoing
from binlog.http2.stream import Stream
from binlog.http2.streams import ReceiveWindow, Streams

_HEADERS, _END_HEADERS, _END_STREAM = frames.HEADERS, frames.END_HEADERS, frames.END_STREAM


@dataclass(slots=True, eq=False)
class RequestFrames:
    """Each handler gets the flags, the stream and the place of the payload.

    `block_of`: stream and flags of a header block that is not complete, or None. Until it is, no frame of another kind
    or stream may follow.
    """

    _limits: ConnectionLimits
    _decoder: HeaderDecoder
    _streams: Streams
    _window: ReceiveWindow
    _outgoing: Outgoing
    _budget: Budget
    _events: list[Event]
    block_of: tuple[int, int] | None = None
    _block: bytearray = field(default_factory=bytearray)
    _block_frames: int = 0

    def clear(self) -> None:
        """Forget a header block that is not complete."""
        self._block.clear()

    def single_frame(self, kind: int, flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> bool:
        """Process a HEADERS or DATA frame of a single-frame request. Return False, with no side effect, for any other
        frame. See `Streams.fresh` and `Streams.whole`."""
        streams = self._streams
        if kind == _HEADERS:
            if (
                flags != _END_HEADERS
                or stream_id <= streams.last_id
                or not stream_id & 1
                or end - begin > self._limits.header_block_bytes_max
                or not streams.accepts_more
            ):
                return False
            # A block is only cached once another one was decoded: that is after the peer's SETTINGS.
            found = self._decoder.remembered(buffer[begin:end])
            if found is None or found[0].content_length is not None:
                return False
            streams.last_id = stream_id
            streams.fresh[stream_id] = found
            return True
        fresh = streams.fresh.get(stream_id)
        window = self._window
        size = end - begin
        if fresh is None or flags != _END_STREAM or size > window.left or size > self._limits.stream_window_bytes:
            return False
        del streams.fresh[stream_id]
        streams.whole[stream_id] = self._budget.now_s
        window.left -= size
        window.grant(size)
        self._events.append((stream_id, fresh[0], fresh[1], buffer[begin:end]))
        return True

    def on_data(self, flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
        size = end - begin
        self._window.take(size)
        stream = self._streams.find(stream_id)
        if stream is None or not stream.may_receive:
            self._window.grant(size)
            self._refuse_late_data(stream_id, stream, size)
            return
        stream.receive_window -= size
        stream.uncredited += size
        if stream.receive_window < 0:
            raise StreamError(stream_id, Code.FLOW_CONTROL_ERROR, "more data than its window allows")
        begin, end = _without_padding(flags, buffer, begin, end)
        if size != end - begin:
            self._streams.credit(stream_id, size - (end - begin))
        if begin == end and not flags & frames.END_STREAM:
            self._budget.pay(COST_FRAME)
        stream.received += end - begin
        if flags & frames.END_STREAM:
            self._received_end(stream)
        self._events.append(Data(stream_id, buffer[begin:end], bool(flags & frames.END_STREAM)))

    def _refuse_late_data(self, stream_id: int, stream: Stream | None, size: int) -> None:
        """Handle data for a stream that expects none."""
        self._streams.not_idle(stream_id, "data")
        if self._streams.closed.was_cut_off(stream_id):
            if not self._streams.closed.expected(stream_id, size):
                self._budget.pay(COST_FRAME)
            return
        self._budget.pay(COST_FRAME)
        if stream is None:
            self._outgoing.write(frames.rst_stream(stream_id, Code.STREAM_CLOSED))
            self._streams.closed.add(stream_id, cut_off=True)
            return
        raise StreamError(stream_id, Code.STREAM_CLOSED, "data after its end")

    def on_headers(self, flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
        if not stream_id & 1:
            raise ProtocolError(Code.PROTOCOL_ERROR, f"a header block on stream {stream_id}")
        begin, end = _without_padding(flags, buffer, begin, end)
        depends_on = None
        if flags & frames.PRIORITIZED:
            if end - begin < 5:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, "HEADERS too short for its priority")
            depends_on = frames.WORD.unpack_from(buffer, begin)[0] & STREAM_MAX
            begin += 5
        if end - begin > self._limits.header_block_bytes_max:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, "a header block is too large")
        flags |= frames.PRIORITY << 8 if depends_on == stream_id else 0  # kept until the block is decoded
        if flags & frames.END_HEADERS:
            self._on_block(flags, stream_id, buffer[begin:end])
            return
        self.block_of = (stream_id, flags)
        self._block_frames = 0
        self._block += buffer[begin:end]

    def on_continuation(self, flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
        if self.block_of is None:
            raise ProtocolError(Code.PROTOCOL_ERROR, "CONTINUATION without a header block")
        self._block += buffer[begin:end]
        self._block_frames += 1
        limits = self._limits
        if len(self._block) > limits.header_block_bytes_max or self._block_frames > limits.continuations_max:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, "a header block is too large, or in too many frames")
        if flags & frames.END_HEADERS:
            block, first_flags = bytes(self._block), self.block_of[1]
            self.block_of = None
            self._block.clear()
            self._on_block(first_flags, stream_id, block)

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        """Handle a complete header block. It is always decoded, because the decoder must follow the state of the peer's
        encoder.
        """
        if stream_id <= self._streams.last_id:
            self._on_trailers(flags, stream_id, self._decoder.fields(block))
            return
        self._streams.last_id = stream_id
        try:
            head, varying = self._decoder.request(block)
        except Malformed as error:
            raise StreamError(stream_id, Code.PROTOCOL_ERROR, str(error)) from error
        if flags >> 8:
            raise StreamError(stream_id, Code.PROTOCOL_ERROR, "it depends on itself")
        if not self._streams.accepts_more:
            self._streams.closed.add(stream_id, cut_off=True, window=self._limits.stream_window_bytes)
            raise StreamError(stream_id, Code.REFUSED_STREAM, "too many streams, or the server is stopping")
        stream = self._streams.open(stream_id, head.content_length)
        end = bool(flags & frames.END_STREAM)
        if end:
            self._received_end(stream)
        self._streams.handled(stream_id)
        self._events.append(Request(stream_id, head, varying, end))

    def _on_trailers(self, flags: int, stream_id: int, fields: list[tuple[bytes, bytes]]) -> None:
        stream = self._streams.find(stream_id)
        if stream is None:
            if self._streams.closed.was_cut_off(stream_id):
                self._budget.pay(COST_FRAME)
                return
            known = stream_id in self._streams.closed
            raise ProtocolError(
                Code.STREAM_CLOSED if known else Code.PROTOCOL_ERROR,
                f"a header block on stream {stream_id}, which was closed or skipped",
            )
        if not stream.may_receive:
            raise StreamError(stream_id, Code.STREAM_CLOSED, "a header block after its end")
        if not flags & frames.END_STREAM:
            raise StreamError(stream_id, Code.PROTOCOL_ERROR, "a second header block that does not end it")
        try:
            check_trailers(fields)
        except Malformed as error:
            raise StreamError(stream_id, Code.PROTOCOL_ERROR, str(error)) from error
        self._received_end(stream)
        self._events.append(Data(stream_id, b"", True))

    def _received_end(self, stream: Stream) -> None:
        if stream.content_length is not None and stream.content_length != stream.received:
            raise StreamError(stream.stream_id, Code.PROTOCOL_ERROR, "its data is not as long as content-length says")
        self._streams.received_end(stream)


def _without_padding(flags: int, buffer: bytes, begin: int, end: int) -> tuple[int, int]:
    if not flags & frames.PADDED:
        return begin, end
    if begin == end or buffer[begin] >= end - begin:
        raise ProtocolError(Code.PROTOCOL_ERROR, "more padding than frame")
    return begin + 1, end - buffer[begin]
