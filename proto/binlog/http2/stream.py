"""A stream of a server: where it is in its life, its windows, and what waits to be sent on it."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import IntEnum, auto

LATE_FRAME_BYTES_MIN = 1024  # so much a late frame counts at least


class State(IntEnum):
    """RFC 9113, section 5.1, as far as a server without push goes; an idle stream has no object."""

    OPEN = auto()
    HALF_CLOSED_REMOTE = auto()  # the peer has sent all
    HALF_CLOSED_LOCAL = auto()  # we have sent all
    CLOSED = auto()


class Step(IntEnum):
    RECEIVED_END = auto()
    SENT_END = auto()
    RESET = auto()


TRANSITIONS: dict[State, dict[Step, State]] = {
    State.OPEN: {
        Step.RECEIVED_END: State.HALF_CLOSED_REMOTE,
        Step.SENT_END: State.HALF_CLOSED_LOCAL,
        Step.RESET: State.CLOSED,
    },
    State.HALF_CLOSED_REMOTE: {Step.SENT_END: State.CLOSED, Step.RESET: State.CLOSED},
    State.HALF_CLOSED_LOCAL: {Step.RECEIVED_END: State.CLOSED, Step.RESET: State.CLOSED},
    State.CLOSED: {},
}


# A member costs more each time it is named by its class, and these are looked at for each frame.
_OPEN, _HALF_CLOSED_REMOTE, _HALF_CLOSED_LOCAL = State.OPEN, State.HALF_CLOSED_REMOTE, State.HALF_CLOSED_LOCAL


@dataclass(slots=True, eq=False)
class Stream:
    """`receive_window`: what the peer may still send. `uncredited`: what it sent and nobody has taken.
    `sent`: what we sent, less what the peer gave back; beside the peer's initial window it says what we may send."""

    stream_id: int
    opened_s: float
    receive_window: int
    content_length: int | None
    state: State = State.OPEN
    received: int = 0
    uncredited: int = 0
    credit: int = 0  # taken, but not yet told to the peer
    sent: int = 0
    waiting: deque[memoryview] = field(default_factory=deque)
    waiting_bytes: int = 0
    last: bytes | None = None  # the trailers, or b"" for a bare END_STREAM, behind what waits

    def step(self, step: Step) -> State:
        """KeyError is a mistake of ours: the caller looks at the state first."""
        self.state = TRANSITIONS[self.state][step]
        return self.state

    @property
    def may_receive(self) -> bool:
        return self.state is _OPEN or self.state is _HALF_CLOSED_LOCAL

    @property
    def may_send(self) -> bool:
        """Whether more can be sent after what waits."""
        return self.last is None and (self.state is _OPEN or self.state is _HALF_CLOSED_REMOTE)


class Closed:
    """The newest closed streams, and whether it was we who cut them off: then the peer may not know it yet, and may
    have sent what the stream's window allowed."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._cut_off: OrderedDict[int, bool] = OrderedDict()
        self._late: dict[int, int] = {}  # bytes that may still come of those

    def add(self, stream_id: int, *, cut_off: bool, window: int = 0) -> None:
        """`window`: what the peer might still send when we cut it off."""
        self._cut_off[stream_id] = cut_off
        if window > 0:
            self._late[stream_id] = window
        if len(self._cut_off) > self._count_max:
            self._late.pop(self._cut_off.popitem(last=False)[0], None)

    def expected(self, stream_id: int, size: int) -> bool:
        """Whether so much data was on its way when the stream was cut off, as far as one can know. Counts it."""
        left = self._late.pop(stream_id, 0) - max(size, LATE_FRAME_BYTES_MIN)
        if left > 0:
            self._late[stream_id] = left
        return left >= 0

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._cut_off

    def was_cut_off(self, stream_id: int) -> bool:
        return self._cut_off.get(stream_id, False)
