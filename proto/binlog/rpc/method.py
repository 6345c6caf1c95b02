"""The description of a server's methods, the interfaces that they use, and which method a request means."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from binlog.http2.headers import Head
from binlog.rpc.messages import Buffer
from binlog.rpc.status import RpcError, Status


class MemoryBudget:
    """Limits the bytes of requests that are held at the same time, over all calls. This one has no limit."""

    def fits(self, size: int) -> bool:
        """Return whether `take` would succeed."""
        return True

    def take(self, size: int) -> None:
        """Count bytes until `give`. If the budget does not allow them, raise an error that a handler may raise."""

    def give(self, size: int) -> None:
        """Note that counted bytes are no longer held."""

    def tolerate(self, size: int) -> bool:
        """Count bytes that the budget does not allow, of a message that must be read before it can be refused.

        Return False if they must not be read either: wait until memory is released.
        """
        return True

    def wait(self, retry: Callable[[], None]) -> None:
        """Call `retry` once, in a later turn of the loop, after memory was released."""
        raise NotImplementedError("an unlimited budget makes no call wait")

    def forgive(self, size: int) -> None:
        """Note that tolerated bytes are no longer held."""


@dataclass(slots=True, eq=False)
class Received:
    """A message of a stream of requests. Its bytes are counted until `release`.

    `refused`: the error if the budget did not allow it; the handler reports it.
    """

    data: Buffer
    refused: Exception | None = None
    released: Callable[[], None] = lambda: None

    def release(self) -> None:
        released, self.released = self.released, lambda: None
        released()


class Responder(Protocol):
    """The receiver of the answers of a batched handler."""

    def answer(self, numbers: Sequence[int], message: bytes) -> int:
        """Send the same message to each call. Return how many calls still waited."""

    def refuse(self, number: int, error: BaseException) -> bool:
        """Send an error to one call. Return whether it still waited."""


Unary = Callable[[Buffer], Awaitable[bytes]]
BatchedUnary = Callable[["Responder", Sequence[int], Sequence[Buffer]], None]
Streaming = Callable[[Buffer], AsyncIterator[bytes | Sequence[bytes]]]
Bidi = Callable[[AsyncIterator[Received]], AsyncIterator[bytes]]

VARYING = b"grpc-timeout"
TIMEOUT_DIGITS_MAX = 8
_UNIT_S = {72: 3600.0, 77: 60.0, 83: 1.0, 109: 1e-3, 117: 1e-6, 110: 1e-9}  # H M S m u n
_CONTENT_TYPE = b"application/grpc"
REQUEST_BYTES_MAX = 128 << 10  # of methods that set no limit of their own; they parse requests on the event loop


@dataclass(frozen=True, slots=True)
class Method:
    """A method. One of `unary`, `batched`, `streaming` and `bidi` is its handler. A streaming handler may yield several
    small messages at once.

    `batched` is for a method with very many small calls, which need no task. It gets the requests that arrived
    together, a number for each, and the Responder to which it sends each result once, in the event loop. It must not
    wait. If it raises, the error applies to all of them. A request's bytes are counted until it is answered.

    `translate` returns the status for a handler's error, or None for an unknown error. `counted`: its messages count
    against the memory budget. `too_long` makes the error for a message of `size` bytes above `request_bytes_max`; it
    also gets the first bytes.
    """

    unary: Unary | None = None
    batched: BatchedUnary | None = None
    streaming: Streaming | None = None
    bidi: Bidi | None = None
    translate: Callable[[Exception], RpcError | None] = lambda _error: None
    counted: bool = False
    request_bytes_max: int = REQUEST_BYTES_MAX
    too_long: Callable[[int, bytes, int], Exception] = lambda size, _head, limit: RpcError(
        Status.RESOURCE_EXHAUSTED, f"a message of {size} bytes is above the limit of {limit}"
    )


@dataclass(frozen=True, slots=True)
class Route:
    """Where a call goes: `method`, or refused with `error`. `http_status`, `text`: the answer if it is not gRPC."""

    method: Method | None = None
    gzip: bool = False
    error: RpcError | None = None
    http_status: int = 200
    text: str = ""


def route(head: Head, methods: Mapping[bytes, Method]) -> Route:
    if head.method != b"POST":
        return Route(http_status=405, text="this address serves gRPC, which is asked with POST\n")
    content_type = head.get(b"content-type") or b""
    if not content_type.startswith(_CONTENT_TYPE) or content_type[len(_CONTENT_TYPE) :][:1] not in (b"", b"+", b";"):
        return Route(http_status=415, text="this address serves gRPC, whose content-type is application/grpc\n")
    method = methods.get(head.path)
    if method is None:
        name = head.path[:200].decode("utf-8", "replace")
        return Route(error=RpcError(Status.UNIMPLEMENTED, f"there is no method {name} here"))
    encoding = head.get(b"grpc-encoding") or b"identity"
    if encoding not in (b"identity", b"gzip"):
        shown = encoding[:40].decode("utf-8", "replace")
        error = RpcError(Status.UNIMPLEMENTED, f"messages cannot be compressed by {shown}; identity and gzip are known")
        return Route(error=error)
    return Route(method, encoding == b"gzip")


def timeout_s(value: bytes) -> float:
    """Return the seconds of a `grpc-timeout`. Raises RpcError if it is invalid."""
    digits = value[:-1]
    unit_s = _UNIT_S.get(value[-1]) if value else None
    if unit_s is None or not digits.isdigit() or len(digits) > TIMEOUT_DIGITS_MAX:
        raise RpcError(Status.INTERNAL, f"grpc-timeout is {value[:40]!r}")
    return int(digits) * unit_s
