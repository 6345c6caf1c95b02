"""Handlers of a peer's frames without data and header blocks."""

from __future__ import annotations

from binlog.http2 import frames
from binlog.http2.events import Event, Reset
from binlog.http2.frames import STREAM_MAX, WINDOW_MAX, WORD, Code, ProtocolError, Setting, StreamError
from binlog.http2.headers import HeaderDecoder
from binlog.http2.limits import COST_FRAME, COST_RAPID_RESET, RAPID_S, Budget
from binlog.http2.outgoing import Outgoing
from binlog.http2.streams import Streams


class ControlFrames:
    """Each handler gets the flags, the stream and the place of the payload. All are paid for from the budget.

    `settled`: the peer's first SETTINGS have arrived.
    """

    def __init__(
        self, decoder: HeaderDecoder, streams: Streams, outgoing: Outgoing, budget: Budget, events: list[Event]
    ) -> None:
        self._decoder = decoder
        self._streams = streams
        self._outgoing = outgoing
        self._budget = budget
        self._events = events
        self.settled = False

    def on_priority(self, _flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
        self._budget.pay(COST_FRAME)
        if not stream_id:
            raise ProtocolError(Code.PROTOCOL_ERROR, "PRIORITY without a stream")
        if end - begin != 5:
            raise StreamError(stream_id, Code.FRAME_SIZE_ERROR, "PRIORITY has five bytes")
        if WORD.unpack_from(buffer, begin)[0] & STREAM_MAX == stream_id:
            raise StreamError(stream_id, Code.PROTOCOL_ERROR, "it depends on itself")

    def on_rst_stream(self, _flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
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

    def on_settings(self, flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
        if stream_id:
            raise ProtocolError(Code.PROTOCOL_ERROR, "SETTINGS of a stream")
        if flags & frames.ACK:
            if begin != end:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS has no payload")
            self._budget.pay(COST_FRAME)
            self._decoder.settings_acknowledged()
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
        self.settled = True
        self._outgoing.write(frames.SETTINGS_ACK)

    def on_push_promise(self, _flags: int, _stream_id: int, _buffer: bytes, _begin: int, _end: int) -> None:
        raise ProtocolError(Code.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def on_ping(self, flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
        if stream_id:
            raise ProtocolError(Code.PROTOCOL_ERROR, "PING of a stream")
        if end - begin != 8:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, "PING has eight bytes")
        self._budget.pay(COST_FRAME)
        if not flags & frames.ACK:
            self._outgoing.write(frames.ping(buffer[begin:end], ack=True), urgent=False)

    def on_goaway(self, _flags: int, stream_id: int, _buffer: bytes, begin: int, end: int) -> None:
        """Handle GOAWAY: the peer accepts no more streams from us. It only matters for servers that push."""
        self._budget.pay(COST_FRAME)
        if stream_id:
            raise ProtocolError(Code.PROTOCOL_ERROR, "GOAWAY of a stream")
        if end - begin < 8:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, "GOAWAY has eight bytes and more")

    def on_window_update(self, _flags: int, stream_id: int, buffer: bytes, begin: int, end: int) -> None:
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


def _check_setting(name: int, value: int) -> None:
    if name == Setting.ENABLE_PUSH and value > 1:
        raise ProtocolError(Code.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is {value}")
    if name == Setting.INITIAL_WINDOW_SIZE and value > WINDOW_MAX:
        raise ProtocolError(Code.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE is {value}")
    if name == Setting.MAX_FRAME_SIZE and not frames.FRAME_SIZE_MIN <= value <= frames.FRAME_SIZE_MAX:
        raise ProtocolError(Code.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE is {value}")
