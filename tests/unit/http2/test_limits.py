"""Peers that mean harm: what they can make us hold and do is bounded, and honest ones are not mistaken for them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from binlog.http2 import frames
from binlog.http2.frames import Code
from binlog.http2.headers import encode_fields, encode_response
from binlog.http2.limits import ConnectionLimits
from binlog.http2.streams import Failed, Request

from tests.unit.http2.peer import REQUEST, Talk, block, data, frame, headers, rst, settings, window_update

HEAD = encode_response(200, b"application/grpc")
TRAILERS = encode_fields([(b"grpc-status", b"0")])


def failed(talk: Talk) -> Failed | None:
    return next((event for event in talk.events if isinstance(event, Failed)), None)


Flood = Callable[[int], bytes]
FLOODS: dict[str, Flood] = {
    "pings": lambda _: frame(frames.PING, bytes(8)),
    "acknowledged pings": lambda _: frame(frames.PING, bytes(8), flags=frames.ACK),
    "settings": lambda n: settings(INITIAL_WINDOW_SIZE=n),
    "acknowledged settings": lambda _: frame(frames.SETTINGS, flags=frames.ACK),
    "many settings at once": lambda n: frame(frames.SETTINGS, b"\0\4\0\0\1\1" * 2730),
    "empty data": lambda _: data(1, b""),
    "padding": lambda _: frame(frames.DATA, b"\0", flags=frames.PADDED, stream_id=1),
    "windows of one byte": lambda _: window_update(1, 1),
    "windows of one byte, of the connection": lambda _: window_update(0, 1),
    "windows of streams that are gone": lambda _: window_update(3, 1),
    "priorities": lambda _: frame(frames.PRIORITY, bytes(5), stream_id=1),
    "resets of streams that are gone": lambda _: rst(3),
    "goaway": lambda _: frame(frames.GOAWAY, bytes(8)),
    "extensions": lambda _: frame(77, b"x"),
    "rapid resets": lambda n: headers(2 * n + 5, end=True) + rst(2 * n + 5),
    "requests that are none": lambda n: headers(2 * n + 5, REQUEST[:1]),
    "data of streams that are gone": lambda n: data(3, b"x", end=True),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_the_connection(name: str) -> None:
    talk = Talk()
    talk.say(headers(1), headers(3, end=True), rst(3))
    for number in range(30_000):
        talk.say(FLOODS[name](number))
        if number % 100 == 0:
            talk.heard()
        for event in talk.events:
            if isinstance(event, Request):
                talk.connection.finished(event.stream_id)
        if talk.events and failed(talk):
            break
        talk.events.clear()
    found = failed(talk)
    assert found is not None and found.code is Code.ENHANCE_YOUR_CALM


def test_ping_every_ten_milliseconds_is_allowed() -> None:
    talk = Talk()
    for _ in range(20_000):
        talk.now_s += 0.01
        talk.say(frame(frames.PING, bytes(8)))
        talk.heard()
    assert failed(talk) is None


def test_active_peer_may_send_pings_window_updates_and_resets() -> None:
    """For each of our frames a ping and two windows, as gRPC's clients do; and one call in ten is cancelled."""
    talk = Talk()
    talk.say(settings(INITIAL_WINDOW_SIZE=1 << 20), window_update(0, 1 << 20))
    for number in range(20_000):
        stream_id = 2 * number + 1
        talk.say(headers(stream_id, end=True))
        if number % 10:
            talk.connection.send_answer(stream_id, HEAD, b"answer", TRAILERS)
            talk.heard()
            talk.say(frame(frames.PING, bytes(8)), window_update(0, 6), window_update(stream_id, 6))
        else:
            talk.say(rst(stream_id))
        talk.connection.finished(stream_id)
        talk.now_s += 1e-4
    assert failed(talk) is None


def test_resets_of_calls_that_waited_long_are_allowed() -> None:
    """A pump that stands makes every call run into its deadline."""
    talk = Talk()
    for number in range(4000):
        talk.say(headers(2 * number + 1, end=True))
    talk.now_s += 10
    for number in range(4000):
        talk.say(rst(2 * number + 1))
    assert failed(talk) is None


