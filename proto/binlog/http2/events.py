"""What comes out of a connection."""

from __future__ import annotations

from typing import NamedTuple

from binlog.http2.frames import Code
from binlog.http2.headers import Head


class Request(NamedTuple):
    """A stream begins. It counts as under way until `Connection.finished` is called. `end`: nothing follows."""

    stream_id: int
    head: Head
    varying: bytes | None  # the value of the field that the decoder was told about
    end: bool


class Data(NamedTuple):
    """Bytes of a stream. They fill its window until `Connection.credit` gives them back. `end`: nothing follows."""

    stream_id: int
    data: bytes
    end: bool


class Reset(NamedTuple):
    """A stream was ended before its time, by the peer or for what the peer did. Nothing can be sent on it."""

    stream_id: int
    code: int
    reason: str


class Acknowledged(NamedTuple):
    """The peer answered a ping of ours."""

    payload: bytes


class Failed(NamedTuple):
    """The connection is dead: send what is left to send, and close it. The last event there is."""

    code: Code
    reason: str


# (stream, head, varying value, data): a request whose frames are all there. As a Request and the Data that ends it, and
# nothing is to be credited. A plain tuple: there are very many, and a named one takes ten times as long to make.
Whole = tuple[int, Head, bytes | None, bytes]

Event = Whole | Request | Data | Reset | Acknowledged | Failed
