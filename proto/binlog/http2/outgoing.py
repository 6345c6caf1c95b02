"""What goes out: frames in order, data as far as windows and the transport let it, streams in turn."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from binlog.http2 import frames
from binlog.http2.frames import FRAME_SIZE_MIN, WINDOW_DEFAULT, WINDOW_MAX, Code, ProtocolError, StreamError
from binlog.http2.limits import Limits
from binlog.http2.stream import Stream


class Outgoing:
    """Control frames and header blocks are there at once; data waits on its stream until `flush` lets it out."""

    def __init__(self, limits: Limits) -> None:
        self._frame_limit = limits.data_frame_bytes_max
        self._pieces: list[bytes | memoryview] = []
        self._ready: OrderedDict[int, Stream] = OrderedDict()
        self._blocked: dict[int, Stream] = {}  # by their own window
        self.window = WINDOW_DEFAULT  # of the connection
        self.initial_window = WINDOW_DEFAULT  # of a stream, as the peer said last
        self.frame_bytes_max = FRAME_SIZE_MIN
        self.data_frames = 0  # sent so far
        self.is_urgent = False  # something waits to be taken that should not wait for more
        self._sent_min = 0  # what `sent` of no stream is below

    def write(self, frame: bytes, *, urgent: bool = True) -> None:
        self._pieces.append(frame)
        if urgent:
            self.is_urgent = True

    def take(self) -> list[bytes | memoryview]:
        """What is to be sent now, once."""
        pieces, self._pieces = self._pieces, []
        self.is_urgent = False
        return pieces

    # What the peer allows

    def frame_size(self, size: int) -> None:
        self.frame_bytes_max = min(size, self._frame_limit)

    def set_initial_window(self, size: int, streams: Iterable[Stream]) -> None:
        """Of all streams. ProtocolError where that makes the window of one of them more than can be."""
        if size - self._sent_min > WINDOW_MAX:
            self._sent_min = min((stream.sent for stream in streams), default=0)
            if size - self._sent_min > WINDOW_MAX:
                raise ProtocolError(Code.FLOW_CONTROL_ERROR, "SETTINGS make a stream's window above 2^31-1")
        if size > self.initial_window:
            self._ready.update(self._blocked)
            self._blocked.clear()
        self.initial_window = size

    def grow(self, increment: int) -> None:
        """The connection's window. ProtocolError where that is more than can be."""
        self.window += increment
        if self.window > WINDOW_MAX:
            raise ProtocolError(Code.FLOW_CONTROL_ERROR, "the connection's window is above 2^31-1")

    def grow_stream(self, stream: Stream, increment: int) -> None:
        """A stream's. StreamError likewise."""
        stream.sent -= increment
        self._sent_min = min(self._sent_min, stream.sent)
        if self.initial_window - stream.sent > WINDOW_MAX:
            raise StreamError(stream.stream_id, Code.FLOW_CONTROL_ERROR, "its window is above 2^31-1")
        if self._blocked.pop(stream.stream_id, None) is not None:
            self._ready[stream.stream_id] = stream

    # Data

    def fits_now(self, stream: Stream, size: int) -> bool:
        """Whether so much data can go out in one frame without waiting behind anything."""
        return (
            not stream.waiting
            and size <= self.frame_bytes_max
            and size <= self.window
            and size <= self.initial_window - stream.sent
        )

    def spend(self, stream: Stream, size: int) -> None:
        """So much data goes out, in one frame."""
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
        """Nothing of a stream is sent any more."""
        self._ready.pop(stream.stream_id, None)
        self._blocked.pop(stream.stream_id, None)
        stream.waiting.clear()
        stream.waiting_bytes = 0

    @property
    def has_ready(self) -> bool:
        return bool(self._ready) and self.window > 0

    def flush(self, bytes_max: int) -> Iterator[Stream]:
        """Let data out, about so much of it, a frame of each stream in turn; streams that have sent all they had."""
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
