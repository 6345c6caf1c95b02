"""Limits on the memory and work that a peer can cause."""

from __future__ import annotations

from dataclasses import dataclass

from binlog.http2.frames import Code, ProtocolError


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one connection.

    A peer can make us hold at most `connection_window_bytes` of data that was not consumed, one header block, one
    frame, and the state of `streams_max` streams.
    """

    streams_max: int = 4096  # open at the same time, including reset ones whose handlers still run
    stream_window_bytes: int = 1 << 20
    connection_window_bytes: int = 8 << 20
    header_list_bytes_max: int = 16 << 10  # as RFC 9113 counts it, with 32 additional bytes for each field
    header_block_bytes_max: int = 16 << 10  # as it is sent, including CONTINUATION frames
    continuations_max: int = 16  # CONTINUATION frames of one block
    data_frame_bytes_max: int = 64 << 10  # data in a frame that we send
    remembered_streams_max: int = 4096  # closed streams for which late frames are still accepted
    budget_max: float = 10_000.0  # see Budget
    budget_per_s: float = 1_000.0


# Costs of frames that make no progress by themselves. A frame that discards work we have begun costs most.
COST_FRAME = 1.0
COST_RAPID_RESET = 10.0
RAPID_S = 1.0
# Earned by progress, because real work also causes flow control frames, pings that measure it, and cancelled calls.
EARNED_BY_STREAM = 10.0
EARNED_BY_DATA = 2.0


class Budget:
    """A budget for frames such as PING, SETTINGS, RST_STREAM, WINDOW_UPDATE and empty DATA. Time and progress refill
    it.

    A peer that floods us with such frames exhausts it (CVE-2019-9511 to -9518, CVE-2023-44487). `now_s`: the time;
    the connection sets it whenever bytes arrive, also for its other parts.
    """

    __slots__ = ("_left", "_max", "_per_s", "_seen_s", "now_s")

    def __init__(self, limits: ConnectionLimits, now_s: float) -> None:
        self._max = limits.budget_max
        self._per_s = limits.budget_per_s
        self._left = limits.budget_max
        self._seen_s = self.now_s = now_s

    def pay(self, cost: float) -> None:
        """Spend `cost`. Raises ProtocolError if the budget is exhausted."""
        self._left -= cost
        if self._left >= 0:
            return
        self._left = min(self._max, self._left + (self.now_s - self._seen_s) * self._per_s)
        self._seen_s = self.now_s
        if self._left < 0:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, "too many frames that make no progress")

    def earn(self, amount: float) -> None:
        left = self._left + amount
        self._left = left if left < self._max else self._max
