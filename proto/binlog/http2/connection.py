"""A server's HTTP/2 connection. See the package."""

from __future__ import annotations

from collections.abc import Callable

from binlog.http2 import frames
from binlog.http2.control import ControlFrames
from binlog.http2.events import Data, Event, Failed, Request
from binlog.http2.frames import FRAME, FRAME_BYTES, PREFACE, STREAM_MAX, Code, ProtocolError, Setting, StreamError
from binlog.http2.headers import Malformed, check_trailers
from binlog.http2.limits import COST_FRAME, Limits
from binlog.http2.stream import State, Step, Stream

_CLOSED = State.CLOSED


class Connection(ControlFrames):
    """A connection: feed bytes to `receive`, handle the returned events, call the methods that answer, and send the
    bytes of `take_output`.

    It waits for the preface, then for SETTINGS, is open, drains after `drain`, and is dead after a `Failed` event.
    Nothing that a peer does raises an exception.
    """

    def __init__(
        self, limits: Limits | None = None, *, varying: bytes = b"", now_s: float = 0.0, brief: bool = False
    ) -> None:
        """`varying`: see HeaderDecoder. `now_s`, here and below: the time of a monotonic clock.

        `brief`: deliver a request of two simple frames as a single event (`Whole`), when both have arrived or
        `open_fresh` is called.
        """
        super().__init__(limits or Limits(), varying, now_s)
        self._is_brief = brief
        self._rest = b""
        self._preface = len(PREFACE)  # bytes of it that have not arrived
        self._block = bytearray()
        self._block_of: tuple[int, int] | None = None  # stream and flags of a header block that is not complete
        self._block_frames = 0
        self._greet()

    def _greet(self) -> None:
        limits = self._limits
        self._outgoing.write(
            frames.settings(
                {
                    Setting.HEADER_TABLE_SIZE: 0,
                    Setting.MAX_CONCURRENT_STREAMS: limits.streams_max,
                    Setting.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
                    Setting.MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
                }
            )
        )
        self._grant(limits.connection_window_bytes - frames.WINDOW_DEFAULT)

    def receive(self, data: bytes, now_s: float) -> list[Event]:
        """Process bytes from the peer, in pieces of any size. Return the events."""
        if self._dead:
            return []
        self._now_s = now_s
        try:
            self._parse(self._rest + data if self._rest else data)
        except ProtocolError as error:
            self._fail(error.code, error.reason)
        events, self._events = self._events, []
        return events

    def _fail(self, code: Code, reason: str) -> None:
        self._outgoing.write(frames.goaway(self._last_id, code, reason))
        self._dead = True
        self._rest = b""
        self._block.clear()
        for stream in list(self._streams.values()):
            self._outgoing.forget(stream)
        self._streams.clear()
        self._fresh.clear()
        self._under_way.update(self._whole)  # handlers work for them
        self._whole.clear()
        self._events.append(Failed(code, reason))

    def _parse(self, buffer: bytes) -> None:
        at = 0
        if self._preface:
            at = min(self._preface, len(buffer))
            begin = len(PREFACE) - self._preface
            if buffer[:at] != PREFACE[begin : begin + at]:
                raise ProtocolError(Code.PROTOCOL_ERROR, "this is no HTTP/2 connection preface")
            self._preface -= at
        size = len(buffer)
        unpack = FRAME.unpack_from
        brief, is_brief = self._brief, self._is_brief
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
                and is_brief
                and self._block_of is None
                and brief(kind, flags, stream_id, buffer, begin, end)
            ):
                continue
            self._frame(kind, flags, stream_id, buffer, begin, end)
        self._rest = buffer[at:] if at < size else b""

    def _frame(self, kind: int, flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
        if not self._settled and (kind != frames.SETTINGS or flags & frames.ACK):
            raise ProtocolError(Code.PROTOCOL_ERROR, "the first frame is no SETTINGS")
        if self._block_of is not None and (kind != frames.CONTINUATION or stream_id != self._block_of[0]):
            raise ProtocolError(Code.PROTOCOL_ERROR, "a header block is not continued")
        handler = _HANDLERS.get(kind)
        if handler is None:
            self._pay(COST_FRAME)  # a frame of an extension, which must be ignored
            return
        try:
            handler(self, flags, stream_id, buffer, begin, end)
        except StreamError as error:
            self._pay(COST_FRAME)
            self._cut_off(error.stream_id, error.code, error.reason)

    def _on_data(self, flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
        size = end - begin
        self._window -= size
        if self._window < 0:
            raise ProtocolError(Code.FLOW_CONTROL_ERROR, "more data than the connection's window allows")
        stream = self._find(stream_id)
        if stream is None or not stream.may_receive:
            self._grant(size)
            self._refuse_late_data(stream_id, stream, size)
            return
        stream.receive_window -= size
        stream.uncredited += size
        if stream.receive_window < 0:
            raise StreamError(stream_id, Code.FLOW_CONTROL_ERROR, "more data than its window allows")
        begin, end = _without_padding(flags, buffer, begin, end)
        if size != end - begin:
            self.credit(stream_id, size - (end - begin))
        if begin == end and not flags & frames.END_STREAM:
            self._pay(COST_FRAME)
        stream.received += end - begin
        if flags & frames.END_STREAM:
            self._received_end(stream)
        self._events.append(Data(stream_id, buffer[begin:end], bool(flags & frames.END_STREAM)))

    def _refuse_late_data(self, stream_id: int, stream: Stream | None, size: int) -> None:
        """Handle data for a stream that expects none."""
        if stream_id == 0 or stream_id > self._last_id or not stream_id & 1:
            raise ProtocolError(Code.PROTOCOL_ERROR, f"data of stream {stream_id}, which is idle")
        if self._closed.was_cut_off(stream_id):
            if not self._closed.expected(stream_id, size):
                self._pay(COST_FRAME)
            return
        self._pay(COST_FRAME)
        if stream is None:
            self._outgoing.write(frames.rst_stream(stream_id, Code.STREAM_CLOSED))
            self._closed.add(stream_id, cut_off=True)
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
        """Handle a complete header block. It is always decoded, because the decoder must follow the state of the peer's
        encoder.
        """
        if stream_id <= self._last_id:
            self._on_trailers(flags, stream_id, self._decoder.fields(block))
            return
        self._last_id = stream_id
        try:
            head, varying = self._decoder.request(block)
        except Malformed as error:
            raise StreamError(stream_id, Code.PROTOCOL_ERROR, str(error)) from error
        if flags >> 8:
            raise StreamError(stream_id, Code.PROTOCOL_ERROR, "it depends on itself")
        if self._draining or self._open_count >= self._limits.streams_max:
            self._closed.add(stream_id, cut_off=True, window=self._limits.stream_window_bytes)
            raise StreamError(stream_id, Code.REFUSED_STREAM, "too many streams, or the server is stopping")
        stream = Stream(stream_id, self._now_s, self._limits.stream_window_bytes, head.content_length)
        self._streams[stream_id] = stream
        end = bool(flags & frames.END_STREAM)
        if end:
            self._received_end(stream)
        self._under_way.add(stream_id)
        self._events.append(Request(stream_id, head, varying, end))

    def _on_trailers(self, flags: int, stream_id: int, fields: list[tuple[bytes, bytes]]) -> None:
        stream = self._find(stream_id)
        if stream is None:
            if self._closed.was_cut_off(stream_id):
                self._pay(COST_FRAME)
                return
            known = stream_id in self._closed
            raise ProtocolError(
                Code.STREAM_CLOSED if known else Code.PROTOCOL_ERROR,
                f"a header block on stream {stream_id}, which was closed or passed over",
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
        if stream.step(Step.RECEIVED_END) is _CLOSED:
            self._drop(stream, cut_off=False)


def _without_padding(flags: int, buffer: bytes, begin: int, end: int) -> tuple[int, int]:
    if not flags & frames.PADDED:
        return begin, end
    if begin == end or buffer[begin] >= end - begin:
        raise ProtocolError(Code.PROTOCOL_ERROR, "more padding than frame")
    return begin + 1, end - buffer[begin]


_Handler = Callable[[Connection, int, int, bytes, int, int], None]
_HANDLERS: dict[int, _Handler] = {
    frames.DATA: Connection._on_data,
    frames.HEADERS: Connection._on_headers,
    frames.PRIORITY: Connection._on_priority,
    frames.RST_STREAM: Connection._on_rst_stream,
    frames.SETTINGS: Connection._on_settings,
    frames.PUSH_PROMISE: Connection._on_push_promise,
    frames.PING: Connection._on_ping,
    frames.GOAWAY: Connection._on_goaway,
    frames.WINDOW_UPDATE: Connection._on_window_update,
    frames.CONTINUATION: Connection._on_continuation,
}
