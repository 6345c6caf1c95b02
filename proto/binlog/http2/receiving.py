"""Divides a peer's bytes into frames, and handles them.

Most calls are single-frame requests: a cached header block, and all of the data in one frame. They need no `Stream`
object: until anything other than an answer concerns such a request, it is only an entry in a table. A peer's frames are
checked by the same rules as elsewhere. Frames of any other form are handled by the general code; if their stream began
as such a request, a `Stream` is made for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from binlog.http2 import frames
from binlog.http2.frames import (
    FRAME,
    FRAME_BYTES,
    PREFACE,
    STREAM_MAX,
    WINDOW_MAX,
    WORD,
    Code,
    ProtocolError,
    Setting,
    StreamError,
)
from binlog.http2.headers import HeaderDecoder, Malformed, check_trailers
from binlog.http2.limits import COST_FRAME, COST_RAPID_RESET, RAPID_S, Budget, ConnectionLimits
from binlog.http2.streams import Data, Event, Outgoing, ReceiveWindow, Request, Reset, Stream, Streams

_HEADERS, _END_HEADERS, _END_STREAM = frames.HEADERS, frames.END_HEADERS, frames.END_STREAM


@dataclass(slots=True, eq=False)
class FrameReader:
    """Waits for the preface, then for SETTINGS, then reads frames of any kind. `reads_single_frames`: whether requests
    of two frames are read in the quick way.

    Each handler gets the flags, the stream and the place of the payload. All frames without data are paid for from the
    budget.
    """

    _limits: ConnectionLimits
    _decoder: HeaderDecoder
    _streams: Streams
    _window: ReceiveWindow
    _outgoing: Outgoing
    _budget: Budget
    _events: list[Event]
    _reads_single_frames: bool
    _preface: int = len(PREFACE)  # bytes of it that have not arrived
    _rest: bytes = b""  # of a frame that is not complete
    _settled: bool = False  # the peer's first SETTINGS have arrived
    # stream and flags of a header block that is not complete: until it is, no other frame may come between
    _block_of: tuple[int, int] | None = None
    _block: bytearray = field(default_factory=bytearray)
    _block_frames: int = 0

    def read(self, data: bytes) -> None:
        """Handle the frames that are complete with `data`. Raises ProtocolError if the connection must end."""
        buffer = self._rest + data if self._rest else data
        at = 0
        if self._preface:
            at = min(self._preface, len(buffer))
            begin = len(PREFACE) - self._preface
            if buffer[:at] != PREFACE[begin : begin + at]:
                raise ProtocolError(Code.PROTOCOL_ERROR, "this is no HTTP/2 connection preface")
            self._preface -= at
        size = len(buffer)
        unpack, single_frame = FRAME.unpack_from, self._single_frame if self._reads_single_frames else None
        while size - at >= FRAME_BYTES:
            word, flags, stream_id = unpack(buffer, at)
            length, kind = word >> 8, word & 0xFF
            if length > frames.FRAME_SIZE_MIN:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            begin = at + FRAME_BYTES
            end = begin + length
            if end > size:
                break
            at = end
            stream_id &= STREAM_MAX
            if (
                kind <= frames.HEADERS
                and single_frame is not None
                and self._block_of is None
                and single_frame(kind, flags, stream_id, buffer, begin, end)
            ):
                continue
            self._frame(kind, flags, stream_id, buffer, begin, end)
        self._rest = buffer[at:] if at < size else b""

    def clear(self) -> None:
        """Forget what is not complete. Nothing more will be read."""
        self._rest = b""
        self._block.clear()

    def _frame(self, kind: int, flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
        if not self._settled and (kind != frames.SETTINGS or flags & frames.ACK):
            raise ProtocolError(Code.PROTOCOL_ERROR, "the first frame is no SETTINGS")
        block_of = self._block_of
        if block_of is not None and (kind != frames.CONTINUATION or stream_id != block_of[0]):
            raise ProtocolError(Code.PROTOCOL_ERROR, "a header block is not continued")
        handler = _HANDLERS.get(kind)
        if handler is None:
            self._budget.pay(COST_FRAME)  # a frame of an extension, which must be ignored
            return
        try:
            handler(self, flags, stream_id, buffer, begin, end)
        except StreamError as error:
            self._budget.pay(COST_FRAME)
            self._streams.cut_off(error.stream_id, error.code, error.reason)

    # Requests

    def _single_frame(self, kind: int, flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> bool:
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

    def _on_data(self, flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
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

    def _on_headers(self, flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
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
        self._block_of = (stream_id, flags)
        self._block_frames = 0
        self._block += buffer[begin:end]

    def _on_continuation(self, flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
        if self._block_of is None:
            raise ProtocolError(Code.PROTOCOL_ERROR, "CONTINUATION without a header block")
        self._block += buffer[begin:end]
        self._block_frames += 1
        limits = self._limits
        if len(self._block) > limits.header_block_bytes_max or self._block_frames > limits.continuations_max:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, "a header block is too large, or in too many frames")
        if flags & frames.END_HEADERS:
            block, first_flags = bytes(self._block), self._block_of[1]
            self._block_of = None
            self._block.clear()
            self._on_block(first_flags, stream_id, block)

    def _on_block(self, flags: int, stream_id: int, block: bytes) -> None:
        """Handle a whole header block. It is always decoded: the decoder must follow the peer's encoder."""
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

    # Frames without data and header blocks

    def _on_priority(self, _flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
        self._budget.pay(COST_FRAME)
        if not stream_id:
            raise ProtocolError(Code.PROTOCOL_ERROR, "PRIORITY without a stream")
        if end - begin != 5:
            raise StreamError(stream_id, Code.FRAME_SIZE_ERROR, "PRIORITY has five bytes")
        if WORD.unpack_from(buffer, begin)[0] & STREAM_MAX == stream_id:
            raise StreamError(stream_id, Code.PROTOCOL_ERROR, "it depends on itself")

    def _on_rst_stream(self, _flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
        if end - begin != 4:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, "RST_STREAM has four bytes")
        self._streams.not_idle(stream_id, "RST_STREAM")
        stream = self._streams.find(stream_id)
        if stream is None:
            self._budget.pay(COST_FRAME)
            return
        rapid = self._budget.now_s - stream.opened_s < RAPID_S
        self._streams.drop(stream, cut_off=False)
        self._events.append(Reset(stream_id, WORD.unpack_from(buffer, begin)[0], "the peer cancelled it"))
        self._budget.pay(COST_RAPID_RESET if rapid else COST_FRAME)

    def _on_settings(self, flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
        if stream_id:
            raise ProtocolError(Code.PROTOCOL_ERROR, "SETTINGS of a stream")
        if flags & frames.ACK:
            if begin != end:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS has no payload")
            self._budget.pay(COST_FRAME)
            self._decoder.acknowledged = True
            return
        if (end - begin) % frames.SETTING.size:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, "SETTINGS come in six bytes each")
        values = {}
        for name, value in frames.SETTING.iter_unpack(memoryview(buffer)[begin:end]):
            self._budget.pay(COST_FRAME)
            _check_setting(name, value)
            values[name] = value
        self._budget.pay(COST_FRAME)
        if Setting.INITIAL_WINDOW_SIZE in values:
            self._outgoing.set_initial_window(values[Setting.INITIAL_WINDOW_SIZE], self._streams.general.values())
        if Setting.MAX_FRAME_SIZE in values:
            self._outgoing.frame_size(values[Setting.MAX_FRAME_SIZE])
        self._settled = True
        self._outgoing.write(frames.SETTINGS_ACK)

    def _on_push_promise(self, _flags: int, _stream_id: int, _buffer: bytes, _begin: int, _end: int) -> None:
        raise ProtocolError(Code.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _on_ping(self, flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
        if stream_id:
            raise ProtocolError(Code.PROTOCOL_ERROR, "PING of a stream")
        if end - begin != 8:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, "PING has eight bytes")
        self._budget.pay(COST_FRAME)
        if not flags & frames.ACK:
            self._outgoing.write(frames.ping(buffer[begin:end], ack=True), urgent=False)

    def _on_goaway(self, _flags: int, stream_id: int, _buffer: bytes, begin: int, end: int) -> None:
        """Handle GOAWAY: the peer accepts no more streams from us. It only matters for servers that push."""
        self._budget.pay(COST_FRAME)
        if stream_id:
            raise ProtocolError(Code.PROTOCOL_ERROR, "GOAWAY of a stream")
        if end - begin < 8:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, "GOAWAY has eight bytes and more")

    def _on_window_update(self, _flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
        if end - begin != 4:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, "WINDOW_UPDATE has four bytes")
        self._budget.pay(COST_FRAME)
        increment = WORD.unpack_from(buffer, begin)[0] & WINDOW_MAX
        if stream_id == 0:
            if not increment:
                raise ProtocolError(Code.PROTOCOL_ERROR, "a WINDOW_UPDATE of nothing")
            self._outgoing.grow(increment)
            return
        self._streams.not_idle(stream_id, "WINDOW_UPDATE")
        if not increment:
            raise StreamError(stream_id, Code.PROTOCOL_ERROR, "a WINDOW_UPDATE of nothing")
        stream = self._streams.find(stream_id)
        if stream is not None:
            self._outgoing.grow_stream(stream, increment)


_HANDLERS: dict[int, Callable[[FrameReader, int, int, bytes, int, int], None]] = {
    frames.DATA: FrameReader._on_data,
    frames.HEADERS: FrameReader._on_headers,
    frames.PRIORITY: FrameReader._on_priority,
    frames.RST_STREAM: FrameReader._on_rst_stream,
    frames.SETTINGS: FrameReader._on_settings,
    frames.PUSH_PROMISE: FrameReader._on_push_promise,
    frames.PING: FrameReader._on_ping,
    frames.GOAWAY: FrameReader._on_goaway,
    frames.WINDOW_UPDATE: FrameReader._on_window_update,
    frames.CONTINUATION: FrameReader._on_continuation,
}


def _check_setting(name: int, value: int) -> None:
    if name == Setting.ENABLE_PUSH and value > 1:
        raise ProtocolError(Code.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is {value}")
    if name == Setting.INITIAL_WINDOW_SIZE and value > WINDOW_MAX:
        raise ProtocolError(Code.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE is {value}")
    if name == Setting.MAX_FRAME_SIZE and not frames.FRAME_SIZE_MIN <= value <= frames.FRAME_SIZE_MAX:
        raise ProtocolError(Code.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE is {value}")


def _without_padding(flags: int, buffer: bytes, begin: int, end: int) -> tuple[int, int]:
    if not flags & frames.PADDED:
        return begin, end
    if begin == end or buffer[begin] >= end - begin:
        raise ProtocolError(Code.PROTOCOL_ERROR, "more padding than frame")
    return begin + 1, end - buffer[begin]
