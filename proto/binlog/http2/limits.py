"""What a peer may cost us."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one connection.

    Memory that a peer can make us hold: `connection_window_bytes` of data nobody has taken yet, one header block, one
    frame, and what `streams_max` streams cost.
    """

    streams_max: int = 4096  # under way at once, those that were reset but whose handlers still run included
    stream_window_bytes: int = 1 << 20
    connection_window_bytes: int = 8 << 20
    header_list_bytes_max: int = 16 << 10  # as RFC 9113 counts it: 32 bytes more for each field
    header_block_bytes_max: int = 16 << 10  # as it is sent, CONTINUATION included
    continuations_max: int = 16  # frames of one block
    data_frame_bytes_max: int = 64 << 10  # of frames that we send
    remembered_streams_max: int = 4096  # closed ones for which late frames are expected
    budget_max: float = 10_000.0  # see Budget
    budget_per_s: float = 1_000.0


# What frames cost that make no progress by themselves. One that made us begin work and throws it away costs most.
COST_FRAME = 1.0
COST_RAPID_RESET = 10.0
RAPID_S = 1.0
# What is earned by progress: flow control, pings that measure it, and cancelled calls come with real work.
EARNED_BY_STREAM = 10.0
EARNED_BY_DATA = 2.0


class Budget:
    """Frames such as PING, SETTINGS, RST_STREAM, WINDOW_UPDATE and empty DATA are paid from it; time and progress
    refill it. A peer that floods us with them runs out of it (CVE-2019-9511 to -9518, CVE-2023-44487)."""

    __slots__ = ("_left", "_max", "_per_s", "_seen_s")

    def __init__(self, limits: Limits, now_s: float) -> None:
        self._max = limits.budget_max
        self._per_s = limits.budget_per_s
        self._left = limits.budget_max
        self._seen_s = now_s

    def pay(self, cost: float, now_s: float) -> bool:
        """False: nothing is left."""
        self._left -= cost
        if self._left >= 0:
            return True
        self._left = min(self._max, self._left + (now_s - self._seen_s) * self._per_s)
        self._seen_s = now_s
        return self._left >= 0

    def earn(self, amount: float) -> None:
        left = self._left + amount
        self._left = left if left < self._max else self._max
