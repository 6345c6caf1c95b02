"""Flow control both ways: nothing is sent that was not allowed, all of it arrives, and nobody is starved."""

from __future__ import annotations

from collections import defaultdict

import pytest
from binlog.http2 import frames
from binlog.http2.frames import Code
from binlog.http2.headers import encode_fields, encode_response
from binlog.http2.limits import ConnectionLimits
from binlog.http2.streams import TRANSITIONS, Data, Failed, Reset, State, Step
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.http2.peer import GREETING, Talk, data, headers, rst, settings, window_update

HEAD = encode_response(200, b"application/grpc")
TRAILERS = encode_fields([(b"grpc-status", b"0")])
SMALL = ConnectionLimits(stream_window_bytes=100_000, connection_window_bytes=150_000)


def sent(talk: Talk, bytes_max: int = 1 << 40) -> dict[int, bytes]:
    """Data that goes out now, by stream."""
    found: dict[int, bytes] = defaultdict(bytes)
    for frame in talk.heard(bytes_max):
        if frame.kind == frames.DATA:
            found[frame.stream_id] += frame.payload
    return found


@given(
    st.lists(st.integers(1, 30_000), min_size=1, max_size=8),
    st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(1, 60_000)), max_size=20),
    st.integers(0, 200_000),
)
@example([30_000] * 5, [(0, 1), (0, 20_000)], 200_000)
@example([30_000] * 5, [(1, 1), (1, 20_000)], 50_000)
def test_data_is_sent_as_windows_allow_and_completely(
    sizes: list[int], updates: list[tuple[int, int]], initial: int
) -> None:
    talk = Talk(greeting=GREETING + settings(INITIAL_WINDOW_SIZE=initial))
    talk.say(headers(1, end=True))
    allowed = {0: 65535, 1: initial}
    messages = [(bytes(range(number, 251)) * (size // 200 + 1))[:size] for number, size in enumerate(sizes)]
    talk.connection.send_head(1, HEAD)
    for message in messages:
        talk.connection.send_data(1, message)
    talk.connection.send_end(1, TRAILERS)
    whole, got, ended = b"".join(messages), b"", False
    for where, increment in [*updates, (0, 1 << 20), (1, 1 << 20)]:
        for frame in talk.heard():
            if frame.kind == frames.DATA:
                assert not ended
                got += frame.payload
            ended = ended or bool(frame.flags & frames.END_STREAM and frame.kind == frames.HEADERS)
        assert len(got) <= min(allowed.values())
        assert len(got) == min(*allowed.values(), len(whole)), "and not less than that"
        assert ended == (got == whole)
        talk.say(window_update(where, increment))
        allowed[where] += increment
    rest = talk.heard()
    got += b"".join(frame.payload for frame in rest if frame.kind == frames.DATA)
    assert got == whole


def test_a_stream_without_window_does_not_stop_the_others() -> None:
    talk = Talk()
    talk.say(settings(INITIAL_WINDOW_SIZE=10), headers(1, end=True), headers(3, end=True))
    talk.connection.send_data(1, b"a" * 50)
    talk.connection.send_data(3, b"b" * 50)
    assert sent(talk) == {1: b"a" * 10, 3: b"b" * 10}
    assert not talk.connection.has_data_ready
    talk.say(window_update(3, 40))
    assert sent(talk) == {3: b"b" * 40}
    talk.say(settings(INITIAL_WINDOW_SIZE=30))
    assert sent(talk) == {1: b"a" * 20}
    talk.say(settings(INITIAL_WINDOW_SIZE=0), window_update(1, 25))
    assert sent(talk) == {}, "a window may become negative"
    talk.say(window_update(1, 20))
    assert sent(talk) == {1: b"a" * 15}


def test_streams_send_data_in_turns() -> None:
    talk = Talk()
    talk.say(window_update(0, 1 << 30), settings(INITIAL_WINDOW_SIZE=1 << 30))
    for stream_id in (1, 3, 5):
        talk.say(headers(stream_id, end=True))
        talk.connection.send_data(stream_id, bytes(100_000))
    order = [frame.stream_id for frame in talk.heard(6 * 16384) if frame.kind == frames.DATA]
    assert order == [1, 3, 5, 1, 3, 5]
    assert talk.connection.has_data_ready and talk.connection.waiting_bytes(1) == 100_000 - 2 * 16384


def test_data_frames_have_size_accepted_by_peer_up_to_64_kib() -> None:
    talk = Talk()
    talk.say(window_update(0, 1 << 30), settings(INITIAL_WINDOW_SIZE=1 << 30, MAX_FRAME_SIZE=20_000), headers(1))
    talk.connection.send_data(1, bytes(40_001))
    assert [len(f.payload) for f in talk.heard() if f.kind == frames.DATA] == [20_000, 20_000, 1]
    talk.say(settings(MAX_FRAME_SIZE=(1 << 24) - 1))
    talk.connection.send_data(1, bytes(100_000))
    assert [len(f.payload) for f in talk.heard() if f.kind == frames.DATA] == [65536, 34464]


def test_answer_larger_than_window_waits_for_update() -> None:
    talk = Talk()
    talk.say(settings(INITIAL_WINDOW_SIZE=3), headers(1, end=True))
    talk.connection.send_answer(1, HEAD, b"answer", TRAILERS)
    assert sent(talk) == {1: b"ans"}
    talk.say(window_update(1, 100))
    body, trailers = talk.heard()
    assert body.payload == b"wer" and trailers.flags & frames.END_STREAM


def test_stream_end_without_trailers_is_flag_on_data() -> None:
    talk = Talk()
    talk.say(headers(1, end=True), headers(3, end=True))
    talk.connection.send_data(1, b"body")
    talk.connection.send_end(1)
    talk.connection.send_end(3)
    found = [(f.stream_id, f.payload, f.flags) for f in talk.heard()]
    assert sorted(found) == [(1, b"body", frames.END_STREAM), (3, b"", frames.END_STREAM)]


# What we receive


def test_data_above_stream_window_resets_stream() -> None:
    talk = Talk(SMALL)
    talk.say(headers(1), *[data(1, bytes(16384))] * 6)
    (reset,) = talk.say(data(1, bytes(16384)))
    assert isinstance(reset, Reset) and reset.code == Code.FLOW_CONTROL_ERROR
    talk.say(headers(3))
    assert talk.say(data(3, b"x")) == [Data(3, b"x", False)]


def test_data_above_connection_window_ends_connection() -> None:
    talk = Talk(SMALL)
    talk.say(headers(1), headers(3))
    for stream_id in (1, 3):
        talk.say(*[data(stream_id, bytes(16384))] * 5)
    failed = talk.events[-1]
    assert isinstance(failed, Failed) and failed.code is Code.FLOW_CONTROL_ERROR


@given(st.lists(st.integers(1, 16384), max_size=60), st.data())
def test_credited_bytes_are_returned_to_peer_windows(sizes: list[int], choose: st.DataObject) -> None:
    """A peer that keeps to its windows is never refused, and as long as all is taken it is never stopped."""
    talk = Talk(SMALL)
    talk.say(headers(1))
    windows = {0: 150_000, 1: 100_000}
    untaken = 0
    for size in sizes:
        for frame in talk.heard():
            if frame.kind == frames.WINDOW_UPDATE:
                windows[frame.stream_id] += int.from_bytes(frame.payload, "big")
        if min(windows.values()) < size:
            assert untaken > 20_000, "stopped, though nearly everything was taken"
            continue
        assert talk.say(data(1, bytes(size))) == [Data(1, bytes(size), False)]
        windows[0] -= size
        windows[1] -= size
        untaken += size
        taken = choose.draw(st.integers(0, untaken))
        talk.connection.credit(1, taken)
        untaken -= taken


@pytest.mark.parametrize("how", ["reset by the peer", "reset by us", "ended by us", "refused"])
def test_bytes_of_ended_stream_are_returned_to_connection_window(how: str) -> None:
    """Else a connection would come to a stand after so many."""
    talk = Talk(SMALL)
    for number in range(100):
        stream_id = 2 * number + 1
        talk.say(headers(stream_id), data(stream_id, bytes(16384)))
        if how == "reset by the peer":
            talk.say(rst(stream_id))
        elif how == "reset by us":
            talk.connection.reset(stream_id, Code.CANCEL)
        elif how == "ended by us":
            talk.connection.send_head(stream_id, HEAD, end=True)
        else:
            talk.say(data(stream_id, b"", end=True), data(stream_id, bytes(1000)))
        talk.connection.finished(stream_id)
        talk.connection.credit(stream_id, 16384)
    assert not any(isinstance(event, Failed) for event in talk.events)
    granted = sum(int.from_bytes(f.payload, "big") for f in talk.heard() if f.kind == frames.WINDOW_UPDATE)
    assert granted > 90 * 16384


def test_stream_states_lead_only_towards_closed() -> None:
    """Every state leads to the end, and nothing leads back."""
    order = list(State)
    for state, steps in TRANSITIONS.items():
        assert all(order.index(after) > order.index(state) or after is State.CLOSED for after in steps.values())
        assert state is State.CLOSED or steps[Step.RESET] is State.CLOSED


def test_padding_is_returned_to_windows_at_once() -> None:
    """Nobody takes it: it is given back at once, on the stream and on the connection."""
    limits = ConnectionLimits(stream_window_bytes=64 << 10, connection_window_bytes=128 << 10)
    talk = Talk(limits)
    talk.say(headers(1))
    padded = frames.frame_header(257, frames.DATA, frames.PADDED, 1) + b"\xffx" + bytes(255)
    for _ in range(4000):
        for event in talk.say(padded):
            assert isinstance(event, Data) and event.data == b"x"
            talk.connection.credit(1, 1)
    granted = {0: 0, 1: 0}
    for found in talk.heard():
        if found.kind == frames.WINDOW_UPDATE:
            granted[found.stream_id] += int.from_bytes(found.payload)
    assert min(granted.values()) > 4000 * 257 - (64 << 10)


def test_one_stream_carries_gigabytes_in_both_directions() -> None:
    """More than a window can ever be, in both directions at once: what counts bytes does not end at 2^31."""
    talk = Talk()
    connection, total = talk.connection, 9 << 28
    talk.say(settings(MAX_FRAME_SIZE=1 << 20, INITIAL_WINDOW_SIZE=4 << 20), window_update(0, 4 << 20), headers(1))
    connection.send_head(1, HEAD)
    may_send = {0: ConnectionLimits().connection_window_bytes, 1: ConnectionLimits().stream_window_bytes}
    upload, upload_bytes, piece = data(1, bytes(1 << 14)) * 16, 16 << 14, memoryview(bytes(1 << 20))
    queued = uploaded = downloaded = 0
    while downloaded < total or uploaded < total:
        if min(may_send.values()) >= upload_bytes:
            for event in connection.receive(upload, 100.0):
                assert isinstance(event, Data)
                connection.credit(1, len(event.data))
            may_send = {stream_id: left - upload_bytes for stream_id, left in may_send.items()}
            uploaded += upload_bytes
        while queued < total and connection.waiting_bytes(1) < len(piece):
            connection.send_data(1, piece)
            queued += len(piece)
        came = 0
        for found in talk.heard():
            if found.kind == frames.WINDOW_UPDATE:
                may_send[found.stream_id] += int.from_bytes(found.payload)
            elif found.kind == frames.DATA:
                came += len(found.payload)
        downloaded += came
        if came:
            assert connection.receive(window_update(1, came) + window_update(0, came), 100.0) == []
    assert uploaded >= total and downloaded == queued
