"""The meaning of a request's header fields in gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from binlog.http2.headers import Head
from binlog.rpc.method import Method
from binlog.rpc.status import RpcError, Status

VARYING = b"grpc-timeout"
_CONTENT_TYPE = b"application/grpc"
_UNIT_S = {72: 3600.0, 77: 60.0, 83: 1.0, 109: 1e-3, 117: 1e-6, 110: 1e-9}  # H M S m u n
TIMEOUT_DIGITS_MAX = 8


@dataclass(frozen=True, slots=True)
class Route:
    """Where a call goes: to `method`, or it is refused with `error`. `http_status`, `text`: the answer to requests that
    are not gRPC.
    """

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
