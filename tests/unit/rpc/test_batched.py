"""Batched unary calls, on a connection without a socket: of peers that may make none, and the memory they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from binlog.errors import BinlogError
from binlog.rpc.messages import PREFIX, Buffer
from binlog.rpc.method import Method, Responder
from binlog.rpc.session import RpcSession, Settings
from binlog.rpc.status import RpcError, Status

from pump.rpc.admission import InFlight
from tests.unit.http2.peer import GREETING, REQUEST, data, headers
from tests.unit.rpc.sniffing import Transport

HEAD = (*REQUEST[:2], (":path", "/t/Later"), ("content-type", "application/grpc"), ("te", "trailers"))


class BatchedUnary:
    """Takes calls, and refuses those at once that say so."""

    def __init__(self) -> None:
        self.taken: list[tuple[Responder, int]] = []

    def __call__(self, responder: Responder, numbers: Sequence[int], requests: Sequence[Buffer]) -> None:
        if b"no" in requests:
            raise BinlogError("refused at once")
        self.taken += [(responder, number) for number in numbers]


def call(stream_id: int, body: bytes) -> bytes:
    return headers(stream_id, HEAD) + data(stream_id, PREFIX.pack(0, len(body)) + body, end=True)


def connected(batched: BatchedUnary, **more: Any) -> tuple[RpcSession, Transport]:
    def translate(error: Exception) -> RpcError:
        return RpcError(Status.ABORTED, str(error))

    method = Method(batched=batched, counted=True, translate=translate)
    session = RpcSession(Settings({b"/t/Later": method}, **more), lambda _: True, lambda _: None)
    transport = Transport()
    session.connection_made(transport)  # type: ignore[arg-type]
    session.data_received(GREETING)
    return session, transport


@pytest.mark.parametrize("together", [False, True])
async def test_batched_unary_calls_of_peer_without_permission_are_each_refused(together: bool) -> None:
    """Also those with a head that is known by now, which take another way."""
    batched = BatchedUnary()
    session, transport = connected(batched, refuse=lambda _transport: "its name is not in cert-allowed-cn")
    calls = [call(stream_id, b"x") for stream_id in (1, 3, 5, 7)]
    for piece in [b"".join(calls)] if together else calls:
        session.data_received(piece)
    assert transport.written.count(b"its name is not in cert-allowed-cn") == len(calls)
    assert not batched.taken


@pytest.mark.parametrize("stream_ids", [(1,), (1, 3), (1, 3, 5)])
async def test_batched_unary_calls_release_memory_budget_when_refused_or_answered(stream_ids: Sequence[int]) -> None:
    """At once, one by one or together, and later."""
    batched, budget = BatchedUnary(), InFlight()
    session, _ = connected(batched, budget=budget)
    session.data_received(call(stream_ids[0], b"first"))
    session.data_received(b"".join(call(stream_id, b"no") for stream_id in stream_ids[1:]))
    assert budget.bytes == len(b"first")
    session.data_received(b"".join(call(stream_id + 10, b"later") for stream_id in stream_ids))
    assert budget.bytes == len(b"first") + len(stream_ids) * len(b"later")
    for responder, number in batched.taken:
        assert (
            responder.answer((number,), b"") if number == 13 else responder.refuse(number, BinlogError("refused later"))
        )
    assert budget.bytes == 0


async def test_batched_unary_calls_above_memory_budget_hold_it_for_accepted_ones_only() -> None:
    batched, budget = BatchedUnary(), InFlight(10)
    session, _ = connected(batched, budget=budget)
    session.data_received(call(1, b""))
    session.data_received(call(3, b"sixsix") + call(5, b"sixsix"))
    assert (budget.bytes, len(batched.taken)) == (6, 2)
    for responder, number in batched.taken:
        responder.answer((number,), b"")
    assert budget.bytes == 0
