"""Flow control of the data that a connection receives. The windows of its streams are in `Stream`."""

from __future__ import annotations

from binlog.http2 import frames
from binlog.http2.frames import Code, ProtocolError
from binlog.http2.outgoing import Outgoing


class ReceiveWindow:
    """The connection's window. `left`: the bytes that the peer may still send. `credit`: the bytes that are free again,
    but not yet announced to the peer; they are announced together, once they are a quarter of the whole window.
    """

    __slots__ = ("_outgoing", "_step", "credit", "left")

    def __init__(self, bytes_max: int, outgoing: Outgoing) -> None:
        self._outgoing = outgoing
        self._step = bytes_max // 4
        self.left = frames.WINDOW_DEFAULT
        self.credit = 0

    def take(self, size: int) -> None:
        """Count received data. Raises ProtocolError if it is more than the window allows."""
        self.left -= size
        if self.left < 0:
            raise ProtocolError(Code.FLOW_CONTROL_ERROR, "more data than the connection's window allows")

    def grant(self, size: int) -> None:
        """Note that bytes of the window are free again."""
        self.credit += size
        if self.credit >= self._step:
            self.left += self.credit
            self._outgoing.write(frames.window_update(0, self.credit))
            self.credit = 0
