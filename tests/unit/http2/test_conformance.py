"""Every case of `conformance_cases`, frame by frame and byte by byte, and the examples of RFC 7541, appendix C."""

from __future__ import annotations

from typing import cast

import pytest
from binlog.http2.connection import Connection
from binlog.http2.headers import HeaderDecoder
from binlog.http2.limits import ConnectionLimits
from binlog.http2.streams import Data, Failed, Request, Whole

from tests.unit.http2 import conformance_cases as cases
from tests.unit.http2.conformance_cases import CASES, Answered, Case, ConnectionEnds, Sent, StreamEnds
from tests.unit.http2.peer import Frame, parse

GREETING = cases.PREFACE + cases.frame(cases.SETTINGS, 0, 0) + cases.SETTLED


def pieces(sent: bytes, how: str) -> list[bytes]:
    if how == "bytes":
        return [sent[at : at + 1] for at in range(len(sent))]
    found = []
    while sent and (at := 9 + int.from_bytes(sent[:3])) < len(sent):
        found.append(sent[:at])
        sent = sent[at:]
    return [*found, sent]


def play(sent: bytes, *, greeted: bool, how: str = "frames", way: str = "general") -> tuple[list[Frame], bool]:
    """(what a server says to these bytes, whether its connection is dead). `way`: whether the connection knows
    single-frame requests; "known": it has seen the usual header block before, so that they are single-frame
    requests."""
    connection = Connection(varying=b"grpc-timeout", single_frame=way != "general")
    dead, output = False, b""
    if greeted:
        assert connection.receive(GREETING, 0.0) == []
        connection.take_output(0)
    if way == "known":
        connection._reader._decoder.request(b"\x20" + cases.REQUEST)
        connection._reader._decoder.request(cases.REQUEST)
    for piece in pieces(sent, how):
        for event in connection.receive(piece, 0.0):
            assert not dead, "an event after the last"
            dead = isinstance(event, Failed)
            if type(event) is tuple:
                stream_id, _, _, body = cast(Whole, event)
                connection.generally(stream_id, len(body))
                connection.credit(stream_id, len(body))
            elif isinstance(event, Request | Data) and event.end:
                stream_id = event.stream_id
            else:
                continue
            connection.send_head(stream_id, b"\x88")
            connection.send_data(stream_id, cases.ANSWER)
            connection.send_end(stream_id)
            connection.finished(stream_id)
            output += b"".join(connection.take_output(1 << 20))
        output += b"".join(connection.take_output(1 << 20))
    return list(parse(output)), dead


def answered(found: list[Frame], stream_id: int) -> bool:
    kinds = [(f.kind, f.flags & cases.END, f.payload) for f in found if f.stream_id == stream_id]
    return kinds == [(cases.HEADERS, 0, b"\x88"), (cases.DATA, cases.END, cases.ANSWER)]


# Only a peer without a header table has blocks that are known.
PLAYED = [
    pytest.param(case, way, id=f"{case.name}, {way}")
    for case in CASES
    for way in ("general", "brief", "known")
    if way != "known" or case.section != "HPACK 3.2"
]


@pytest.mark.parametrize("how", ["frames", "bytes"])
@pytest.mark.parametrize(("case", "way"), PLAYED)
def test_conformance_case_has_expected_frames_for_any_pieces(case: Case, way: str, how: str) -> None:
    found, dead = play(case.sent, greeted=not case.bare, how=how, way=way)
    match case.expected:
        case Answered(stream_ids):
            assert not dead and all(answered(found, stream_id) for stream_id in stream_ids), found
            assert not [f for f in found if f.kind in (cases.RST, cases.GOAWAY)]
        case StreamEnds(code, stream_id):
            resets = [(f.stream_id, int.from_bytes(f.payload)) for f in found if f.kind == cases.RST]
            assert (resets, dead) == ([(stream_id, code)], False), found
            more, dead = play(case.sent + cases.asked(101), greeted=not case.bare, how=how, way=way)
            assert answered(more, 101) and not dead, "the connection goes on"
        case ConnectionEnds(code):
            assert dead and found[-1].kind == cases.GOAWAY, found
            assert int.from_bytes(found[-1].payload[4:8]) == code, found
            more, _ = play(case.sent + cases.asked(101), greeted=not case.bare, how=how, way=way)
            assert [f.kind for f in more] == [f.kind for f in found], "nothing more is answered"
        case Sent(frames):
            assert not dead and found == list(parse(frames))


