"""Requests that are one event: the same comes out as the general way brings, and the same is sent."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from binlog.http2 import frames
from binlog.http2.connection import Connection
from binlog.http2.frames import Code
from binlog.http2.limits import ConnectionLimits
from binlog.http2.streams import Data, Failed, Request, Reset
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.http2.peer import (
    GREETING,
    REQUEST,
    block,
    data,
    frame,
    headers,
    parse,
    rst,
    settings,
    under_way,
    window_update,
)

CALL = (*REQUEST, ("grpc-timeout", "15S"))
HEAD, ANSWER, TRAILERS = b"\x88", b"\0\0\0\0\x03abc", b"\x00\x01a\x01b"


def talk(
    *said: bytes, single_frame: bool = True, limits: ConnectionLimits | None = None
) -> tuple[Connection, list[Any]]:
    """A connection that has seen one call, and its events since."""
    connection = Connection(limits, varying=b"grpc-timeout", single_frame=single_frame)
    connection.receive(GREETING + headers(1, CALL) + data(1, b"x", end=True), 1.0)
    connection.answer((1,), HEAD, ANSWER, TRAILERS)
    connection.finished(1)
    connection.take_output(1 << 40)
    return connection, [event for piece in said for event in connection.receive(piece, 2.0)]


def call(stream_id: int, body: bytes = b"body", timeout: str = "14S") -> bytes:
    return headers(stream_id, (*REQUEST, ("grpc-timeout", timeout))) + data(stream_id, body, end=True)


def sent(connection: Connection) -> bytes:
    return b"".join(connection.take_output(1 << 40))


def meaning(events: list[Any]) -> dict[int, list[Any]]:
    """What each stream was told, however many events told it; a failure under 0."""
    found: dict[int, list[Any]] = {}
    for event in events:
        match event:
            case Request(stream_id, head, varying, end):
                found.setdefault(stream_id, []).append((head.path, varying))
                found[stream_id] += [(b"", True)] if end else []
            case Data(stream_id, received, end):
                found.setdefault(stream_id, []).append((received, end))
            case Reset(stream_id, code, _):
                found.setdefault(stream_id, []).append(code)
            case Failed(code, _):
                found.setdefault(0, []).append(code)
            case tuple():
                stream_id, head, varying, received = event
                found.setdefault(stream_id, []).extend([(head.path, varying), (received, True)])
    return found


def test_single_frame_call_is_one_event_and_answered_as_general_call() -> None:
    connection, events = talk(call(3) + call(5, b"other"))
    assert [(event[0], event[2], event[3]) for event in events] == [(3, b"14S", b"body"), (5, b"14S", b"other")]
    assert under_way(connection) == 2
    assert connection.answer((3, 5), HEAD, ANSWER, TRAILERS) == 2
    assert under_way(connection) == 0
    other, _ = talk(call(3) + call(5, b"other"), single_frame=False)
    for stream_id in (3, 5):
        other.send_answer(stream_id, HEAD, ANSWER, TRAILERS)
    assert sent(connection) == sent(other) != b""
    assert connection.answer((3, 5, 7), HEAD, ANSWER, TRAILERS) == 0, "nobody is there any more"


def test_single_frame_call_that_was_reset_is_not_answered() -> None:
    connection, events = talk(call(3) + call(5) + rst(3, Code.CANCEL))
    assert [type(event) for event in events] == [tuple, tuple, Reset] and events[-1].code == Code.CANCEL
    assert under_way(connection) == 2, "until somebody has done with it"
    assert connection.answer((3, 5), HEAD, ANSWER, TRAILERS) == 1
    assert {each.stream_id for each in parse(sent(connection))} == {5} and under_way(connection) == 0


def test_single_frame_answers_wait_for_flow_control_windows() -> None:
    """Of a stream, and of the connection: what does not fit goes out when it does, and in whole."""
    for narrow in (settings(INITIAL_WINDOW_SIZE=4), b""):
        connection, _ = talk(narrow, call(3) + call(5))
        if not narrow:
            connection._outgoing.window = len(ANSWER) + 1
        assert connection.answer((3, 5), HEAD, ANSWER, TRAILERS) == 2
        first = [each for each in parse(sent(connection)) if each.kind == frames.DATA]
        assert sum(len(each.payload) for each in first) == (8 if narrow else len(ANSWER) + 1)
        connection.receive(window_update(0, 100), 3.0)
        if narrow:
            connection.receive(window_update(3, 100) + window_update(5, 100), 3.0)
        rest = [each for each in parse(sent(connection)) if each.kind == frames.DATA]
        assert sum(len(each.payload) for each in first + rest) == 2 * len(ANSWER)
        assert under_way(connection) == 0


def test_single_frame_call_with_missing_data_is_opened_as_general_call() -> None:
    """It counts as under way, and is opened when somebody asks, or by a frame that is not the usual one."""
    connection, events = talk(headers(3, CALL))
    assert events == [] and under_way(connection) == 1
    (opened,) = connection.open_fresh()
    assert (opened.stream_id, opened.varying, opened.end) == (3, b"15S", False)
    assert meaning(connection.receive(data(3, b"late", end=True), 3.0)) == {3: [(b"late", True)]}
    assert meaning(connection.receive(headers(5, CALL) + data(5, b"a"), 3.0)) == {
        5: [(b"/t.T/M", b"15S"), (b"a", False)]
    }


def test_single_frame_call_can_continue_as_general_call() -> None:
    connection, _ = talk(call(3))
    announced, window = ConnectionLimits().connection_window_bytes, connection._window
    connection.generally(3, 4)
    assert window.left + window.credit == announced - 4, "as much as the peer may send, now or soon"
    connection.credit(3, 4)
    assert window.left + window.credit == announced
    connection.send_head(3, HEAD, end=True)
    connection.finished(3)
    assert [(each.kind, each.stream_id) for each in parse(sent(connection))] == [(frames.HEADERS, 3)]
    assert under_way(connection) == 0


def test_single_frame_calls_return_received_bytes_to_window() -> None:
    limits = ConnectionLimits()
    connection, _ = talk(limits=limits)
    granted, body = 0, bytes(frames.FRAME_SIZE_MIN)
    for stream_id in range(3, 3 + 2 * 3000, 2):
        (event,) = connection.receive(call(stream_id, body), 2.0)
        assert event[3] == body
        connection.answer((stream_id,), HEAD, ANSWER, TRAILERS)
        connection._outgoing.window += len(ANSWER)
        for each in parse(sent(connection)):
            if each.kind == frames.WINDOW_UPDATE:
                granted += int.from_bytes(each.payload, "big")
    assert 3000 * len(body) - granted <= limits.connection_window_bytes // 4
    assert connection._window.left <= limits.connection_window_bytes, "never more than was announced"


def test_single_frame_calls_respect_stream_limit_and_draining() -> None:
    limits = ConnectionLimits(streams_max=3)
    connection, events = talk(*(call(number) for number in (3, 5)), headers(7, CALL), call(9), limits=limits)
    assert [event[0] for event in events if type(event) is tuple] == [3, 5]
    assert [each.stream_id for each in parse(sent(connection)) if each.kind == frames.RST_STREAM] == [9]
    connection.answer((3,), HEAD, ANSWER, TRAILERS)
    connection.drain()
    assert not [event for event in connection.receive(call(11), 3.0) if type(event) is tuple]
    assert [each.stream_id for each in parse(sent(connection)) if each.kind == frames.RST_STREAM] == [11]


@pytest.mark.parametrize("single_frame", [True, False])
def test_a_call_above_a_window_is_refused(single_frame: bool) -> None:
    """The connection's, which bytes fill that nobody has taken, and the stream's."""
    filled = headers(3, CALL) + data(3, bytes(16384)) * 3 + data(3, bytes(10_000))
    for size, received, failed in ((6000, [(bytes(6000), True)], None), (7000, [], [Code.FLOW_CONTROL_ERROR])):
        _, events = talk(
            filled,
            call(5, bytes(size)),
            single_frame=single_frame,
            limits=ConnectionLimits(connection_window_bytes=1 << 16),
        )
        found = meaning(events)
        assert (found.get(5, [])[1:], found.get(0)) == (received, failed)
    _, events = talk(
        call(5, bytes(100)),
        call(7, bytes(101)),
        single_frame=single_frame,
        limits=ConnectionLimits(stream_window_bytes=100),
    )
    assert (meaning(events)[5][1:], meaning(events)[7][1:]) == ([(bytes(100), True)], [Code.FLOW_CONTROL_ERROR])


def test_failed_connection_keeps_single_frame_calls_until_answered() -> None:
    connection, events = talk(call(3) + headers(5, CALL) + frame(frames.DATA, b"x", stream_id=0))
    assert type(events[-1]) is Failed and under_way(connection) == 1
    assert connection.answer((3,), HEAD, ANSWER, TRAILERS) == 0 and under_way(connection) == 0


def test_ping_answer_waits_for_next_output() -> None:
    connection, _ = talk(frame(frames.PING, b"12345678") + call(3))
    assert not connection.is_urgent
    connection.answer((3,), HEAD, ANSWER, TRAILERS)
    assert connection.is_urgent
    assert next(parse(sent(connection))).kind == frames.PING and not connection.is_urgent


STREAMS = st.integers(1, 8).map(lambda number: 2 * number + 1)
PIECES = st.one_of(
    st.builds(call, STREAMS, st.binary(max_size=40), st.sampled_from(["14S", "1499u", "15S"])),
    st.builds(headers, STREAMS, st.sampled_from([CALL, REQUEST]), end=st.booleans()),
    st.builds(data, STREAMS, st.binary(max_size=10), end=st.booleans()),
    st.builds(rst, STREAMS),
    st.builds(window_update, STREAMS, st.integers(0, 100)),
    st.builds(lambda number: frame(frames.DATA, b"\x02a\0\0", flags=9, stream_id=number), STREAMS),
    st.builds(
        lambda number: (
            frame(frames.HEADERS, block(CALL), flags=4 | 0x20, stream_id=number)
            + frame(frames.HEADERS, bytes(5) + block(CALL), flags=4 | 0x20, stream_id=number + 2)
        ),
        STREAMS,
    ),
    st.just(frame(frames.PING, b"12345678")),
)


@pytest.mark.parametrize("streams_max", [3, 100])
@given(st.lists(PIECES, max_size=12), st.lists(st.integers(0, 400), max_size=4), st.integers(0, 4))
def test_single_frame_calls_have_same_events_and_output_as_general_calls(
    streams_max: int, pieces: list[bytes], cuts: list[int], answered: int
) -> None:
    """Whatever is sent, in whatever pieces, and whenever some of it is answered."""
    said = b"".join(pieces)
    places = sorted({0, len(said), *(cut for cut in cuts if cut < len(said))})
    both = [
        talk(single_frame=single_frame, limits=ConnectionLimits(streams_max=streams_max))[0]
        for single_frame in (True, False)
    ]
    found: list[list[Any]] = [[], []]
    for begin, end in pairwise(places):
        for connection, events in zip(both, found, strict=True):
            events += connection.receive(said[begin:end], 2.0)
        whole = [event[0] for event in found[0] if type(event) is tuple][:answered]
        for connection in both:
            connection.answer(whole, HEAD, ANSWER, TRAILERS)
    found[0] += both[0].open_fresh()
    single_frame, general = map(meaning, found)
    if 0 in general:  # nobody hears of a call of which only the head had come when its connection failed
        general = {number: told for number, told in general.items() if number in single_frame or len(told) > 1}
    else:
        assert under_way(both[0]) == under_way(both[1])
    assert single_frame == general
    shown = [[(each.kind, each.stream_id, each.payload) for each in parse(sent(each))] for each in both]
    assert sorted(shown[0]) == sorted(shown[1])
