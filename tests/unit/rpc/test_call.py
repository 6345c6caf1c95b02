"""When a message goes on, and when it only seems to."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from binlog.rpc.call import STALL_SHARE, BidiCall, Call, SingleCall
from binlog.rpc.messages import PREFIX, Buffer
from binlog.rpc.method import MemoryBudget, Method

MIB = 1 << 20


class Link:
    """A connection that takes everything."""

    budget = MemoryBudget()
    connection = property(lambda self: self)

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
async def test_call_with_large_message_progresses_only_by_a_share_of_it(kind: Any) -> None:
    handlers = {"unary": echo} if kind is SingleCall else {"bidi": each}
    method = Method(request_bytes_max=64 * MIB, **handlers)
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


async def test_call_with_small_message_progresses_with_each_byte() -> None:
    call = SingleCall(Link(), 1, b"/t", Method(unary=echo), gzip=False)
    assert fed(call, PREFIX.pack(0, 50), 10.0) == 10.0
    assert [fed(call, b"x", second) for second in (20.0, 30.0)] == [20.0, 30.0]


class SlowLink(Link):
    """A connection whose peer reads nothing."""

    def waiting_bytes(self, _stream_id: int) -> int:
        return 1 << 30


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def dead(found: weakref.ref[Call]) -> None:
    """Wait until nothing refers to a call."""
    async with asyncio.timeout(60):
        while found() is not None:  # noqa: ASYNC110  the end of an object is no event
            await asyncio.sleep(0)


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("kind", [SingleCall, BidiCall])
async def test_ended_call_is_freed_without_garbage_collector(kind: Any) -> None:
    """A server has many, and each may hold a message."""
    handlers = {"unary": echo} if kind is SingleCall else {"bidi": each}
    call: Call = kind(Link(), 1, b"/t", Method(**handlers), gzip=False)
    call.on_data(PREFIX.pack(0, 3) + b"abc", end=True)
    ended = weakref.ref(call)
    del call
    await dead(ended)


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("kind", [SingleCall, BidiCall])
async def test_answer_is_freed_after_its_reader_has_gone(kind: Any) -> None:
    """The answer of PullBinlogs is a whole transaction."""
    answer, sending = bytearray(MIB), asyncio.Event()

    async def answers(_request: object) -> AsyncIterator[bytearray]:
        sending.set()
        yield answer

    handlers = {"streaming": answers} if kind is SingleCall else {"bidi": answers}
    before = sys.getrefcount(answer)
    call: Call = kind(SlowLink(), 1, b"/t", Method(**handlers), gzip=False)  # type: ignore[arg-type]
    call.on_data(PREFIX.pack(0, 3) + b"abc", end=True)
    await sending.wait()
    assert sys.getrefcount(answer) > before, "it is being sent"
    call.cancel()
    ended = weakref.ref(call)
    del call
    await dead(ended)
    assert sys.getrefcount(answer) == before


@pytest.mark.usefixtures("_no_collector")
async def test_partial_message_is_freed_after_its_sender_has_gone() -> None:
    call = SingleCall(Link(), 1, b"/t", Method(request_bytes_max=64 * MIB, unary=echo), gzip=False)
    call.on_data(PREFIX.pack(0, 60 * MIB) + bytes(MIB), end=False)
    call.cancel()
    ended = weakref.ref(call)
    del call
    assert ended() is None
