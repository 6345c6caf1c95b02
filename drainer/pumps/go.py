"""A Go pump: it knows no watermark call, so we hold a PullBinlogs stream and remember what came.

Its resolved ts is the last commit_ts received, fakes included (P-FAKE-02): a pump streams in ascending order and never
serves below what it has sent (P-PULL-06). Of each binlog only its place is kept, not its payload: executors pull the
range themselves. At `backlog_max` places the stream is not read any further until the position has moved on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

import grpc
import grpc.aio
from binlog import envelope
from binlog.errors import BinlogError, PumpUnavailable
from binlog.log import get_logger
from binlog.pb import pump_pb2, pump_pb2_grpc
from binlog.security import Security

from drainer.pumps.client import MISSED_TIMEOUT_S, Count, Inspection, aio_channel, translate
from drainer.pumps.cut import Place, cut
from drainer.pumps.left import Missed
from drainer.pumps.mark import Limits, PumpMark

BACKLOG_MAX = 500_000
RECONNECT_S = 1.0

_log = get_logger(__name__)


class GoPump:
    """Idle until the first `mark`, then streaming from there until `close`; after an error it connects again."""

    extension = False

    def __init__(
        self, node_id: str, host: str, *, cluster_id: int, security: Security, backlog_max: int = BACKLOG_MAX
    ) -> None:
        self._node_id, self._host, self._cluster_id = node_id, host, cluster_id
        self._channel = aio_channel(host, security)
        self._backlog_max = backlog_max
        self._places: deque[Place] = deque()
        self._resolved_ts = 0
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.interrupted = False
        self._error: BinlogError | None = PumpUnavailable(f"pump {node_id} ({host}): nothing received yet")

    async def mark(self, *, after_ts: int, limits: Limits) -> PumpMark:
        """From what has been received. Raises the last error while the stream is down: a Go pump always counts."""
        if self._task is None:
            self._resolved_ts = after_ts
            self._task = asyncio.create_task(self._follow(), name=f"pull {self._node_id}")
        while self._places and self._places[0].commit_ts <= after_ts:
            self._places.popleft()
        self._room.set()
        if self._error is not None:
            raise self._error
        return cut(
            self._places,
            limits,
            node_id=self._node_id,
            host=self._host,
            resolved_ts=max(self._resolved_ts, after_ts),
        )

    async def inspect(self) -> Inspection | None:
        return None

    async def missed(self, *, after_ts: int, until_ts: int) -> Missed:
        """There is a binlog or a fake at or above `until_ts`, for `mark` has seen it or will."""
        stub = pump_pb2_grpc.PumpStub(self._channel)  # type: ignore[no-untyped-call]
        request = pump_pb2.PullBinlogReq(clusterID=self._cluster_id, startFrom=pump_pb2.Pos(offset=after_ts))
        count = Count()
        stream = stub.PullBinlogs(request, timeout=MISSED_TIMEOUT_S)
        try:
            async for answer in stream:
                found = envelope.scan(answer.entity.payload)
                if found.commit_ts > until_ts:
                    break
                count.add(found)
                if count.full or found.commit_ts == until_ts:
                    break
        except grpc.aio.AioRpcError as error:
            raise translate(error, f"pump {self._node_id} ({self._host})") from error
        finally:
            stream.cancel()
        return count.result()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._channel.close()

    async def _follow(self) -> None:
        stub = pump_pb2_grpc.PumpStub(self._channel)  # type: ignore[no-untyped-call]
        while True:
            request = pump_pb2.PullBinlogReq(
                clusterID=self._cluster_id, startFrom=pump_pb2.Pos(offset=self._resolved_ts)
            )
            try:
                async for answer in stub.PullBinlogs(request):
                    self._take(answer.entity.payload)
                    self._error = None
                    if len(self._places) >= self._backlog_max:
                        self._room.clear()
                        await self._room.wait()
                self._error = PumpUnavailable(f"pump {self._node_id} ({self._host}): the stream ended")
            except grpc.aio.AioRpcError as error:
                self._error = translate(error, f"pump {self._node_id} ({self._host})")
            except BinlogError as error:
                self._error = error
            self.interrupted = True
            _log.warning("pull from a Go pump stopped", pump=self._node_id, error=str(self._error))
            await asyncio.sleep(RECONNECT_S)

    def _take(self, payload: bytes) -> None:
        found = envelope.scan(payload)
        if found.commit_ts <= self._resolved_ts:
            _log.error("a Go pump went back", pump=self._node_id, commit_ts=found.commit_ts, at=self._resolved_ts)
            return
        if found.start_ts != found.commit_ts:
            self._places.append(Place(found.commit_ts, len(payload), bool(found.ddl_job_id), found.schema_version))
        self._resolved_ts = found.commit_ts
