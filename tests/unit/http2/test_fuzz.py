"""Whatever comes: no exception, no output that is no frames, no event after the last, and bounded memory.

The corpus is kept: whole conversations, from which bytes are cut, flipped, repeated and exchanged.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import cast

import pytest
from binlog.http2.connection import Connection
from binlog.http2.headers import encode_fields, encode_response
from binlog.http2.limits import ConnectionLimits
from binlog.http2.streams import Data, Event, Failed, Request, Whole
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.http2.peer import GREETING, data, frame, headers, parse
from tests.unit.http2.test_connection import FLOW

HEAD = encode_response(200, b"application/grpc")
TRAILERS = encode_fields([(b"grpc-status", b"0")])
CORPUS = [path.read_bytes() for path in sorted((Path(__file__).parent / "corpus").glob("*.bin"))]
LIMITS = ConnectionLimits(streams_max=20, stream_window_bytes=1 << 16, connection_window_bytes=1 << 17)


def play(pieces: list[bytes]) -> list[Event]:
    """Feed two connections, one of which knows single-frame requests. The events of the other."""
    single_frame, general = (play_one(pieces, is_single_frame=is_single_frame) for is_single_frame in (True, False))
    assert [e for e in single_frame if isinstance(e, Failed)] == [e for e in general if isinstance(e, Failed)]
    return general


def play_one(pieces: list[bytes], *, is_single_frame: bool) -> list[Event]:
    """Feed a connection and answer as a server does."""
    connection = Connection(LIMITS, varying=b"grpc-timeout", single_frame=is_single_frame)
    found: list[Event] = []
    output = b""
    for piece in pieces:
        for number, event in enumerate(connection.receive(piece, 0.0)):
            assert not (found and isinstance(found[-1], Failed)), "an event after the last"
            found.append(event)
            if type(event) is tuple:
                stream_id, _, _, body = cast(Whole, event)
                if number % 2:
                    connection.answer((stream_id,), HEAD, b"answer", TRAILERS)
                else:
                    connection.generally(stream_id, len(body))
                    connection.credit(stream_id, len(body))
                    connection.send_answer(stream_id, HEAD, b"answer", TRAILERS)
                    connection.finished(stream_id)
            if isinstance(event, Data):
                connection.credit(event.stream_id, len(event.data))
            if isinstance(event, Data | Request) and event.end:
                connection.send_answer(event.stream_id, HEAD, b"answer", TRAILERS)
                connection.finished(event.stream_id)
        output += b"".join(connection.take_output(1 << 16))
    list(parse(output))
    assert len(connection._reader._rest) <= 16384 + 9
    assert len(connection._reader._block) <= LIMITS.header_block_bytes_max + 16384
    assert len(connection._streams.general) <= LIMITS.streams_max
    return found


@given(st.lists(st.binary(max_size=200), max_size=10))
def test_connection_handles_any_bytes_without_exception(pieces: list[bytes]) -> None:
    play(pieces)
    play([GREETING, *pieces])


@given(
    st.lists(
        st.builds(
            frame,
            st.integers(0, 11),
            st.binary(max_size=60),
            flags=st.integers(0, 255),
            stream_id=st.sampled_from([0, 1, 3, 5, 2, 2**31 - 1]),
        ),
        max_size=12,
    )
)
def test_connection_handles_any_frames_without_exception(found: list[bytes]) -> None:
    play([GREETING, headers(1), *found])
    play([GREETING, headers(1, end=True), data(1, b"x"), *found])


def test_conversation_cut_anywhere_is_no_error() -> None:
    for end in range(len(FLOW)):
        events = play([FLOW[:end]])
        assert not any(isinstance(event, Failed) for event in events), "nothing is wrong with a beginning"


@pytest.mark.parametrize("number", range(len(CORPUS)))
def test_mutated_client_conversations_raise_no_exception(number: int) -> None:
    whole = CORPUS[number]
    assert not any(isinstance(event, Failed) for event in play([whole]))
    chance = random.Random(number)
    for _ in range(400):
        found = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(found))
            what = chance.randrange(4)
            if what == 0:
                found[at] ^= 1 << chance.randrange(8)
            elif what == 1:
                del found[at : at + chance.randint(1, 20)]
            elif what == 2:
                found[at:at] = found[at : at + chance.randint(1, 60)]
            else:
                found[at] = chance.randrange(256)
        cut = chance.randrange(len(found) + 1)
        play([bytes(found[:cut]), bytes(found[cut:])])
