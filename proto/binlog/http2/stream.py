"""A stream of a server: its state, its windows, and the data queued on it."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import IntEnum, auto

LATE_FRAME_BYTES_MIN = 1024  # a late frame counts as at least this many bytes


class State(IntEnum):
    """The states of RFC 9113, section 5.1, for a server without push. An idle stream has no object."""

    OPEN = auto()
    HALF_CLOSED_REMOTE = auto()  # the peer has sent everything
    HALF_CLOSED_LOCAL = auto()  # we have sent everything
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


# Access to a member through its class is slow, and these are compared for each frame.
_OPEN, _HALF_CLOSED_REMOTE, _HALF_CLOSED_LOCAL = State.OPEN, State.HALF_CLOSED_REMOTE, State.HALF_CLOSED_LOCAL


@dataclass(slots=True, eq=False)
class Stream:
    """A stream.

    `receive_window`: the bytes that the peer may still send. `uncredited`: the bytes received but not consumed. `sent`:
    the bytes we sent, minus those the peer has credited; the peer's initial window minus `sent` is what we may still
    send.
    """

    stream_id: int
    opened_s: float
    receive_window: int
    content_length: int | None
    state: State = State.OPEN
    received: int = 0
    uncredited: int = 0
    credit: int = 0  # consumed, but not yet announced to the peer
    sent: int = 0
    waiting: deque[memoryview] = field(default_factory=deque)
    waiting_bytes: int = 0
    last: bytes | None = None  # the trailers (b"": only END_STREAM) to send after the queued data

    def step(self, step: Step) -> State:
        """Change the state. A KeyError is a bug: the caller must check the state first."""
        self.state = TRANSITIONS[self.state][step]
        return self.state

    @property
    def may_receive(self) -> bool:
        return self.state is _OPEN or self.state is _HALF_CLOSED_LOCAL

    @property
    def may_send(self) -> bool:
        """Whether more can be queued."""
        return self.last is None and (self.state is _OPEN or self.state is _HALF_CLOSED_REMOTE)


class Closed:
    """The most recently closed streams, and whether we ended them before the peer did.

    If so, the peer may not know it yet, and may have sent what the stream's window allowed.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._cut_off: OrderedDict[int, bool] = OrderedDict()
        self._late: dict[int, int] = {}  # bytes that may still arrive for these streams

    def add(self, stream_id: int, *, cut_off: bool, window: int = 0) -> None:
        """Add a stream. `window`: the bytes that the peer could still send when we ended it."""
        self._cut_off[stream_id] = cut_off
        if window > 0:
            self._late[stream_id] = window
        if len(self._cut_off) > self._count_max:
            self._late.pop(self._cut_off.popitem(last=False)[0], None)

    def expected(self, stream_id: int, size: int) -> bool:
        """Count late data, and return whether it can have been in flight when the stream was ended."""
        left = self._late.pop(stream_id, 0) - max(size, LATE_FRAME_BYTES_MIN)
        if left > 0:
            self._late[stream_id] = left
        return left >= 0

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._cut_off

    def was_cut_off(self, stream_id: int) -> bool:
        return self._cut_off.get(stream_id, False)
