"""The events of a connection."""

from __future__ import annotations

from typing import NamedTuple

from binlog.http2.frames import Code
from binlog.http2.headers import Head


class Request(NamedTuple):
    """A stream begins. It counts as open until `Connection.finished` is called. `end`: no data follows."""

    stream_id: int
    head: Head
    varying: bytes | None  # the value of HeaderDecoder's `varying` field
    end: bool


class Data(NamedTuple):
    """Bytes of a stream. They occupy its window until `Connection.credit` is called for them. `end`: no data
    follows.
    """

    stream_id: int
    data: bytes
    end: bool


class Reset(NamedTuple):
    """A stream was ended early, by the peer or because of its error. Nothing can be sent on it."""

    stream_id: int
    code: int
    reason: str


class Failed(NamedTuple):
    """The connection is dead. Send the remaining output and close it. No event follows."""

    code: Code
    reason: str


# A complete request: (stream, head, varying value, data). It stands for a Request and the Data that ends it; nothing
# must be credited. It is a plain tuple because there are very many of them, and a named tuple takes ten times as long
# to make.
Whole = tuple[int, Head, bytes | None, bytes]

Event = Whole | Request | Data | Reset | Failed