@pytest.mark.parametrize("how", ["by handlers", "by bytes that nobody takes"])
def test_streams_above_limit_are_refused_until_others_end(how: str) -> None:
    talk = Talk(ConnectionLimits(streams_max=3))
    talk.say(settings(INITIAL_WINDOW_SIZE=0))
    for stream_id in (1, 3, 5, 7):
        talk.say(headers(stream_id, end=True))
        if how == "by bytes that nobody takes" and stream_id < 7:
            talk.connection.send_answer(stream_id, HEAD, b"answer", TRAILERS)
            talk.connection.finished(stream_id)
        elif stream_id < 7:
            talk.say(rst(stream_id))  # its handler has not ended
    assert [e.stream_id for e in talk.events if isinstance(e, Request)] == [1, 3, 5]
    refused = [f for f in talk.heard() if f.kind == frames.RST_STREAM]
    assert [(f.stream_id, f.payload[3]) for f in refused] == [(7, Code.REFUSED_STREAM)]
    if how == "by handlers":
        talk.connection.finished(3)
    else:
        talk.say(window_update(3, 100))
        talk.heard()
    assert [e for e in talk.say(headers(9, end=True)) if isinstance(e, Request)]


@pytest.mark.parametrize("size", [0, 1, 16000])
def test_header_block_without_end_ends_connection(size: int) -> None:
    talk = Talk()
    talk.say(frame(frames.HEADERS, block(), stream_id=1))
    count = 0
    while not talk.say(frame(frames.CONTINUATION, bytes(size), stream_id=1)):
        count += 1
    found = failed(talk)
    assert found is not None and found.code is Code.ENHANCE_YOUR_CALM
    assert count <= 16 and not talk.connection._reader._block


def test_header_block_that_decodes_to_huge_size_ends_connection() -> None:
    """A small block that names one large field of the table many times."""
    from hpack import Encoder

    encoder = Encoder()
    first = encoder.encode([*REQUEST, ("bomb", "x" * 3000)], huffman=False)
    again = encoder.encode([*REQUEST, *[("bomb", "x" * 3000)] * 1000])
    assert len(again) < 1100
    talk = Talk()
    talk.say(frame(frames.HEADERS, first, flags=4, stream_id=1))
    assert failed(talk) is None
    talk.say(frame(frames.HEADERS, again, flags=4, stream_id=3))
    found = failed(talk)
    assert found is not None and found.code is Code.ENHANCE_YOUR_CALM


def test_late_frames_on_forgotten_streams_reset_streams_only() -> None:
    talk = Talk(ConnectionLimits(remembered_streams_max=10))
    for number in range(100):
        talk.say(headers(2 * number + 1))
        talk.connection.send_head(2 * number + 1, HEAD, end=True)
        talk.connection.finished(2 * number + 1)
    talk.heard()
    talk.say(data(1, b"late"), data(199, b"late"))
    assert [(f.kind, f.stream_id) for f in talk.heard()] == [(frames.RST_STREAM, 1)]
    assert failed(talk) is None


@pytest.mark.slow
def test_connection_memory_is_bounded_for_peer_that_never_ends_streams() -> None:
    """A peer that begins streams, sends what its windows allow, and never ends or reads anything."""
    limits = ConnectionLimits(streams_max=200, stream_window_bytes=1 << 16, connection_window_bytes=1 << 18)
    talk = Talk(limits)
    tracemalloc.start()
    try:
        for number in range(5000):
            stream_id = 2 * number + 1
            talk.say(headers(stream_id, (*REQUEST, ("x", str(number) * 50))), data(stream_id, bytes(100)))
            talk.events.clear()
            talk.heard()
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()


def test_data_under_way_to_streams_reset_by_us_is_not_counted_as_flood() -> None:
    """Calls refused for want of room have sent a window's worth each before they know."""
    talk = Talk(ConnectionLimits(budget_max=100.0))
    for number in range(50):
        stream_id = 2 * number + 1
        talk.say(headers(stream_id))
        talk.connection.reset(stream_id, Code.NO_ERROR)
        events = talk.say(*(data(stream_id, bytes(16384)) for _ in range(8)))
        talk.connection.finished(stream_id)
        assert events == []
    granted = sum(int.from_bytes(found.payload) for found in talk.heard() if found.kind == frames.WINDOW_UPDATE)
    assert granted >= 50 * 8 * 16384 - (8 << 20), "the connection's window is open again"
    assert failed(talk) is None
    talk.say(*(data(1, b"") for _ in range(2000)))
    assert failed(talk) is not None, "more than a window's worth"
