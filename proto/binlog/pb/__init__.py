"""The modules here are generated from the .proto files beside them; `make proto` writes them anew, a test compares."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError as ProtobufError
from google.protobuf.message import Message

from binlog.errors import DecodeError

M = TypeVar("M", bound=Message)


def parsed(kind: type[M], data: bytes, what: str = "") -> M:
    """Decode a message. `what`: its name in the error, if not that of its type. Raises DecodeError."""
    try:
        return kind.FromString(data)
    except ProtobufError as error:
        raise DecodeError(what or kind.DESCRIPTOR.name, offset=0, detail=str(error)) from error
