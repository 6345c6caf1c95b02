"""The statuses of gRPC, and the header blocks that carry them."""

from __future__ import annotations

from bisect import bisect_right
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate
from urllib.parse import quote

from binlog.errors import ERROR_TRAILER
from binlog.http2.headers import encode_fields, encode_response

MESSAGE_BYTES_MAX = 4096  # length of a status text; some peers refuse header lists above 8 KiB


class Status(IntEnum):
    """The status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """An error that ends a call with a given status. `kind`: what the trailer `binlog-error` says, "" for none."""

    def __init__(self, status: Status, text: str, kind: str = "") -> None:
        super().__init__(f"{status.name}: {text}")
        self.status = status
        self.text = text
        self.kind = kind


_ACCEPTED = (b"grpc-accept-encoding", b"identity,gzip")
RESPONSE = encode_response(200, b"application/grpc", [_ACCEPTED])
_PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


def percent_encoded(text: str) -> bytes:
    """Return a status text in the form of `grpc-message`, truncated between characters if it is too long for peers."""
    if len(text) <= MESSAGE_BYTES_MAX and text.isascii() and text.isprintable() and "%" not in text:
        return text.encode()
    pieces = [quote(char, safe=_PLAIN, errors="replace") for char in text]
    fitting = bisect_right(list(accumulate(map(len, pieces))), MESSAGE_BYTES_MAX)
    return "".join(pieces[:fitting]).encode()


def _fields(status: Status, text: str, kind: str) -> list[tuple[bytes, bytes]]:
    fields = [(b"grpc-status", str(int(status)).encode())]
    if text:
        fields.append((b"grpc-message", percent_encoded(text)))
    if kind:
        fields.append((ERROR_TRAILER.encode(), kind.encode()))
    return fields


@lru_cache(maxsize=256)
def trailers(status: Status, text: str = "", kind: str = "") -> bytes:
    """Return the block that ends a response."""
    return encode_fields(_fields(status, text, kind))


@lru_cache(maxsize=256)
def refusal(status: Status, text: str, kind: str = "") -> bytes:
    """Return the only block of a response without a message."""
    return encode_response(200, b"application/grpc", [_ACCEPTED, *_fields(status, text, kind)])
