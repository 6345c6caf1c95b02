"""Requests and responses, whatever the pieces in which bytes come; and what ends a stream or a connection."""

from __future__ import annotations

import itertools

import pytest
from binlog.http2 import frames
from binlog.http2.connection import Connection
from binlog.http2.frames import Code, Setting
from binlog.http2.headers import encode_fields, encode_response
from binlog.http2.streams import Data, Event, Request, Reset
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.http2.peer import (
    GREETING,
    REQUEST,
    Talk,
    block,
    data,
    frame,
    headers,
    rst,
    under_way,
    window_update,
)

HEAD = encode_response(200, b"application/grpc")
TRAILERS = encode_fields([(b"grpc-status", b"0")])
FLOW = (
    GREETING
    + headers(1, (*REQUEST, ("grpc-timeout", "5S")))
    + data(1, b"first")
    + data(1, b"second", end=True)
    + frame(frames.PING, b"01234567")
    + headers(3, end=True)
    + headers(5)
    + data(5, b"x" * 600)
    + window_update(0, 70000)
    + frame(250, b"of an extension")
    + rst(5)
)


def plain(events: list[Event]) -> list[object]:
    """Events as values that can be compared."""
    return [
        (event.stream_id, event.head.path, event.head.fields, event.varying, event.end)
        if isinstance(event, Request)
        else tuple(event)
        for event in events
    ]


def test_connection_announces_its_limits_first() -> None:
    talk = Talk()
    first, window, ack = talk.first
    values = dict(frames.SETTING.iter_unpack(first.payload))
    assert values[Setting.HEADER_TABLE_SIZE] == 0
    assert values[Setting.MAX_CONCURRENT_STREAMS] == 4096
    assert values[Setting.INITIAL_WINDOW_SIZE] == 1 << 20
    assert (window.kind, int.from_bytes(window.payload, "big")) == (frames.WINDOW_UPDATE, (8 << 20) - 65535)
    assert (ack.kind, ack.flags) == (frames.SETTINGS, frames.ACK)


def test_connection_delivers_request_and_sends_answer_with_trailers() -> None:
    talk = Talk()
    (request,) = talk.say(headers(1, (*REQUEST, ("grpc-timeout", "99m"))))
    assert isinstance(request, Request)
    assert (request.head.method, request.head.path, request.varying) == (b"POST", b"/t.T/M", b"99m")
    assert request.head.get(b"te") == b"trailers" and not request.end
    assert talk.say(data(1, b"abc", end=True)) == [Data(1, b"abc", True)]
    talk.connection.credit(1, 3)
    talk.connection.send_answer(1, HEAD, b"answer", TRAILERS)
    head, body, trailers = talk.heard()
    assert talk.fields(head) == [(":status", "200"), ("content-type", "application/grpc")]
    assert (body.kind, body.payload, body.flags) == (frames.DATA, b"answer", 0)
    assert talk.fields(trailers) == [("grpc-status", "0")] and trailers.flags & frames.END_STREAM
    talk.connection.finished(1)
    assert under_way(talk.connection) == 0
    talk.connection.send_data(1, b"late")
    talk.connection.reset(1, Code.CANCEL)
    assert talk.heard() == []


@given(st.lists(st.integers(1, len(FLOW) - 1), max_size=40))
def test_events_do_not_depend_on_pieces_of_input(cuts: list[int]) -> None:
    whole, cut = Connection(varying=b"grpc-timeout"), Connection(varying=b"grpc-timeout")
    expected = plain(whole.receive(FLOW, 0.0))
    places = [0, *sorted(cuts), len(FLOW)]
    found: list[Event] = []
    for begin, end in itertools.pairwise(places):
        found += cut.receive(FLOW[begin:end], 0.0)
    assert plain(found) == expected
    assert b"".join(cut.take_output(0)) == b"".join(whole.take_output(0))
    assert len(expected) == 7 and isinstance(found[-1], Reset)


