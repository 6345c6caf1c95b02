"""What a server is told about its methods, and what it asks others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from binlog.rpc.messages import Buffer
from binlog.rpc.status import RpcError, Status


class Room(Protocol):
    """Bytes of requests held at once, over all calls."""

    def fits(self, size: int) -> bool:
        """Whether `take` would succeed."""

    def take(self, size: int) -> None:
        """Count so many bytes until `give`. Raises what a handler may raise where there is no room for them."""

    def give(self, size: int) -> None:
        """They are held no more."""

    def tolerate(self, size: int) -> bool:
        """Count bytes for which there is no room: those of a message that must be read before it can be refused. False:
        wait until something is given back."""

    def forgive(self, size: int) -> None:
        """What was tolerated is held no more."""


class Unlimited:
    """A Room without walls."""

    def fits(self, size: int) -> bool:
        return True

    def take(self, size: int) -> None:
        """There is room."""

    def give(self, size: int) -> None:
        """Nothing is counted."""

    def tolerate(self, size: int) -> bool:
        return True

    def forgive(self, size: int) -> None:
        """Nothing is counted."""


@dataclass(slots=True, eq=False)
class Received:
    """A message of a stream of requests. `refused`: there was no room for it, and its handler says so. Its bytes are
    counted until `release`."""

    data: Buffer
    refused: Exception | None = None
    released: Callable[[], None] = lambda: None

    def release(self) -> None:
        released, self.released = self.released, lambda: None
        released()


class Asker(Protocol):
    """Whoever waits for what a sink answers."""

    def answer(self, numbers: Sequence[int], message: bytes) -> int:
        """The same message to each. How many still waited."""

    def refuse(self, number: int, error: BaseException) -> bool:
        """An error to one. Whether it still waited."""


Unary = Callable[[Buffer], Awaitable[bytes]]
Sink = Callable[["Asker", Sequence[int], Sequence[Buffer]], None]
Streaming = Callable[[Buffer], AsyncIterator[bytes | Sequence[bytes]]]
Bidi = Callable[[AsyncIterator[Received]], AsyncIterator[bytes]]

REQUEST_BYTES_MAX = 4 << 20


def _no_such_error(error: Exception) -> RpcError | None:
    return None


def _too_long(size: int, _head: bytes, limit: int) -> Exception:
    return RpcError(Status.RESOURCE_EXHAUSTED, f"a message of {size} bytes is above the limit of {limit}")


@dataclass(frozen=True, slots=True)
class Method:
    """One of `unary`, `streaming`, `bidi` is its handler. A streaming one may give several small messages at once.

    `sink` may stand beside `unary` for a method of very many small calls, which then need no task: it gets the requests
    that arrived together, a number for each, and whom to tell what became of them, each once, on the loop. It may raise
    instead, for all of them, and must not wait. A request's bytes count until it is answered.

    `translate` makes a status of an error that a handler raised, or None of one it does not know. `counted`: its
    messages ask for room. `too_long` makes the error for a message of `size` bytes above `request_bytes_max`, of which
    it gets the first bytes too.
    """

    unary: Unary | None = None
    sink: Sink | None = None
    streaming: Streaming | None = None
    bidi: Bidi | None = None
    translate: Callable[[Exception], RpcError | None] = _no_such_error
    counted: bool = False
    request_bytes_max: int = REQUEST_BYTES_MAX
    too_long: Callable[[int, bytes, int], Exception] = _too_long
