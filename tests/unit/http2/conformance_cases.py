"""What RFC 9113 and RFC 7541 ask of a server, section by section: bytes of a client, and what must come of them.

Frames and header blocks are written here byte by byte, not by the code that is tested. A client has sent its preface
and its SETTINGS before (unless `bare`), and the server answers each request that has ended with 200 and `ANSWER`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
NO_ERROR, PROTOCOL, INTERNAL, FLOW, TIMEOUT, CLOSED, SIZE, REFUSED, CANCEL, COMPRESSION, CONNECT, CALM = range(12)
END, ACK, END_HEADERS, PADDED, PRIORITIZED = 1, 1, 4, 8, 32
ANSWER = b"hello"
MAX = (1 << 31) - 1


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream_id) + payload


def literal(name: str, value: str) -> bytes:
    """Without indexing, new name, no Huffman coding (RFC 7541, 6.2.2)."""
    return b"\x00" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()


POST, HTTP, ROOT, AUTHORITY = b"\x83", b"\x86", b"\x84", b"\x01\x01x"
REQUEST = POST + HTTP + ROOT + AUTHORITY


def headers(stream_id: int, block: bytes = REQUEST, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream_id, block)


def asked(stream_id: int, block: bytes = REQUEST) -> bytes:
    """A request that has ended."""
    return headers(stream_id, block, END_HEADERS | END)


def data(stream_id: int, payload: bytes = b"test", flags: int = END) -> bytes:
    return frame(DATA, flags, stream_id, payload)


def word(value: int) -> bytes:
    return struct.pack(">I", value)


def setting(name: int, value: int) -> bytes:
    return struct.pack(">HI", name, value)


def window(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW, 0, stream_id, word(increment))


def rst(stream_id: int, code: int = CANCEL) -> bytes:
    return frame(RST, 0, stream_id, word(code))


@dataclass(frozen=True)
class Answered:
    """These streams, whole."""

    stream_ids: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class StreamEnds:
    """RST_STREAM with this code; the connection goes on."""

    code: int
    stream_id: int = 1


@dataclass(frozen=True)
class ConnectionEnds:
    """GOAWAY with this code."""

    code: int


@dataclass(frozen=True)
class Sent:
    """Exactly these frames."""

    frames: bytes


Expected = Answered | StreamEnds | ConnectionEnds | Sent
SETTLED = frame(SETTINGS, ACK, 0)


@dataclass(frozen=True)
class Case:
    """`bare`: neither preface nor SETTINGS were sent before."""

    section: str
    what: str
    sent: bytes
    expected: Expected
    bare: bool = False

    @property
    def name(self) -> str:
        return f"{self.section} {self.what}"


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
TWO_BLOCKS = frame(HEADERS, END, 1, REQUEST[:2]) + frame(CONTINUATION, 0, 1, REQUEST[2:3])
BLOCK_OF_3 = frame(HEADERS, 0, 3, REQUEST[:2])
PING_8 = b"\1\2\3\4\5\6\7\x08"


def length(said: int, *pieces: bytes) -> bytes:
    """A request whose content-length says so, and its data."""
    block = REQUEST + literal("content-length", str(said))
    return headers(1, block) + b"".join(data(1, piece, END * (at == len(pieces))) for at, piece in enumerate(pieces, 1))


FRAMING = [
    Case("3.4", "a preface", PREFACE + frame(SETTINGS, 0, 0) + asked(1), Answered(), bare=True),
    Case("3.4", "something else", b"INVALID CONNECTION PREFACE\r\n\r\n", ConnectionEnds(PROTOCOL), bare=True),
    Case("3.4", "another method of HTTP", b"GET / HTTP/1.1\r\n\r\n", ConnectionEnds(PROTOCOL), bare=True),
    Case("3.4", "a wrong byte near its end", PREFACE.replace(b"SM", b"SX"), ConnectionEnds(PROTOCOL), bare=True),
    Case("3.4", "no SETTINGS after it", PREFACE + asked(1), ConnectionEnds(PROTOCOL), bare=True),
    Case("3.4", "an ACK after it", PREFACE + SETTLED, ConnectionEnds(PROTOCOL), bare=True),
    Case("4.1", "an unknown type", frame(0xFF, 0, 0, b"12345678") + asked(1), Answered()),
    Case("4.1", "an undefined flag", frame(PING, 0x16, 0, PING_8), Sent(frame(PING, ACK, 0, PING_8))),
    Case("4.1", "the reserved bit", frame(PING, 0, 1 << 31, PING_8), Sent(frame(PING, ACK, 0, PING_8))),
    Case("4.1", "the reserved bit of a stream", headers(1 << 31 | 1) + data(1 << 31 | 1) + asked(3), Answered((1, 3))),
    Case("4.2", "DATA of 2^14", headers(1) + data(1, bytes(1 << 14)), Answered()),
    Case("4.2", "larger DATA", headers(1) + data(1, bytes((1 << 14) + 1)), ConnectionEnds(SIZE)),
    Case("4.2", "larger HEADERS", headers(1, REQUEST + bytes(1 << 14)), ConnectionEnds(SIZE)),
    Case("4.2", "a larger frame of an unknown type", frame(0xFF, 0, 0, bytes((1 << 14) + 1)), ConnectionEnds(SIZE)),
    Case("4.3", "a block that is none", headers(1, b"\x00\x09field"), ConnectionEnds(COMPRESSION)),
    Case("4.3", "PRIORITY within it", TWO_BLOCKS + frame(PRIORITY, 0, 1, bytes(5)), ConnectionEnds(PROTOCOL)),
    Case("4.3", "another stream within it", TWO_BLOCKS + asked(3), ConnectionEnds(PROTOCOL)),
    Case("4.3", "DATA of another stream within it", headers(1) + BLOCK_OF_3 + data(1), ConnectionEnds(PROTOCOL)),
    Case("4.3", "a whole block within it", headers(1) + BLOCK_OF_3 + headers(5), ConnectionEnds(PROTOCOL)),
    Case("5.5", "an extension within it", TWO_BLOCKS + frame(0x0A, 0, 0, b"1234"), ConnectionEnds(PROTOCOL)),
    Case("5.4.1", "GOAWAY says what was done last", asked(1) + frame(PING, 0, 3, PING_8), ConnectionEnds(PROTOCOL)),
]

STREAMS = [
    Case("5.1", "idle: DATA", data(1), ConnectionEnds(PROTOCOL)),
    Case("5.1", "idle: RST_STREAM", rst(1), ConnectionEnds(PROTOCOL)),
    Case("5.1", "idle: WINDOW_UPDATE", window(1, 100), ConnectionEnds(PROTOCOL)),
    Case("5.1", "idle: CONTINUATION", frame(CONTINUATION, END_HEADERS, 1, REQUEST), ConnectionEnds(PROTOCOL)),
    Case("5.1", "idle: PRIORITY", frame(PRIORITY, 0, 1, word(0) + b"\xff") + asked(1), Answered()),
    Case("5.1", "an idle stream of the server's", headers(2), ConnectionEnds(PROTOCOL)),
    Case("5.1", "closed by the peer: DATA", headers(1) + rst(1) + data(1), StreamEnds(CLOSED)),
    Case("5.1", "closed by the peer: HEADERS", headers(1) + rst(1) + asked(1), ConnectionEnds(CLOSED)),
    Case(
        "5.1",
        "closed by the peer: CONTINUATION",
        headers(1) + rst(1) + frame(CONTINUATION, END_HEADERS, 1, REQUEST),
        ConnectionEnds(PROTOCOL),
    ),
    Case(
        "5.1",
        "closed by the peer: RST_STREAM, PRIORITY",
        asked(1) + rst(1) + frame(PRIORITY, 0, 1, bytes(5)),
        Answered(),
    ),
    Case("5.1", "closed: DATA", asked(1) + data(1), StreamEnds(CLOSED)),
    Case("5.1", "closed: HEADERS", asked(1) + asked(1), ConnectionEnds(CLOSED)),
    Case("5.1", "closed: CONTINUATION", asked(1) + frame(CONTINUATION, 4, 1, REQUEST), ConnectionEnds(PROTOCOL)),
    Case("5.1", "closed: WINDOW_UPDATE", asked(1) + window(1, 5), Answered()),
    Case("5.1.1", "an even number", asked(2), ConnectionEnds(PROTOCOL)),
    Case("5.1.1", "stream 0", asked(0), ConnectionEnds(PROTOCOL)),
    Case("5.1.1", "a number skipped", asked(5) + asked(3), ConnectionEnds(PROTOCOL)),
    Case("5.1.1", "numbers left out", asked(1) + asked(7) + asked(MAX), Answered((1, 7, MAX))),
    Case("5.3", "HEADERS that depend on themselves", headers(1, word(1) + b"\xff" + REQUEST, 37), StreamEnds(PROTOCOL)),
    Case(
        "5.3",
        "PRIORITY that depends on itself",
        headers(1) + frame(PRIORITY, 0, 1, word(1) + b"\xff"),
        StreamEnds(PROTOCOL),
    ),
    Case("5.3", "HEADERS with a priority", headers(1, word(1 << 31) + b"\xff" + REQUEST, 37), Answered()),
]

FRAMES = [
    Case("6.1", "DATA of stream 0", data(0), ConnectionEnds(PROTOCOL)),
    Case("6.1", "DATA with padding", headers(1) + data(1, b"\x05test" + bytes(5), END | PADDED), Answered()),
    Case("6.1", "padding alone", headers(1) + data(1, b"\x03" + bytes(3), END | PADDED), Answered()),
    Case("6.1", "more padding than frame", headers(1) + data(1, b"\x06test", END | PADDED), ConnectionEnds(PROTOCOL)),
    Case("6.1", "as much padding as frame", headers(1) + data(1, b"\x05test", END | PADDED), ConnectionEnds(PROTOCOL)),
    Case("6.1", "no length of the padding", headers(1) + data(1, b"", PADDED), ConnectionEnds(PROTOCOL)),
    Case("6.2", "HEADERS with padding", headers(1, b"\x03" + REQUEST + bytes(3), 13), Answered()),
    Case("6.2", "more padding than block", headers(1, b"\xff" + REQUEST, 13), ConnectionEnds(PROTOCOL)),
    Case("6.2", "padding into the priority", headers(1, b"\x05" + bytes(9), 4 | 8 | 32), ConnectionEnds(SIZE)),
    Case("6.3", "PRIORITY of stream 0", frame(PRIORITY, 0, 0, bytes(5)), ConnectionEnds(PROTOCOL)),
    Case("6.3", "PRIORITY of four bytes", headers(1) + frame(PRIORITY, 0, 1, bytes(4)), StreamEnds(SIZE)),
    Case("6.4", "RST_STREAM of stream 0", rst(0), ConnectionEnds(PROTOCOL)),
    Case("6.4", "RST_STREAM of three bytes", headers(1) + frame(RST, 0, 1, bytes(3)), ConnectionEnds(SIZE)),
    Case("6.4", "and nothing answers it", headers(1) + rst(1), Sent(b"")),
    Case("6.5", "an ACK with payload", frame(SETTINGS, ACK, 0, setting(3, 1)), ConnectionEnds(SIZE)),
    Case("6.5", "of a stream", frame(SETTINGS, 0, 1, setting(3, 1)), ConnectionEnds(PROTOCOL)),
    Case("6.5", "three bytes", frame(SETTINGS, 0, 0, bytes(3)), ConnectionEnds(SIZE)),
    Case("6.5.2", "push of 2", frame(SETTINGS, 0, 0, setting(2, 2)), ConnectionEnds(PROTOCOL)),
    Case("6.5.2", "a window of 2^31", frame(SETTINGS, 0, 0, setting(4, 1 << 31)), ConnectionEnds(FLOW)),
    Case("6.5.2", "frames below 2^14", frame(SETTINGS, 0, 0, setting(5, (1 << 14) - 1)), ConnectionEnds(PROTOCOL)),
    Case("6.5.2", "frames of 2^24", frame(SETTINGS, 0, 0, setting(5, 1 << 24)), ConnectionEnds(PROTOCOL)),
    Case("6.5.2", "an unknown one", frame(SETTINGS, 0, 0, setting(0xFF, 1)), Sent(SETTLED)),
    Case("6.5.3", "is acknowledged", frame(SETTINGS, 0, 0, setting(3, 100)), Sent(SETTLED)),
    Case(
        "6.5.3",
        "the last of two values counts",
        frame(SETTINGS, 0, 0, setting(4, 100) + setting(4, 1)) + asked(1),
        Sent(SETTLED + frame(HEADERS, 4, 1, b"\x88") + frame(DATA, 0, 1, ANSWER[:1])),
    ),
    Case("6.6", "PUSH_PROMISE", headers(1) + frame(PUSH, 4, 1, word(3) + REQUEST), ConnectionEnds(PROTOCOL)),
    Case("6.7", "PING", frame(PING, 0, 0, PING_8), Sent(frame(PING, ACK, 0, PING_8))),
    Case("6.7", "an ACK is not answered", frame(PING, ACK, 0, PING_8), Sent(b"")),
    Case("6.7", "PING of a stream", frame(PING, 0, 1, PING_8), ConnectionEnds(PROTOCOL)),
    Case("6.7", "PING of six bytes", frame(PING, 0, 0, bytes(6)), ConnectionEnds(SIZE)),
    Case("6.8", "GOAWAY", frame(GOAWAY, 0, 0, word(0) + word(NO_ERROR)) + asked(1), Answered()),
    Case("6.8", "GOAWAY of a stream", frame(GOAWAY, 0, 1, word(0) + word(0)), ConnectionEnds(PROTOCOL)),
    Case("6.8", "GOAWAY of seven bytes", frame(GOAWAY, 0, 0, bytes(7)), ConnectionEnds(SIZE)),
    Case("6.10", "CONTINUATION", TWO_BLOCKS + frame(CONTINUATION, 4, 1, REQUEST[3:]), Answered()),
    Case("6.10", "something else", TWO_BLOCKS + data(1), ConnectionEnds(PROTOCOL)),
    Case("6.10", "PING within it", TWO_BLOCKS + frame(PING, 0, 0, PING_8), ConnectionEnds(PROTOCOL)),
    Case("6.10", "of another stream", TWO_BLOCKS + frame(CONTINUATION, 4, 3, b""), ConnectionEnds(PROTOCOL)),
    Case("6.10", "of stream 0", TWO_BLOCKS + frame(CONTINUATION, 4, 0, b""), ConnectionEnds(PROTOCOL)),
    Case("6.10", "after END_HEADERS", headers(1) + frame(CONTINUATION, 4, 1), ConnectionEnds(PROTOCOL)),
    Case(
        "6.10",
        "after the last CONTINUATION",
        TWO_BLOCKS + frame(CONTINUATION, 4, 1, REQUEST[3:]) + frame(CONTINUATION, 4, 1),
        ConnectionEnds(PROTOCOL),
    ),
    Case("6.10", "after DATA", headers(1) + data(1, flags=0) + frame(CONTINUATION, 4, 1), ConnectionEnds(PROTOCOL)),
    Case("7", "GOAWAY with an unknown code", frame(GOAWAY, 0, 0, word(0) + word(0xFF)) + asked(1), Answered()),
    Case("7", "RST_STREAM with an unknown code", headers(1) + rst(1, 0xFF) + asked(3), Answered((3,))),
]

WINDOWS = [
    Case("6.9", "nothing, of the connection", window(0, 0), ConnectionEnds(PROTOCOL)),
    Case("6.9", "nothing, of a stream", headers(1) + window(1, 0), StreamEnds(PROTOCOL)),
    Case("6.9", "three bytes", frame(WINDOW, 0, 0, bytes(3)), ConnectionEnds(SIZE)),
    Case("6.9", "five bytes", frame(WINDOW, 0, 0, bytes(5)), ConnectionEnds(SIZE)),
    Case("6.9", "the reserved bit", headers(1) + window(1, 1 << 31 | 5) + data(1), Answered()),
    Case("6.9.1", "the connection's above 2^31-1", window(0, MAX) + window(0, MAX), ConnectionEnds(FLOW)),
    Case("6.9.1", "a stream's above 2^31-1", headers(1) + window(1, MAX) + window(1, MAX), StreamEnds(FLOW)),
    Case("6.9.1", "the connection's at 2^31-1", window(0, MAX - 65535) + asked(1), Answered()),
    Case(
        "6.9.1",
        "of one byte",
        frame(SETTINGS, 0, 0, setting(4, 1)) + asked(1),
        Sent(SETTLED + frame(HEADERS, 4, 1, b"\x88") + frame(DATA, 0, 1, ANSWER[:1])),
    ),
    Case(
        "6.9.2",
        "opened by SETTINGS",
        frame(SETTINGS, 0, 0, setting(4, 0)) + asked(1) + frame(SETTINGS, 0, 0, setting(4, 1)),
        Sent(SETTLED + frame(HEADERS, 4, 1, b"\x88") + SETTLED + frame(DATA, 0, 1, ANSWER[:1])),
    ),
    Case(
        "6.9.2",
        "made negative by SETTINGS",
        frame(SETTINGS, 0, 0, setting(4, 3)) + asked(1) + frame(SETTINGS, 0, 0, setting(4, 2)) + window(1, 2),
        Sent(
            SETTLED
            + frame(HEADERS, 4, 1, b"\x88")
            + frame(DATA, 0, 1, ANSWER[:3])
            + SETTLED
            + frame(DATA, 0, 1, ANSWER[3:4])
        ),
    ),
    Case(
        "6.9.2",
        "above 2^31-1 by SETTINGS",
        headers(1) + window(1, 1) + frame(SETTINGS, 0, 0, setting(4, MAX)),
        ConnectionEnds(FLOW),
    ),
    Case(
        "6.9.2",
        "at 2^31-1 by SETTINGS, where a stream that is gone would be above",
        headers(1) + window(1, 1) + rst(1) + frame(SETTINGS, 0, 0, setting(4, MAX)) + asked(3),
        Answered((3,)),
    ),
    Case("6.9.2", "at 2^31-1 by SETTINGS", headers(1) + frame(SETTINGS, 0, 0, setting(4, MAX)) + data(1), Answered()),
    Case(
        "6.9.2",
        "of the connection, which SETTINGS do not change",
        frame(SETTINGS, 0, 0, setting(4, MAX)) + window(0, MAX - 65535) + asked(1),
        Answered(),
    ),
]


def malformed(section: str, what: str, block: bytes) -> Case:
    return Case(section, what, asked(1, block), StreamEnds(PROTOCOL))


def in_trailers(section: str, what: str, block: bytes) -> Case:
    return Case(section, f"{what}, in trailers", headers(1) + asked(1, block), StreamEnds(PROTOCOL))


MESSAGES = [
    Case("8.1", "data", headers(1) + data(1), Answered()),
    Case("8.1", "data in pieces", headers(1) + data(1, b"te", 0) + data(1, b"", 0) + data(1, b"st"), Answered()),
    Case("8.1", "trailers", headers(1) + data(1, flags=0) + asked(1, literal("x-test", "ok")), Answered()),
    Case("8.1", "trailers that do not end it", headers(1) + headers(1), StreamEnds(PROTOCOL)),
    Case("8.1.1", "content-length", length(8, b"test", b"test"), Answered()),
    Case("8.1.1", "content-length of less", length(1, b"test"), StreamEnds(PROTOCOL)),
    Case("8.1.1", "content-length of a sum of more", length(9, b"test", b"test"), StreamEnds(PROTOCOL)),
    Case(
        "8.1.1", "content-length without data", asked(1, REQUEST + literal("content-length", "1")), StreamEnds(PROTOCOL)
    ),
    Case(
        "8.1.1",
        "content-length and trailers",
        length(9, b"").removesuffix(data(1, b"")) + asked(1, literal("x", "y")),
        StreamEnds(PROTOCOL),
    ),
    malformed("8.1.1", "content-length that is no number", REQUEST + literal("content-length", "+1")),
    malformed("8.2.1", "capitals in a name", REQUEST + literal("X-TEST", "ok")),
    malformed("8.2.1", "a space in a name", REQUEST + literal("x test", "ok")),
    malformed("8.2.1", "a colon within a name", REQUEST + literal("x:test", "ok")),
    malformed("8.2.1", "an empty name", REQUEST + literal("", "ok")),
    malformed("8.2.1", "a byte above 0x7e in a name", REQUEST + literal("x\x7f", "ok")),
    *(
        malformed("8.2.1", f"{name} in a value", REQUEST + literal("x", f"a{char}b"))
        for name, char in (("NUL", "\0"), ("LF", "\n"), ("CR", "\r"))
    ),
    *(
        malformed("8.2.1", f"a value {how}", REQUEST + literal("x", value))
        for how, value in (("after a space", " a"), ("before a tab", "a\t"))
    ),
    *(
        in_trailers("8.2.1", how, block)
        for how, block in (("NUL in a value", literal("x", "a\0")), ("capitals", literal("X", "a")))
    ),
    in_trailers("8.2.1", "a space around a value", literal("x", "a ")),
    *(
        malformed("8.2.2", name, REQUEST + literal(name, "x"))
        for name in ("connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade")
    ),
    malformed("8.2.2", "te: gzip", REQUEST + literal("te", "trailers, deflate;q=0.5")),
    Case("8.2.2", "te: trailers", asked(1, REQUEST + literal("te", "trailers")), Answered()),
    in_trailers("8.2.2", "connection", literal("connection", "close")),
    malformed("8.3", "an unknown pseudo field", REQUEST + literal(":test", "ok")),
    malformed("8.3", "one of responses", REQUEST + b"\x88"),
    malformed("8.3", "after a regular field", POST + HTTP + literal("x", "y") + ROOT),
    in_trailers("8.3", "a pseudo field", POST),
    malformed("8.3.1", "an empty path", POST + HTTP + b"\x04\x00"),
    malformed("8.3.1", "NUL in a path", POST + HTTP + b"\x04\x02/\x00"),
    malformed("8.3.1", "no method", HTTP + ROOT),
    malformed("8.3.1", "no scheme", POST + ROOT),
    malformed("8.3.1", "no path", POST + HTTP),
    malformed("8.3.1", "two methods", POST + REQUEST),
    malformed("8.3.1", "two schemes", HTTP + REQUEST),
    malformed("8.3.1", "two paths", ROOT + REQUEST),
    Case("8.3.1", "no authority", asked(1, POST + HTTP + ROOT), Answered()),
    Case("8.5", "CONNECT", asked(1, literal(":method", "CONNECT") + AUTHORITY), Answered()),
    malformed("8.5", "CONNECT with a path", literal(":method", "CONNECT") + AUTHORITY + HTTP + ROOT),
    malformed("8.5", "CONNECT without an authority", literal(":method", "CONNECT")),
]


def compressed(section: str, what: str, block: bytes, *, fails: bool = True) -> Case:
    return Case(f"HPACK {section}", what, asked(1, block), ConnectionEnds(COMPRESSION) if fails else Answered())


# A literal whose value is Huffman-coded: "x" is 11110011 (eight bits), padding is ones, at most seven of them.
_HUFFMAN = REQUEST + b"\x00\x01a"
HPACK = [
    compressed("2.3.3", "an index above both tables", REQUEST + b"\xff\x80\x01"),
    compressed("4.2", "a size update behind fields", REQUEST + b"\x20"),
    compressed("4.2", "a size update before them", b"\x20" + REQUEST, fails=False),
    compressed("4.2", "two of them", b"\x20\x20" + REQUEST, fails=False),
    compressed("5.1", "a number without end", REQUEST + b"\xff" + b"\x80" * 1000 + b"\x01"),
    compressed("5.1", "a number that is cut off", REQUEST + b"\xff\x80"),
    compressed("5.2", "Huffman coding", _HUFFMAN + b"\x81\xf3", fails=False),
    compressed("5.2", "padding of a whole byte", _HUFFMAN + b"\x82\xf3\xff"),
    compressed("5.2", "padding of zeros", _HUFFMAN + b"\x81\x18"),
    compressed("5.2", "the symbol EOS", _HUFFMAN + b"\x84\xff\xff\xff\xff"),
    compressed("5.2", "a string longer than the block", REQUEST + b"\x00\x01a\x05xx"),
    compressed("6.1", "the index 0", REQUEST + b"\x80"),
    compressed("6.2.1", "with indexing, indexed name", REQUEST + b"\x7a\x04test", fails=False),
    compressed("6.2.1", "with indexing, new name", REQUEST + b"\x40\x01a\x04test", fails=False),
    compressed("6.2.2", "without indexing, indexed name", REQUEST + b"\x0f\x2b\x04test", fails=False),
    compressed("6.2.3", "never indexed, new name", REQUEST + b"\x10\x01a\x04test", fails=False),
    compressed("6.3", "a table of 1, where none is allowed", b"\x21" + REQUEST),
    compressed("6.3", "a table of 128, where none is allowed", b"\x3f\x61" + REQUEST),
    Case(
        "HPACK 3.2",
        "of a stream refused too",
        asked(1, POST + b"\x7a\x01a") + asked(3, REQUEST + b"\xbe"),
        StreamEnds(PROTOCOL),
    ),
    Case(
        "HPACK 3.2",
        "the table holds what it was given",
        asked(1, REQUEST + b"\x7a\x01a") + asked(3, REQUEST + b"\xbe"),
        Answered((1, 3)),
    ),
]

CASES = [*FRAMING, *STREAMS, *FRAMES, *WINDOWS, *MESSAGES, *HPACK]
