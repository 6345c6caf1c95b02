"""Calls that a sink answers, on a connection without a socket: of peers that may make none, and the room they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from binlog.errors import BinlogError
from binlog.rpc.messages import PREFIX, Buffer
from binlog.rpc.method import Asker, Method
from binlog.rpc.session import Session, Settings
from binlog.rpc.status import RpcError, Status
from binlog.rpc.waiting import Waiting

from pump.rpc.admission import InFlight
from tests.unit.http2.peer import GREETING, REQUEST, data, headers
from tests.unit.rpc.sniffing import Transport

HEAD = (*REQUEST[:2], (":path", "/t/Later"), ("content-type", "application/grpc"), ("te", "trailers"))


class Sink:
    """Takes calls, and refuses those at once that say so."""

    def __init__(self) -> None:
        self.taken: list[tuple[Asker, int]] = []

    def __call__(self, asker: Asker, numbers: Sequence[int], requests: Sequence[Buffer]) -> None:
        if b"no" in requests:
            raise BinlogError("refused at once")
        self.taken += [(asker, number) for number in numbers]


def call(stream_id: int, body: bytes) -> bytes:
    return headers(stream_id, HEAD) + data(stream_id, PREFIX.pack(0, len(body)) + body, end=True)


def connected(sink: Sink, **more: Any) -> tuple[Session, Transport]:
    def translate(error: Exception) -> RpcError:
        return RpcError(Status.ABORTED, str(error))

    method = Method(unary=None, sink=sink, counted=True, translate=translate)
    session = Session(Settings({b"/t/Later": method}, Waiting(), **more), lambda _: True, lambda _: None)
    transport = Transport()
    session.connection_made(transport)  # type: ignore[arg-type]
    session.data_received(GREETING)
    return session, transport


@pytest.mark.parametrize("together", [False, True])
async def test_batched_unary_calls_of_peer_without_permission_are_each_refused(together: bool) -> None:
    """Also those with a head that is known by now, which take another way."""
    sink = Sink()
    session, transport = connected(sink, refuse=lambda _transport: "its name is not in cert-allowed-cn")
    calls = [call(stream_id, b"x") for stream_id in (1, 3, 5, 7)]
    for piece in [b"".join(calls)] if together else calls:
        session.data_received(piece)
    assert transport.written.count(b"its name is not in cert-allowed-cn") == len(calls)
    assert not sink.taken


@pytest.mark.parametrize("stream_ids", [(1,), (1, 3), (1, 3, 5)])
async def test_batched_unary_calls_release_memory_budget_when_refused_or_answered(stream_ids: Sequence[int]) -> None:
    """At once, one by one or together, and later."""
    sink, room = Sink(), InFlight()
    session, _ = connected(sink, room=room)
    session.data_received(call(stream_ids[0], b"first"))
    session.data_received(b"".join(call(stream_id, b"no") for stream_id in stream_ids[1:]))
    assert room.bytes == len(b"first")
    session.data_received(b"".join(call(stream_id + 10, b"later") for stream_id in stream_ids))
    assert room.bytes == len(b"first") + len(stream_ids) * len(b"later")
    for asker, number in sink.taken:
        assert asker.answer((number,), b"") if number == 13 else asker.refuse(number, BinlogError("refused later"))
    assert room.bytes == 0


async def test_batched_unary_calls_above_memory_budget_hold_it_for_accepted_ones_only() -> None:
    sink, room = Sink(), InFlight(10)
    session, _ = connected(sink, room=room)
    session.data_received(call(1, b""))
    session.data_received(call(3, b"sixsix") + call(5, b"sixsix"))
    assert (room.bytes, len(sink.taken)) == (6, 2)
    for asker, number in sink.taken:
        asker.answer((number,), b"")
    assert room.bytes == 0
