"""Requests of two frames: a cached header block, and all of the data. Most calls have this form.

They need no `Stream` object: until anything other than an answer concerns such a request, it is only an entry in a
table. A peer's frames are checked by the same rules as elsewhere. Frames of any other form are handled by the general
code; if their stream began here, a `Stream` is made for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct

from binlog.http2 import frames
from binlog.http2.events import Request
from binlog.http2.limits import EARNED_BY_DATA, EARNED_BY_STREAM
from binlog.http2.stream import State, Stream
from binlog.http2.streams import Streams

_HEADERS, _END_HEADERS, _END_STREAM = frames.HEADERS, frames.END_HEADERS, frames.END_STREAM
_BEFORE_STREAM = 5  # bytes of a frame's header in front of the stream id


class BriefRequests(Streams):
    """`_fresh`: streams of which only the header block has arrived. `_whole`: complete requests that are not answered
    yet.
    """

    def _brief(self, kind: int, flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> bool:
        """Process a HEADERS or DATA frame of such a request. Return False, with no side effect, for any other frame."""
        if kind == _HEADERS:
            if (
                flags != _END_HEADERS
                or stream_id <= self._last_id
                or not stream_id & 1
                or not self._settled
                or self._draining
                or end - begin > self._limits.header_block_bytes_max
                or self._open_count >= self._limits.streams_max
            ):
                return False
            found = self._decoder.remembered(buffer[begin:end])
            if found is None or found[0].content_length is not None:
                return False
            self._last_id = stream_id
            self._fresh[stream_id] = found
            return True
        fresh = self._fresh.get(stream_id)
        size = end - begin
        if fresh is None or flags != _END_STREAM or size > self._window or size > self._limits.stream_window_bytes:
            return False
        del self._fresh[stream_id]
        self._whole[stream_id] = self._now_s
        self._window -= size
        self._grant(size)
        self._events.append((stream_id, fresh[0], fresh[1], buffer[begin:end]))
        return True

    def open_fresh(self) -> list[Request]:
        """Turn requests whose data has not arrived into general requests."""
        return [self._open(stream_id) for stream_id in list(self._fresh)]

    def _open(self, stream_id: int) -> Request:
        head, varying = self._fresh.pop(stream_id)
        self._streams[stream_id] = Stream(stream_id, self._now_s, self._limits.stream_window_bytes, None)
        self._under_way.add(stream_id)
        return Request(stream_id, head, varying, False)

    def _find(self, stream_id: int) -> Stream | None:
        """Return a stream, and make a `Stream` object for it if there is none yet."""
        if stream_id in self._whole:
            opened_s = self._whole.pop(stream_id)
            stream = Stream(stream_id, opened_s, self._limits.stream_window_bytes, None, State.HALF_CLOSED_REMOTE)
            self._streams[stream_id] = stream
            self._under_way.add(stream_id)
        elif stream_id in self._fresh:
            self._events.append(self._open(stream_id))
        return self._streams.get(stream_id)

    def generally(self, stream_id: int, size: int) -> None:
        """Turn a complete request with `size` bytes of data into a general one, whose data must be credited."""
        stream = self._find(stream_id)
        if stream is not None:
            stream.uncredited = size
            self._credit -= size

    def is_waiting(self, stream_id: int) -> bool:
        """Return whether something can be sent on a stream."""
        return self._sending(stream_id) is not None

    def answer(self, stream_ids: Sequence[int], head: bytes, data: bytes, trailers: bytes) -> int:
        """Send the same complete response on each stream, and mark each as finished. Return how many could still be
        answered.
        """
        whole, outgoing = self._whole, self._outgoing
        size = len(data)
        count = 0
        if not self._dead and size <= min(outgoing.frame_bytes_max, outgoing.initial_window):
            pack, begin, head_frame, between, after = _packer(head, data, trailers)
            closed = self._closed.add
            responses: list[bytes] = []
            rest: list[int] = []
            for stream_id in stream_ids:
                if outgoing.window >= size and whole.pop(stream_id, None) is not None:
                    outgoing.window -= size
                    responses.append(pack(begin, stream_id, head_frame, stream_id, between, stream_id, after))
                    closed(stream_id, cut_off=False)
                else:
                    rest.append(stream_id)
            count = len(responses)
            if responses:
                outgoing.write(b"".join(responses))
                outgoing.data_frames += count
                self._budget.earn((EARNED_BY_STREAM + EARNED_BY_DATA) * count)
            stream_ids = rest
        for stream_id in stream_ids:
            if self._sending(stream_id) is not None:
                self.send_answer(stream_id, head, data, trailers)
                count += 1
            self.finished(stream_id)
        return count


@lru_cache(maxsize=64)
def _packer(head: bytes, data: bytes, trailers: bytes) -> tuple[Callable[..., bytes], bytes, bytes, bytes, bytes]:
    """Return a function that packs the frames of a response, and its constant arguments around the stream id."""
    first, second, third = (
        frames.frame_header(len(head), frames.HEADERS, frames.END_HEADERS, 0)[:_BEFORE_STREAM],
        frames.frame_header(len(data), frames.DATA, 0, 0)[:_BEFORE_STREAM],
        frames.frame_header(len(trailers), frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 0)[:_BEFORE_STREAM],
    )
    sizes = (len(head) + _BEFORE_STREAM, len(data) + _BEFORE_STREAM, len(trailers))
    layout = Struct(">5sI{}sI{}sI{}s".format(*sizes))
    return layout.pack, first, head + second, data + third, trailers
