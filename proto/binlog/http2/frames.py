"""Frame types, and encoders for the frames that a server sends (RFC 9113, section 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import lru_cache
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_BYTES = 9  # size of a frame's header
FRAME = Struct(">IBI")  # length in 24 bits and type in 8; flags; stream
WORD = Struct(">I")
SETTING = Struct(">HI")
WINDOW_MAX = (1 << 31) - 1
STREAM_MAX = (1 << 31) - 1
FRAME_SIZE_MIN, FRAME_SIZE_MAX = 1 << 14, (1 << 24) - 1  # allowed values of SETTINGS_MAX_FRAME_SIZE
WINDOW_DEFAULT = (1 << 16) - 1
_BEFORE_STREAM = 5  # bytes of a frame's header in front of the stream id

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x01
END_HEADERS = 0x04
PADDED = 0x08
PRIORITIZED = 0x20


class Setting(IntEnum):
    """Parameters of a SETTINGS frame."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Code(IntEnum):
    """Error codes of RST_STREAM and GOAWAY."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11


class ProtocolError(Exception):
    """An error that ends the connection."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code
        self.reason = reason


class StreamError(Exception):
    """An error that ends a stream. The connection continues."""

    def __init__(self, stream_id: int, code: Code, reason: str) -> None:
        super().__init__(f"stream {stream_id}: {code.name}: {reason}")
        self.stream_id = stream_id
        self.code = code
        self.reason = reason


def frame_header(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    return FRAME.pack(length << 8 | kind, flags, stream_id)


def settings(values: Mapping[Setting, int]) -> bytes:
    body = b"".join(SETTING.pack(name, value) for name, value in values.items())
    return frame_header(len(body), SETTINGS, 0, 0) + body


SETTINGS_ACK = frame_header(0, SETTINGS, ACK, 0)


def ping(payload: bytes, *, ack: bool) -> bytes:
    """Encode a PING. `payload`: eight bytes."""
    return frame_header(8, PING, ACK if ack else 0, 0) + payload


def rst_stream(stream_id: int, code: int) -> bytes:
    return frame_header(4, RST_STREAM, 0, stream_id) + WORD.pack(code)


def window_update(stream_id: int, increment: int) -> bytes:
    return frame_header(4, WINDOW_UPDATE, 0, stream_id) + WORD.pack(increment)


def goaway(last_stream_id: int, code: int, reason: str) -> bytes:
    body = WORD.pack(last_stream_id) + WORD.pack(code) + reason.encode()[:256]
    return frame_header(len(body), GOAWAY, 0, 0) + body


def headers(stream_id: int, block: bytes, *, end: bool) -> bytes:
    """Encode a header block in a single frame. It must fit the smallest frame size, as ours do."""
    assert len(block) <= FRAME_SIZE_MIN, f"a header block of {len(block)} bytes needs a CONTINUATION"
    return frame_header(len(block), HEADERS, END_HEADERS | (END_STREAM if end else 0), stream_id) + block


def data_header(stream_id: int, size: int, *, end: bool) -> bytes:
    """Encode the frame header for `size` bytes of data."""
    return frame_header(size, DATA, END_STREAM if end else 0, stream_id)


@lru_cache(maxsize=64)
def response_packer(
    head: bytes, data: bytes, trailers: bytes
) -> tuple[Callable[..., bytes], bytes, bytes, bytes, bytes]:
    """Return what packs a whole response, and its arguments around the stream id, which it takes three times."""
    first, second, third = (
        frame_header(len(head), HEADERS, END_HEADERS, 0)[:_BEFORE_STREAM],
        frame_header(len(data), DATA, 0, 0)[:_BEFORE_STREAM],
        frame_header(len(trailers), HEADERS, END_HEADERS | END_STREAM, 0)[:_BEFORE_STREAM],
    )
    sizes = (len(head) + _BEFORE_STREAM, len(data) + _BEFORE_STREAM, len(trailers))
    layout = Struct(">5sI{}sI{}sI{}s".format(*sizes))
    return layout.pack, first, head + second, data + third, trailers
