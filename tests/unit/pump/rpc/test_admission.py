"""Bytes in flight over all calls: what is taken, what is refused, what waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from binlog.pb import pump_ext_pb2 as pb
from binlog.rpc.method import Received

from pump.errors import Overloaded
from pump.rpc.admission import SMALL_BYTES_MAX, InFlight
from pump.rpc.extension_service import ExtService
from pump.rpc.original_service import Gate
from pump.store.store import Store
from tests.unit.pump.build import opened

MIB = 1 << 20


def test_in_flight_requests_are_admitted_until_limit_is_full() -> None:
    in_flight = InFlight(10 * MIB)
    with in_flight.request(4 * MIB), in_flight.request(6 * MIB):
        assert in_flight.bytes == 10 * MIB
        text = r"too many bytes in flight: 10485760 .* in-flight-bytes-max 10485760"
        with pytest.raises(Overloaded, match=text), in_flight.request(MIB):
            raise AssertionError
        assert in_flight.bytes == 10 * MIB
    assert in_flight.bytes == 0
    with in_flight.request(10 * MIB):
        pass


def test_in_flight_admits_single_request_above_limit() -> None:
    """Its own limit is another one."""
    in_flight = InFlight(MIB)
    with in_flight.request(5 * MIB), pytest.raises(Overloaded), in_flight.request(MIB):
        pass


def test_in_flight_admits_one_request_beside_open_pulls() -> None:
    """A drainer's stream is open for as long as the drainer runs: what waits for its end waits for ever."""
    in_flight = InFlight(8 * MIB)
    with in_flight.pull(3 * MIB), in_flight.request(6 * MIB):
        with pytest.raises(Overloaded), in_flight.request(MIB):
            pass
        assert in_flight.bytes == 9 * MIB


def test_in_flight_admits_small_commits_beside_large_prewrites() -> None:
    in_flight = InFlight(8 * MIB)
    with in_flight.request(8 * MIB), contextlib.ExitStack() as commits:
        for _ in range(16):
            commits.enter_context(in_flight.request(SMALL_BYTES_MAX))
        with pytest.raises(Overloaded), in_flight.request(SMALL_BYTES_MAX):
            pass


def test_in_flight_bytes_are_released_after_failure() -> None:
    in_flight = InFlight(8 * MIB)
    for hold in (in_flight.request, in_flight.pull):
        with pytest.raises(RuntimeError), hold(MIB):
            raise RuntimeError
        assert in_flight.bytes == 0


def test_in_flight_pulls_take_at_most_half_of_limit() -> None:
    in_flight = InFlight(8 * MIB)
    with in_flight.pull(2 * MIB), in_flight.pull(2 * MIB):
        with pytest.raises(Overloaded), in_flight.pull(MIB):
            pass
        with in_flight.request(4 * MIB):
            pass


async def test_in_flight_answer_waits_for_requests_and_not_for_pulls() -> None:
    in_flight = InFlight(8 * MIB)
    order: list[str] = []

    async def answer() -> None:
        async with in_flight.answer(7 * MIB):
            order.append("answered")

    with in_flight.pull(2 * MIB):
        with in_flight.request(4 * MIB):
            waiting = asyncio.create_task(answer())
            await asyncio.sleep(0)
            order.append("request under way")
        await asyncio.wait_for(waiting, 60)
    assert order == ["request under way", "answered"]
    assert in_flight.bytes == 0


def test_in_flight_tolerated_bytes_are_limited_and_counted() -> None:
    """A quarter, or one message alone; it fills the room for others."""
    in_flight = InFlight(8 * MIB)
    in_flight.take(8 * MIB)
    assert in_flight.tolerate(MIB) and in_flight.tolerate(MIB) and not in_flight.tolerate(1)
    assert in_flight.bytes == 10 * MIB
    in_flight.give(8 * MIB)
    assert not in_flight.fits(7 * MIB) and in_flight.fits(6 * MIB)
    in_flight.forgive(MIB)
    in_flight.forgive(MIB)
    assert in_flight.bytes == 0
    assert in_flight.tolerate(100 * MIB) and not in_flight.tolerate(1)
    in_flight.forgive(100 * MIB)
    assert in_flight.tolerate(1)


async def test_in_flight_waiters_are_called_once_in_order_after_bytes_are_released() -> None:
    in_flight = InFlight(8 * MIB)
    told: list[tuple[str, int]] = []

    def wait(name: str) -> None:
        in_flight.wait(lambda: told.append((name, in_flight.bytes)))

    with in_flight.request(MIB), in_flight.pull(MIB):
        wait("first")
        wait("second")
        await asyncio.sleep(0)
        assert told == []
    assert told == []
    await asyncio.sleep(0)
    assert told == [("first", 0), ("second", 0)]
    assert in_flight.tolerate(MIB)
    wait("third")
    in_flight.forgive(MIB)
    await asyncio.sleep(0)
    assert told[2:] == [("third", 0)]


async def test_write_batch_objects_are_counted_and_refuse_it_only_beside_other_requests(tmp_path: Path) -> None:
    """A payload of no bytes is an object all the same. A batch alone is written whatever the bound is."""
    data = pb.WriteBatchReq(cluster_id=7, batch_id=1, payloads=[b""] * 100).SerializeToString()
    in_flight, gate = InFlight(50 << 10), Gate(7, lambda: "")
    gate.closed = ""

    async def answered(store: Store) -> list[str]:
        in_flight.take(len(data))
        received = Received(data, released=lambda: in_flight.give(len(data)))
        writing = ExtService(store, gate, in_flight, node_id="p", state=lambda: "online").write_batch(_each(received))
        (answer,) = [pb.WriteBatchResp.FromString(each) async for each in writing]
        return [error.message for error in answer.errors]

    async with opened(tmp_path / "data") as store:
        assert await answered(store) == []
        with in_flight.request(1):
            assert await answered(store) == [str(Overloaded(100 << 10, len(data) + 1, 50 << 10))] * 100
            assert in_flight.bytes == 1


async def _each(*received: Received) -> AsyncIterator[Received]:
    for each in received:
        yield each
