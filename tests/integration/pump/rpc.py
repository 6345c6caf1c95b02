"""A pump's services as a client sees them, in raw messages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from binlog.pb import pump_ext_pb2 as pb
from binlog.pb import pump_pb2
from grpc import aio

from pump.config import PumpConfig
from pump.process import Pump
from tests.support.memory_etcd import MemoryEtcd
from tests.support.stub_pd import StubPD

UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class Client:
    """Calls of one pump. `cluster_id` goes into every request; `timeout_s`: of a call with one answer."""

    def __init__(self, addr: str, cluster_id: int, *, timeout_s: float = 90, **options: Any) -> None:
        self.channel = aio.insecure_channel(addr, options=UNLIMITED, **options)
        self.cluster_id = cluster_id
        self._timeout_s = timeout_s

    async def close(self) -> None:
        await self.channel.close()

    async def _unary(self, method: str, request: Any, kind: Any, timeout_s: float = 0) -> Any:
        call: Any = self.channel.unary_unary(method)
        timeout_s = timeout_s or self._timeout_s
        return kind.FromString(await call(request.SerializeToString(), timeout=timeout_s, wait_for_ready=True))

    async def write(self, payload: bytes) -> None:
        request = pump_pb2.WriteBinlogReq(clusterID=self.cluster_id, payload=payload)
        await self._unary("/binlog.Pump/WriteBinlog", request, pump_pb2.WriteBinlogResp)

    async def write_batches(self, batches: Sequence[Sequence[bytes]]) -> list[Any]:
        """All batches on one stream; their answers."""
        call: Any = self.channel.stream_stream("/binlog.ext.PumpExt/WriteBatch")()
        for number, payloads in enumerate(batches):
            request = pb.WriteBatchReq(cluster_id=self.cluster_id, batch_id=number, payloads=payloads)
            await call.write(request.SerializeToString())
        with contextlib.suppress(aio.InternalError):  # the stream has ended: reading it says how
            await call.done_writing()
        return [pb.WriteBatchResp.FromString(data) async for data in call]

    async def watermark(self, after_ts: int = 0, **limits: Any) -> Any:
        request = pb.WatermarkReq(cluster_id=self.cluster_id, after_ts=after_ts, **limits)
        return await self._unary("/binlog.ext.PumpExt/Watermark", request, pb.WatermarkResp)

    async def pull_range(
        self, after_ts: int, until_ts: int, message_bytes_max: int = 0, *, part_bytes_max: int = 0
    ) -> list[Any]:
        """Its messages but the last, which says what was sent (rule 22)."""
        request = pb.PullRangeReq(
            cluster_id=self.cluster_id,
            after_ts=after_ts,
            until_ts=until_ts,
            message_bytes_max=message_bytes_max,
            part_bytes_max=part_bytes_max,
        )
        call: Any = self.channel.unary_stream("/binlog.ext.PumpExt/PullRange")(request.SerializeToString())
        *messages, last = [pb.PullRangeResp.FromString(data) async for data in call]
        sizes = [len(payload) for message in messages for payload in message.payloads]
        behind = sum(1 for message in messages if message.part_offset)  # parts of a binlog whose first was counted
        assert (last.end.count, last.end.bytes, len(last.payloads)) == (len(sizes) - behind, sum(sizes), 0)
        return messages

    async def pull_binlogs(self, after_ts: int) -> AsyncIterator[Any]:
        request = pump_pb2.PullBinlogReq(clusterID=self.cluster_id, startFrom=pump_pb2.Pos(offset=after_ts))
        call: Any = self.channel.unary_stream("/binlog.Pump/PullBinlogs")(request.SerializeToString())
        try:
            async for data in call:
                yield pump_pb2.PullBinlogResp.FromString(data).entity
        finally:
            call.cancel()

    async def inspect(self, pending_max: int = 10) -> Any:
        request = pb.InspectReq(cluster_id=self.cluster_id, pending_max=pending_max)
        return await self._unary("/binlog.ext.PumpExt/Inspect", request, pb.InspectResp)

    async def settle(self, start_ts: int, commit_ts: int = 0) -> Any:
        request = pb.SettleReq(cluster_id=self.cluster_id, start_ts=start_ts, commit_ts=commit_ts)
        return await self._unary("/binlog.ext.PumpExt/Settle", request, pb.SettleResp)

    async def outcome(self, *start_ts: int) -> list[int]:
        request = pb.OutcomeReq(cluster_id=self.cluster_id, start_ts=start_ts)
        return list((await self._unary("/binlog.ext.PumpExt/Outcome", request, pb.OutcomeResp)).commit_ts)


async def until(condition: Callable[[], Awaitable[bool]], deadline_s: float = 90) -> None:
    """Poll what other tasks and processes do; TimeoutError after the deadline."""
    async with asyncio.timeout(deadline_s):
        while not await condition():  # noqa: ASYNC110  what is waited for has no event here
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def connected(addr: str, cluster_id: int, **options: Any) -> AsyncIterator[Client]:
    client = Client(addr, cluster_id, **options)
    try:
        yield client
    finally:
        await client.close()


def config(directory: Path, pd: StubPD, name: str = "p1", **settings: Any) -> PumpConfig:
    return PumpConfig.model_validate(
        {
            "addr": "127.0.0.1:0",
            "status-addr": "127.0.0.1:0",
            "pd-urls": f"http://{pd.addr}",
            "tso-source": "pd",
            "data-dir": str(directory / name),
            "node-id": name,
            "drain-wait": 0,
            "gen-binlog-interval": 0,  # else a pump that is idle for three seconds adds binlogs of its own
            "storage": {"stop-write-at-available-space": 0},
            **settings,
        }
    )


@contextlib.asynccontextmanager
async def running(
    directory: Path, etcd: MemoryEtcd, pd: StubPD, name: str = "p1", **settings: Any
) -> AsyncIterator[Pump]:
    """A pump in this process, on a real port."""
    pump = Pump(config(directory, pd, name, **settings), etcd=etcd)
    await pump.start()
    try:
        yield pump
    finally:
        await pump.stop()


async def take(stream: AsyncIterator[Any], count: int) -> list[Any]:
    """The first `count` messages of a stream."""
    found: list[Any] = []
    async with asyncio.timeout(60):
        async for entity in stream:
            found.append(entity)
            if len(found) == count:
                break
    return found


def codes(error: pytest.ExceptionInfo[aio.AioRpcError]) -> tuple[grpc.StatusCode, str]:
    return error.value.code(), error.value.details() or ""
