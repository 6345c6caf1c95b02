"""A server's HTTP/2 connection. See the package."""

from __future__ import annotations

from collections.abc import Sequence

from binlog.http2 import frames
from binlog.http2.frames import Code, ProtocolError, Setting
from binlog.http2.headers import HeaderDecoder
from binlog.http2.limits import EARNED_BY_DATA, EARNED_BY_STREAM, Budget, ConnectionLimits
from binlog.http2.receiving import FrameReader
from binlog.http2.streams import Event, Failed, Outgoing, ReceiveWindow, Request, Stream, Streams


class Connection:
    """A connection: feed bytes to `receive`, handle the returned events, call the methods that answer, and send the
    bytes of `take_output`.

    It waits for the preface, then for SETTINGS, is open, drains after `drain`, and is dead after a `Failed` event.
    Nothing that a peer does raises an exception. Calls for a stream that no longer exists do nothing.
    """

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        *,
        varying: bytes = b"",
        now_s: float = 0.0,
        single_frame: bool = False,
    ) -> None:
        """`varying`: see HeaderDecoder. `now_s`, here and below: the time of a monotonic clock.

        `single_frame`: deliver a single-frame request (all of its data in one frame) as a single event (`Whole`), when
        both have arrived or `open_fresh` is called.
        """
        limits = limits or ConnectionLimits()
        self._dead = False
        # The state that its parts share
        self._events = events = list[Event]()
        self._outgoing = outgoing = Outgoing(limits)
        self._budget = budget = Budget(limits, now_s)
        self._window = window = ReceiveWindow(limits.connection_window_bytes // 4, outgoing)
        self._streams = streams = Streams(limits, outgoing, window, budget, events)
        decoder = HeaderDecoder(limits, varying)
        # Calls that concern nothing but the streams; see there
        self.credit = streams.credit
        self.finished = streams.finished
        self.reset = streams.reset
        self._reader = FrameReader(limits, decoder, streams, window, outgoing, budget, events, single_frame)
        self._greet(limits)

    def _greet(self, limits: ConnectionLimits) -> None:
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
        self._window.grant(limits.connection_window_bytes - frames.WINDOW_DEFAULT)

    # Receiving

    def receive(self, data: bytes, now_s: float) -> list[Event]:
        """Process bytes from the peer, in pieces of any size. Return the events."""
        if self._dead:
            return []
        self._budget.now_s = now_s
        try:
            self._reader.read(data)
        except ProtocolError as error:
            self._fail(error.code, error.reason)
        events = self._events
        found = events[:]
        events.clear()
        return found

    def _fail(self, code: Code, reason: str) -> None:
        self._outgoing.write(frames.goaway(self._streams.last_id, code, reason))
        self._dead = True
        self._reader.clear()
        self._streams.fail()
        self._events.append(Failed(code, reason))

    def open_fresh(self) -> list[Request]:
        """Turn requests whose data has not arrived into general requests."""
        return [self._streams.open_fresh(stream_id) for stream_id in list(self._streams.fresh)]

    def generally(self, stream_id: int, size: int) -> None:
        """Turn a complete request with `size` bytes of data into a general one, whose data must be credited."""
        stream = self._streams.find(stream_id)
        if stream is not None:
            stream.uncredited = size
            self._window.credit -= size

    # Output

    def take_output(self, data_bytes_max: int) -> list[bytes | memoryview]:
        """Return the bytes to send: all frames but data, and about `data_bytes_max` bytes of data as windows allow."""
        outgoing = self._outgoing
        before = outgoing.data_frames
        for stream in outgoing.flush(data_bytes_max):
            if stream.last is not None:
                self._send_last(stream, data_ended=stream.last == b"")
        self._budget.earn(EARNED_BY_DATA * (outgoing.data_frames - before))
        return outgoing.take()

    @property
    def has_data_ready(self) -> bool:
        """Whether `take_output` would return data."""
        return self._outgoing.has_ready

    @property
    def is_urgent(self) -> bool:
        """Whether more than answers to pings is to be sent. Those may wait for the next answer to a call."""
        return self._outgoing.is_urgent or self._outgoing.has_ready

    def ping(self, payload: bytes) -> None:
        """Send a ping with eight bytes. The peer's answer is no event."""
        self._outgoing.write(frames.ping(payload, ack=False))

    def drain(self) -> None:
        """Accept no new streams. Open streams continue."""
        if not self._streams.draining:
            self._streams.draining = True
            self._outgoing.write(frames.goaway(self._streams.last_id, Code.NO_ERROR, "the server is stopping"))

    # Responses

    def send_head(self, stream_id: int, block: bytes, *, end: bool = False) -> None:
        """Send the first header block of the response."""
        stream = self._streams.sending(stream_id)
        if stream is not None:
            self._outgoing.write(frames.headers(stream_id, block, end=end))
            if end:
                self._streams.sent_end(stream)

    def send_data(self, stream_id: int, data: bytes | memoryview) -> None:
        """Queue data. `data` must not be changed until it is sent."""
        stream = self._streams.sending(stream_id)
        if stream is not None:
            self._outgoing.queue(stream, data)

    def send_end(self, stream_id: int, trailers: bytes = b"") -> None:
        """End the response after the queued data, with or without trailers."""
        stream = self._streams.sending(stream_id)
        if stream is not None:
            stream.last = trailers
            if not stream.waiting:
                self._send_last(stream, data_ended=False)

    def send_answer(self, stream_id: int, head: bytes, data: bytes, trailers: bytes) -> None:
        """Send a complete response, in one piece if windows allow it."""
        stream = self._streams.sending(stream_id)
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
        self._streams.sent_end(stream)

    def answer(self, stream_ids: Sequence[int], head: bytes, data: bytes, trailers: bytes) -> int:
        """Send the same whole response on each stream and mark it finished. Return how many could still be answered."""
        whole, outgoing = self._streams.whole, self._outgoing
        size = len(data)
        count = 0
        if size <= min(outgoing.frame_bytes_max, outgoing.initial_window):
            pack, begin, head_frame, between, after = frames.response_packer(head, data, trailers)
            closed = self._streams.closed.add
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
            if self.is_waiting(stream_id):
                self.send_answer(stream_id, head, data, trailers)
                count += 1
            self.finished(stream_id)
        return count

    def is_waiting(self, stream_id: int) -> bool:
        """Return whether something can be sent on a stream."""
        return self._streams.sending(stream_id) is not None

    def waiting_bytes(self, stream_id: int) -> int:
        """Return the number of bytes of a stream that are queued and not yet sent."""
        stream = self._streams.general.get(stream_id)  # streams in other forms have nothing queued
        return stream.waiting_bytes if stream is not None else 0

    def _send_last(self, stream: Stream, *, data_ended: bool) -> None:
        if stream.last:
            self._outgoing.write(frames.headers(stream.stream_id, stream.last, end=True))
        elif not data_ended:
            self._outgoing.write(frames.data_header(stream.stream_id, 0, end=True))
        self._streams.sent_end(stream)