def test_events_of_input_byte_by_byte_equal_those_of_whole_input() -> None:
    connection = Connection(varying=b"grpc-timeout")
    found = [event for byte in FLOW for event in connection.receive(bytes((byte,)), 0.0)]
    assert plain(found) == plain(Connection(varying=b"grpc-timeout").receive(FLOW, 0.0))


def test_padding_and_priority_are_removed() -> None:
    talk = Talk()
    padded = b"\x03" + b"\x00\x00\x00\x00\x10" + block() + bytes(3)
    flags = frames.END_HEADERS | frames.PADDED | frames.PRIORITIZED
    (request,) = talk.say(frame(frames.HEADERS, padded, flags=flags, stream_id=1))
    assert isinstance(request, Request)
    assert talk.say(frame(frames.DATA, b"\x04data" + bytes(4), flags=frames.PADDED, stream_id=1)) == [
        Data(1, b"data", False)
    ]


def test_own_ping_is_sent_and_its_acknowledgement_taken() -> None:
    talk = Talk()
    talk.connection.ping(b"from us.")
    assert talk.heard() == [(frames.PING, 0, 0, b"from us.")]
    assert talk.say(frame(frames.PING, b"from us.", flags=frames.ACK)) == []


def test_answer_before_end_of_request_stops_the_peer() -> None:
    """The peer is told to send no more, and what it had sent by then does no harm; its bytes are given back."""
    talk = Talk()
    talk.say(headers(1))
    talk.connection.send_head(1, HEAD, end=True)
    assert [(f.kind, f.payload) for f in talk.heard()][1:] == [(frames.RST_STREAM, bytes(4))]
    window = talk.connection._window.left + talk.connection._window.credit
    assert talk.say(data(1, b"late"), headers(1, (("x", "y"),), end=True), window_update(1, 5), rst(1)) == []
    assert talk.connection._window.left + talk.connection._window.credit == window
    assert talk.heard() == []


def test_stream_reset_by_peer_is_reported_and_not_answered() -> None:
    talk = Talk()
    talk.say(headers(1), data(1, b"abc"))
    assert talk.say(rst(1, 8)) == [Reset(1, 8, "the peer cancelled it")]
    assert under_way(talk.connection) == 1, "until its handler has ended"
    talk.connection.send_answer(1, HEAD, b"late", TRAILERS)
    assert talk.heard() == []


def test_draining_connection_finishes_streams_and_refuses_new_ones() -> None:
    """What is under way goes on; what comes later may be sent elsewhere."""
    talk = Talk()
    talk.say(headers(1))
    talk.connection.drain()
    talk.connection.drain()
    (goaway,) = talk.heard()
    assert (goaway.kind, goaway.payload[:8]) == (frames.GOAWAY, b"\0\0\0\1\0\0\0\0")
    assert talk.say(headers(3, end=True)) == []
    assert [(f.kind, f.stream_id, f.payload[3]) for f in talk.heard()] == [(frames.RST_STREAM, 3, Code.REFUSED_STREAM)]
    assert talk.say(data(1, b"x", end=True)) == [Data(1, b"x", True)]
    talk.connection.send_answer(1, HEAD, b"answer", TRAILERS)
    assert len(talk.heard()) == 3


@pytest.mark.parametrize("late", [data(1, b"x"), headers(1, end=True)], ids=["data", "a header block"])
def test_frame_after_end_of_request_resets_stream_and_connection_continues(late: bytes) -> None:
    """Before it is answered; what comes afterwards has its cases in `conformance_cases`."""
    talk = Talk()
    talk.say(headers(1, end=True) + late)
    resets = [(f.stream_id, int.from_bytes(f.payload, "big")) for f in talk.heard() if f.kind == frames.RST_STREAM]
    assert resets == [(1, Code.STREAM_CLOSED)]
    (request,) = talk.say(headers(3, end=True))
    assert isinstance(request, Request), "the connection goes on"
