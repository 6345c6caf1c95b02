"""Output of a connection: frames in order, data as far as the windows and the transport allow, streams in turn."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from binlog.http2 import frames
from binlog.http2.frames import FRAME_SIZE_MIN, WINDOW_DEFAULT, WINDOW_MAX, Code, ProtocolError, StreamError
from binlog.http2.limits import ConnectionLimits
from binlog.http2.stream import Stream


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
        """Set the initial window of all streams. Raises ProtocolError if the window of a stream would exceed the
        maximum.
        """
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
        """Output about `bytes_max` bytes of data, a frame of each stream in turn. Yield streams whose queue became
        empty.
        """
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
