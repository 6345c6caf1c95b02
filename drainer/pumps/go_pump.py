"""A Go pump: it knows no watermark call, so we hold a PullBinlogs stream and remember what came.

Its resolved ts is the last commit_ts received, fakes included (P-FAKE-02): a pump streams in ascending order and never
serves below what it has sent (P-PULL-06). Of each binlog only its place is kept, not its payload: executors pull the
range themselves. At `backlog_max` places the stream is not read any further until the position has moved on.

A pump that has nothing to send writes a fake binlog every few seconds. So a stream on which nothing comes for much
longer has no pump at its other end any more, or one that hangs, and TCP alone says so after a quarter of an hour, or
never. After `silence_max_s` the pump is not believed until it sends something, and the stream is opened anew, over a
new connection: where a host is gone, the old one takes every new call with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

import grpc
import grpc.aio
from binlog import envelope
from binlog.errors import BinlogError, PumpUnavailable
from binlog.pb import pump_pb2, pump_pb2_grpc
from binlog.runtime.channel import keepalive
from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage
from binlog.runtime.security import Security

from drainer.pumps.batch_end import Place, cut
from drainer.pumps.client import MISSED_TIMEOUT_S, Count, Inspection, aio_channel, ended_early, translate
from drainer.pumps.left_pumps import Missed
from drainer.pumps.range_count import Counted
from drainer.pumps.watermark import Limits, PumpMark

BACKLOG_MAX = 500_000
RECONNECT_S = 1.0
SILENCE_MAX_S = 15.0  # five times the interval of its fakes, unless it was set otherwise there

_log = get_logger(__name__)


class GoPump:
    """Idle until the first `mark`, then streaming from there until `close`; after an error it connects again."""

    extension = False

    def __init__(
        self,
        node_id: str,
        host: str,
        *,
        cluster_id: int,
        security: Security,
        backlog_max: int = BACKLOG_MAX,
        silence_max_s: float = SILENCE_MAX_S,
    ) -> None:
        self._node_id, self._host, self._cluster_id = node_id, host, cluster_id
        self._security = security
        self._silence_max_s = silence_max_s
        self._channel = aio_channel(host, security)
        self._backlog_max = backlog_max
        self._places: deque[Place] = deque()
        self._resolved_ts = 0
        self._known_after_ts = 0
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.interrupted = False
        self._error: BinlogError | None = PumpUnavailable(f"pump {node_id} ({host}): nothing received yet")
        self._outage = Outage(_log, "pull from a Go pump stopped", "pull from a Go pump goes on")

    async def mark(self, *, after_ts: int, limits: Limits) -> PumpMark:
        """From what has been received. Raises the last error while the stream is down: a Go pump always counts."""
        if after_ts < self._known_after_ts:
            await self._forget(after_ts)
        if self._task is None:
            self._resolved_ts = after_ts
            self._task = asyncio.create_task(self._follow(), name=f"pull {self._node_id}")
        self._known_after_ts = max(self._known_after_ts, after_ts)
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

    async def count(self, *, after_ts: int, until_ts: int) -> Counted | None:
        """From what has been received; None where that does not cover the range."""
        if after_ts < self._known_after_ts or until_ts > self._resolved_ts:
            return None
        sizes = [place.size for place in self._places if after_ts < place.commit_ts <= until_ts]
        return Counted(len(sizes), sum(sizes))

    async def missed(self, *, after_ts: int, until_ts: int) -> Missed:
        """There is a binlog or a fake at or above `until_ts`, for `mark` has seen it or will."""
        stub = pump_pb2_grpc.PumpStub(self._channel)  # type: ignore[no-untyped-call]
        request = pump_pb2.PullBinlogReq(clusterID=self._cluster_id, startFrom=pump_pb2.Pos(offset=after_ts))
        count, at_ts = Count(), after_ts
        stream = stub.PullBinlogs(request, timeout=MISSED_TIMEOUT_S)
        try:
            async for answer in stream:
                found = envelope.scan(answer.entity.payload)
                at_ts = found.commit_ts
                if found.commit_ts > until_ts:
                    break
                count.add(found)
                if count.full or found.commit_ts == until_ts:
                    break
            else:
                raise ended_early(f"pump {self._node_id} ({self._host})", at_ts, until_ts)
        except grpc.aio.AioRpcError as error:
            raise translate(error, f"pump {self._node_id} ({self._host})") from error
        finally:
            stream.cancel()
        return count.result()

    async def close(self) -> None:
        await self._stop_following()
        await self._channel.close()

    async def _stop_following(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _forget(self, after_ts: int) -> None:
        """The batch behind which it was asked has failed and is planned anew: the places in front of it are gone here,
        and without them its rows would be passed as if there were none. The stream begins again at `after_ts`."""
        await self._stop_following()
        self._places.clear()
        self._known_after_ts = after_ts
        who = f"pump {self._node_id} ({self._host})"
        self._error = PumpUnavailable(f"{who}: its stream begins again at ts {after_ts}, nothing received yet")

    async def _follow(self) -> None:
        while True:
            try:
                await self._read()
                await self._room.wait()
                continue
            except grpc.aio.AioRpcError as error:
                self._error = translate(error, f"pump {self._node_id} ({self._host})")
            except BinlogError as error:
                self._error = error
            self.interrupted = True
            self._outage.failed(pump=self._node_id, error=str(self._error))
            await asyncio.sleep(RECONNECT_S)

    async def _read(self) -> None:
        """One stream over one connection. Returns when there has been no room for long; PumpUnavailable else."""
        # Its own connection: closing it must not end other calls. Two pings while it may be silent: see keepalive.
        channel = aio_channel(
            self._host,
            self._security,
            ("grpc.use_local_subchannel_pool", 1),
            *keepalive(self._silence_max_s / 2),
        )
        stub = pump_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
        request = pump_pb2.PullBinlogReq(clusterID=self._cluster_id, startFrom=pump_pb2.Pos(offset=self._resolved_ts))
        stream = stub.PullBinlogs(request)
        try:
            while len(self._places) < self._backlog_max or await self._has_room():
                self._take(await self._next(stream))
                self._error = None
                self._outage.over(pump=self._node_id)
        finally:
            stream.cancel()
            await channel.close()

    async def _next(self, stream: Any) -> bytes:
        """The next binlog; PumpUnavailable when the stream ended or none came in time."""
        who = f"pump {self._node_id} ({self._host})"
        try:
            async with asyncio.timeout(self._silence_max_s):
                answer = await stream.read()
        except TimeoutError:
            raise PumpUnavailable(
                f"{who}: nothing came for {self._silence_max_s:g} s, not even a fake binlog: its host or the network "
                f"is gone, it hangs, or a transaction there waits for its commit (go-pump-silence-max)"
            ) from None
        if answer is grpc.aio.EOF:
            raise PumpUnavailable(f"{who}: the stream ended")
        payload: bytes = answer.entity.payload
        return payload

    async def _has_room(self) -> bool:
        """Wait for the position to move on; False after a while, for a stream that nobody reads is no sign of life."""
        self._room.clear()
        try:
            async with asyncio.timeout(self._silence_max_s):
                await self._room.wait()
        except TimeoutError:
            return False
        return True

    def _take(self, payload: bytes) -> None:
        found = envelope.scan(payload)
        if found.commit_ts <= self._resolved_ts:
            _log.error("a Go pump went back", pump=self._node_id, commit_ts=found.commit_ts, at=self._resolved_ts)
            return
        if found.start_ts != found.commit_ts:
            self._places.append(Place(found.commit_ts, len(payload), bool(found.ddl_job_id), found.schema_version))
        self._resolved_ts = found.commit_ts
