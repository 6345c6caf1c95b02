"""A client's side of HTTP/2, written by hand so that it can also do what no client does."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from binlog.http2 import frames
from binlog.http2.connection import Connection
from binlog.http2.frames import PREFACE, Setting
from binlog.http2.limits import ConnectionLimits
from binlog.http2.streams import Event
from hpack import Decoder, Encoder

REQUEST = ((":method", "POST"), (":scheme", "http"), (":path", "/t.T/M"), (":authority", "x"), ("te", "trailers"))


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes


def under_way(connection: Connection) -> int:
    """How many streams handlers work for, or will work for."""
    streams = connection._streams
    return len(streams._under_way) + len(streams.fresh) + len(streams.whole)


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream_id: int = 0) -> bytes:
    return frames.frame_header(len(payload), kind, flags, stream_id) + payload


def parse(data: bytes) -> Iterator[Frame]:
    at = 0
    while at < len(data):
        word, flags, stream_id = frames.FRAME.unpack_from(data, at)
        end = at + 9 + (word >> 8)
        assert end <= len(data), "half a frame"
        yield Frame(word & 0xFF, flags, stream_id, data[at + 9 : end])
        at = end


def block(fields: Sequence[tuple[str, str]] = REQUEST, *, size_update: bool = True) -> bytes:
    """A header block that uses no table, as a peer that keeps to our settings sends it."""
    encoder = Encoder()
    encoder.header_table_size = 0
    found = encoder.encode(list(fields))
    return found if size_update else found.removeprefix(b"\x20")


def headers(stream_id: int, fields: Sequence[tuple[str, str]] = REQUEST, *, end: bool = False) -> bytes:
    flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
    return frame(frames.HEADERS, block(fields), flags=flags, stream_id=stream_id)


def data(stream_id: int, payload: bytes, *, end: bool = False) -> bytes:
    return frame(frames.DATA, payload, flags=frames.END_STREAM if end else 0, stream_id=stream_id)


def settings(**values: int) -> bytes:
    return frames.settings({Setting[name]: value for name, value in values.items()})


def rst(stream_id: int, code: int = 8) -> bytes:
    return frame(frames.RST_STREAM, struct.pack(">I", code), stream_id=stream_id)


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(frames.WINDOW_UPDATE, struct.pack(">I", increment), stream_id=stream_id)


GREETING = PREFACE + frame(frames.SETTINGS) + frame(frames.SETTINGS, flags=frames.ACK)


class Talk:
    """A connection that has been greeted, and what it said."""

    def __init__(self, limits: ConnectionLimits | None = None, *, greeting: bytes = GREETING) -> None:
        self.connection = Connection(limits, varying=b"grpc-timeout")
        self.now_s = 100.0
        self.decoder = Decoder()
        self.events: list[Event] = []
        self.greeted = self.say(greeting) if greeting else []
        self.first = self.heard()

    def say(self, *pieces: bytes) -> list[Event]:
        found = [event for piece in pieces for event in self.connection.receive(piece, self.now_s)]
        self.events += found
        return found

    def heard(self, bytes_max: int = 1 << 40) -> list[Frame]:
        return list(parse(b"".join(self.connection.take_output(bytes_max))))

    def fields(self, found: Frame) -> list[tuple[str, str]]:
        return [(str(name), str(value)) for name, value in self.decoder.decode(found.payload)]
