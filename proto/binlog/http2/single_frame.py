"""Single-frame requests: a cached header block, and all of the data in one frame. Most calls have this form.

They need no `Stream` object: until anything other than an answer concerns such a request, it is only an entry in a
table. A peer's frames are checked by the same rules as elsewhere. Frames of any other form are handled by the general
code; if their stream began here, a `Stream` is made for it.
"""

from __future__ import annotations

from binlog.http2 import frames
from binlog.http2.events import Event
from binlog.http2.headers import HeaderDecoder
from binlog.http2.limits import Budget, ConnectionLimits
from binlog.http2.receive_window import ReceiveWindow
from binlog.http2.streams import Streams

_HEADERS, _END_HEADERS, _END_STREAM = frames.HEADERS, frames.END_HEADERS, frames.END_STREAM


class SingleFrameRequests:
    """Receives the two frames of such requests. See `Streams.fresh` and `Streams.whole`."""

    def __init__(
        self,
        limits: ConnectionLimits,
        decoder: HeaderDecoder,
        streams: Streams,
        window: ReceiveWindow,
        budget: Budget,
        events: list[Event],
    ) -> None:
        self._block_bytes_max = limits.header_block_bytes_max
        self._window_bytes = limits.stream_window_bytes
        self._decoder = decoder
        self._streams = streams
        self._window = window
        self._budget = budget
        self._events = events

    def on_frame(self, kind: int, flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> bool:
        """Process a HEADERS or DATA frame of such a request. Return False, with no side effect, for any other frame."""
        streams = self._streams
        if kind == _HEADERS:
            if (
                flags != _END_HEADERS
                or stream_id <= streams.last_id
                or not stream_id & 1
                or end - begin > self._block_bytes_max
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
        if fresh is None or flags != _END_STREAM or size > window.left or size > self._window_bytes:
            return False
        del streams.fresh[stream_id]
        streams.whole[stream_id] = self._budget.now_s
        window.left -= size
        window.grant(size)
        self._events.append((stream_id, fresh[0], fresh[1], buffer[begin:end]))
        return True
