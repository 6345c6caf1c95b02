"""The PD client against a stub that speaks real gRPC, and against answers PD must not give."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from binlog.cluster.pd import NotPD, PDClient, ask_first, ask_members, hold_gc
from binlog.cluster.tso import logical, physical_ms
from binlog.errors import ClusterMismatch, TimestampUnavailable
from binlog.pb import pdpb_pb2
from grpc import aio

from tests.support.servers import free_port
from tests.support.stub_pd import StubPD


class Twisted(StubPD):
    """Answers whatever the test wants instead."""

    answer: dict[str, Any] = {}  # noqa: RUF012  set on instances

    async def Tso(self, request_iterator: Any, context: Any) -> Any:
        async for request in request_iterator:
            end_ts, count = self.allocate(request.count)
            fields = {"cluster_id": self.cluster_id, "count": count, "end_ts": end_ts, "error": None} | self.answer
            header = pdpb_pb2.ResponseHeader(cluster_id=fields["cluster_id"], error=fields["error"])
            ts = pdpb_pb2.Timestamp(physical=physical_ms(fields["end_ts"]), logical=logical(fields["end_ts"]))
            yield pdpb_pb2.TsoResponse(header=header, count=fields["count"], timestamp=ts)


async def test_pd_client_returns_cluster_id_and_consecutive_timestamps(closing: AsyncExitStack) -> None:
    pd = await StubPD.start(cluster_id=7_000_000_000_000_000_001)
    closing.push_async_callback(pd.close)
    client = PDClient([f"http://127.0.0.1:{free_port()}", f"http://{pd.addr}"])
    assert (await client.locate()).cluster_id == 7_000_000_000_000_000_001
    first = await client.timestamps(1)
    many = await client.timestamps(1000)
    assert len(many) == 1000
    assert first[0] < many[0]
    assert list(many) == list(range(many[0], many[0] + 1000))
    await client.close()


async def test_concurrent_requests_stay_in_order(closing: AsyncExitStack) -> None:
    pd = await StubPD.start()
    closing.push_async_callback(pd.close)
    client = PDClient([pd.addr])
    given = await asyncio.gather(*(client.timestamps(3) for _ in range(50)))
    flat = [ts for some in given for ts in some]
    assert flat == sorted(set(flat))
    await client.close()


async def test_pd_client_reconnects_to_restarted_pd(closing: AsyncExitStack) -> None:
    pd = await StubPD.start(addr=f"127.0.0.1:{free_port()}")  # nobody else takes it meanwhile
    closing.push_async_callback(pd.close)
    addr = pd.addr
    client = PDClient([addr])
    before = (await client.timestamps(1))[0]
    await pd.close()
    with pytest.raises(TimestampUnavailable, match=addr):
        await client.timestamps(1)
    pd = await StubPD.start(addr=addr)
    closing.push_async_callback(pd.close)
    for _ in range(1200):
        try:
            assert (await client.timestamps(1))[0] > before
            break
        except TimestampUnavailable:
            await asyncio.sleep(0.05)
    else:
        pytest.fail("never reconnected")
    await client.close()


async def test_pd_client_refuses_changed_cluster_id(closing: AsyncExitStack) -> None:
    pd = await StubPD.start(cluster_id=1)
    closing.push_async_callback(pd.close)
    client = PDClient([pd.addr])
    await client.timestamps(1)
    pd.cluster_id = 2
    with pytest.raises(TimestampUnavailable, match="mismatch cluster id, need 2 but got 1"):
        await client.timestamps(1)
    with pytest.raises(ClusterMismatch, match="2 vs 1"):
        await client.timestamps(1)
    await client.close()


@pytest.mark.parametrize(
    ("answer", "error", "named"),
    [
        ({"cluster_id": 9}, ClusterMismatch, "9 vs 1"),
        ({"count": 2}, TimestampUnavailable, "returned 2 timestamps instead of 5"),
        ({"end_ts": 100}, TimestampUnavailable, "went backwards: it returned 96 after"),
        ({"end_ts": 100, "count": 0}, TimestampUnavailable, "went backwards: its clock is held at 100 after"),
        (
            {"error": pdpb_pb2.Error(type=pdpb_pb2.NOT_BOOTSTRAPPED, message="not yet")},
            TimestampUnavailable,
            "not yet",
        ),
    ],
)
async def test_pd_client_refuses_wrong_answer_by_name_and_recovers(
    closing: AsyncExitStack, answer: dict[str, Any], error: type[Exception], named: str
) -> None:
    """Each is refused by name, and a right answer afterwards is taken."""
    pd = await Twisted.start(cluster_id=1)
    closing.push_async_callback(pd.close)
    assert isinstance(pd, Twisted)
    client = PDClient([pd.addr])
    before = await client.timestamps(1)
    pd.answer = answer
    with pytest.raises(error, match=named):
        await client.timestamps(5)
    pd.answer = {}
    assert (await client.timestamps(5))[0] > before[0]
    await client.close()


async def test_a_cancelled_request_leaves_no_answer_for_the_next(closing: AsyncExitStack) -> None:
    """The stream is thrown away: a late answer to 7 must not be taken for that to 2."""
    pd = await StubPD.start()
    closing.push_async_callback(pd.close)
    client = PDClient([pd.addr])
    await client.timestamps(1)
    for _ in range(20):
        work = asyncio.ensure_future(client.timestamps(7))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert len(await client.timestamps(2)) == 2
    await client.close()


async def test_stub_pd_with_held_clock_repeats_its_timestamp(closing: AsyncExitStack) -> None:
    pd = await StubPD.start()
    closing.push_async_callback(pd.close)
    client = PDClient([pd.addr])
    pd.set(1000, hold=True)
    assert list(await client.timestamps(1)) == [1000]
    assert list(await client.timestamps(3)) == [1000, 1000, 1000]
    pd.set(1005, hold=True)
    assert list(await client.timestamps(3)) == [1005, 1005, 1005]
    pd.run()
    assert (await client.timestamps(1))[0] > 1005
    await client.close()


async def test_ask_members_tells_other_servers_from_unreachable_pd(closing: AsyncExitStack) -> None:
    server = aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    with pytest.raises(NotPD, match=f"127.0.0.1:{port} is not a PD"):
        await ask_members(f"http://127.0.0.1:{port}")
    pd = await StubPD.start(cluster_id=5)
    closing.push_async_callback(pd.close)
    dead = f"127.0.0.1:{free_port()}"
    found = await ask_first([dead, f"127.0.0.1:{port}", pd.addr])
    assert found.cluster_id == 5
    with pytest.raises(NotPD):
        await ask_first([dead, f"127.0.0.1:{port}"])
    with pytest.raises(TimestampUnavailable, match="UNAVAILABLE"):
        await ask_first([dead])
    pd.cluster_id = 0
    with pytest.raises(TimestampUnavailable, match="without a cluster id"):
        await ask_first([pd.addr])
    await server.stop(None)


async def test_pd_client_refuses_invalid_timestamp_counts() -> None:
    client = PDClient(["127.0.0.1:1"])
    for count in (0, -1, 1 << 18):
        with pytest.raises(ValueError, match="can be requested at once"):
            await client.timestamps(count)
    with pytest.raises(ValueError, match="at least one URL"):
        PDClient([])


class HoldingPD(StubPD):
    """A PD whose GC is at 50."""

    async def UpdateServiceGCSafePoint(self, request: Any, context: Any) -> Any:
        assert (request.header.cluster_id, request.service_id, request.TTL) == (1, b"load", 60)
        return pdpb_pb2.UpdateServiceGCSafePointResponse(min_safe_point=50)


async def test_gc_is_held_unless_it_may_have_passed(closing: AsyncExitStack) -> None:
    for kind, ts, error in (
        (HoldingPD, 50, ""),
        (HoldingPD, 49, "GC may have passed 49"),
        (StubPD, 50, "UNIMPLEMENTED"),
    ):
        pd = await kind.start()
        closing.push_async_callback(pd.close)
        held = hold_gc(await ask_members(pd.addr), "load", ts, 60)
        if error:
            with pytest.raises(TimestampUnavailable, match=error):
                await held
        else:
            await held