def test_goaway_names_the_last_stream_that_was_taken() -> None:
    """RFC 9113, 6.8: what is above it may be asked again elsewhere."""
    found, _ = play(cases.asked(1) + cases.asked(7) + cases.rst(9), greeted=True)
    assert found[-1].payload[:8] == cases.word(7) + cases.word(cases.PROTOCOL)


def test_server_settings_are_within_rfc_9113() -> None:
    """RFC 9113, 6.5.2: its first frame, and values that a client must take."""
    found = list(parse(b"".join(Connection().take_output(0))))
    assert (found[0].kind, found[0].flags, found[0].stream_id) == (cases.SETTINGS, 0, 0)
    pairs = [found[0].payload[at : at + 6] for at in range(0, len(found[0].payload), 6)]
    values = {int.from_bytes(pair[:2]): int.from_bytes(pair[2:]) for pair in pairs}
    assert values[1] == 0 and values[3] >= 100 and 65535 <= values[4] <= cases.MAX and values[6] >= 8192
    assert values.get(5, 1 << 14) == 1 << 14, "larger frames would be refused"


# RFC 7541, appendix C: what a sequence of blocks means, with and without Huffman coding; the table is the peer's.

FIRST = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")]
REQUESTS = [
    FIRST,
    [*FIRST, ("cache-control", "no-cache")],
    [
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ],
]
MONDAY = "Mon, 21 Oct 2013 20:13:2"
RESPONSE = [
    (":status", "302"),
    ("cache-control", "private"),
    ("date", f"{MONDAY}1 GMT"),
    ("location", "https://www.example.com"),
]
COOKIE = "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"
RESPONSES = [
    RESPONSE,
    [(":status", "307"), *RESPONSE[1:]],
    [
        (":status", "200"),
        ("cache-control", "private"),
        ("date", f"{MONDAY}2 GMT"),
        ("location", "https://www.example.com"),
        ("content-encoding", "gzip"),
        ("set-cookie", COOKIE),
    ],
]
EXAMPLES = {
    "C.3": (
        REQUESTS,
        "828684410f7777772e6578616d706c652e636f6d",
        "828684be58086e6f2d6361636865",
        "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
    ),
    "C.4": (
        REQUESTS,
        "828684418cf1e3c2e5f23a6ba0ab90f4ff",
        "828684be5886a8eb10649cbf",
        "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
    ),
    "C.5": (
        RESPONSES,
        "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d546e"
        "1768747470733a2f2f7777772e6578616d706c652e636f6d",
        "4803333037c1c0bf",
        "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d"
        "4153444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b20766572"
        "73696f6e3d31",
    ),
    "C.6": (
        RESPONSES,
        "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
        "4883640effc1c0bf",
        "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f"
        "3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_header_decoder_decodes_examples_of_rfc_7541(name: str) -> None:
    """Those of C.5 and C.6 have a table of 256 bytes, from which entries fall."""
    expected, *blocks = EXAMPLES[name]
    decoder = HeaderDecoder(ConnectionLimits())
    for number, (fields, block) in enumerate(zip(expected, blocks, strict=True)):
        resized = b"\x3f\xe1\x01" if name in ("C.5", "C.6") and not number else b""
        found = decoder.fields(resized + bytes.fromhex(block))
        assert [(key.decode(), value.decode()) for key, value in found] == fields
