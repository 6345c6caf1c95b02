"""When a message goes on, and when it only seems to."""

from __future__ import annotations

from typing import Any

import pytest
from binlog.rpc.bidi import BidiCall
from binlog.rpc.call import STALL_SHARE, Call, SingleCall
from binlog.rpc.messages import PREFIX, Buffer
from binlog.rpc.method import Method, Unlimited

MIB = 1 << 20


class Link:
    """A connection that takes everything."""

    room = Unlimited()

    def __getattr__(self, name: str) -> Any:
        return lambda *_arguments, **_named: 0


async def echo(request: Buffer) -> bytes:
    return bytes(request)


async def each(requests: Any) -> Any:
    async for received in requests:
        yield bytes(received.data)


def fed(call: Call, data: bytes, now_s: float) -> float:
    """When it went on last."""
    call.progressed(len(data), now_s)
    call.on_data(data, end=False)
    return call.received_s


@pytest.mark.parametrize("kind", [SingleCall, BidiCall])
async def test_a_large_message_goes_on_by_its_share(kind: Any) -> None:
    handlers = {"unary": echo} if kind is SingleCall else {"bidi": each}
    method = Method(request_bytes_max=64 * MIB, **handlers)  # type: ignore[arg-type]
    call: Call = kind(Link(), 1, b"/t", method, gzip=False)
    assert fed(call, PREFIX.pack(0, 60 * MIB)[:3], 10.0) == 10.0
    assert fed(call, PREFIX.pack(0, 60 * MIB)[3:], 20.0) == 20.0, "its length is not known before"
    for second in range(10):
        assert fed(call, b"x", 30.0 + second) == 20.0
    share = 60 * MIB // STALL_SHARE
    assert fed(call, bytes(share - 11), 41.0) == 20.0
    assert fed(call, b"x", 42.0) == 42.0
    assert fed(call, b"x", 43.0) == 42.0
    call.cancel()


async def test_a_small_message_goes_on_by_each_byte() -> None:
    call = SingleCall(Link(), 1, b"/t", Method(unary=echo), gzip=False)
    assert fed(call, PREFIX.pack(0, 50), 10.0) == 10.0
    assert [fed(call, b"x", second) for second in (20.0, 30.0)] == [20.0, 30.0]
