"""Divides a peer's bytes into frames, and gives each to its handler."""

from __future__ import annotations

from collections.abc import Callable

from binlog.http2 import frames
from binlog.http2.control import ControlFrames
from binlog.http2.frames import FRAME, FRAME_BYTES, PREFACE, STREAM_MAX, Code, ProtocolError, StreamError
from binlog.http2.limits import COST_FRAME, Budget
from binlog.http2.requests import RequestFrames
from binlog.http2.streams import Streams

_Handler = Callable[[int, int, bytes, int, int], None]  # flags, stream, buffer, begin and end of the payload


class FrameReader:
    """Waits for the preface, then for SETTINGS, then reads frames of any kind. `single_frame`: whether requests
    of two frames are read in the quick way.

    `read` raises ProtocolError if the connection must end.
    """

    def __init__(
        self, requests: RequestFrames, control: ControlFrames, streams: Streams, budget: Budget, *, single_frame: bool
    ) -> None:
        self._requests = requests
        self._control = control
        self._single_frame = requests.single_frame if single_frame else None
        self._streams = streams
        self._budget = budget
        self._handlers: dict[int, _Handler] = {
            frames.DATA: requests.on_data,
            frames.HEADERS: requests.on_headers,
            frames.PRIORITY: control.on_priority,
            frames.RST_STREAM: control.on_rst_stream,
            frames.SETTINGS: control.on_settings,
            frames.PUSH_PROMISE: control.on_push_promise,
            frames.PING: control.on_ping,
            frames.GOAWAY: control.on_goaway,
            frames.WINDOW_UPDATE: control.on_window_update,
            frames.CONTINUATION: requests.on_continuation,
        }
        self._preface = len(PREFACE)  # bytes of it that have not arrived
        self._rest = b""  # of a frame that is not complete

    def read(self, data: bytes) -> None:
        """Handle the frames that are complete with `data`."""
        buffer = self._rest + data if self._rest else data
        at = 0
        if self._preface:
            at = min(self._preface, len(buffer))
            begin = len(PREFACE) - self._preface
            if buffer[:at] != PREFACE[begin : begin + at]:
                raise ProtocolError(Code.PROTOCOL_ERROR, "this is no HTTP/2 connection preface")
            self._preface -= at
        size = len(buffer)
        unpack, requests, single_frame = FRAME.unpack_from, self._requests, self._single_frame
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
                and requests.block_of is None
                and single_frame(kind, flags, stream_id, buffer, begin, end)
            ):
                continue
            self._frame(kind, flags, stream_id, buffer, begin, end)
        self._rest = buffer[at:] if at < size else b""

    def clear(self) -> None:
        """Forget what is not complete. Nothing more will be read."""
        self._rest = b""
        self._requests.clear()

    def _frame(self, kind: int, flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
        if not self._control.settled and (kind != frames.SETTINGS or flags & frames.ACK):
            raise ProtocolError(Code.PROTOCOL_ERROR, "the first frame is no SETTINGS")
        block_of = self._requests.block_of
        if block_of is not None and (kind != frames.CONTINUATION or stream_id != block_of[0]):
            raise ProtocolError(Code.PROTOCOL_ERROR, "a header block is not continued")
        handler = self._handlers.get(kind)
        if handler is None:
            self._budget.pay(COST_FRAME)  # a frame of an extension, which must be ignored
            return
        try:
            handler(flags, stream_id, buffer, begin, end)
        except StreamError as error:
            self._budget.pay(COST_FRAME)
            self._streams.cut_off(error.stream_id, error.code, error.reason)
