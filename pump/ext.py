"""The extension service: batches in, batches out, and where a batch ends. The contract is in pump_ext.proto."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from binlog.errors import DecodeError
from binlog.pb import pump_ext_pb2 as pb
from binlog.version import release
from google.protobuf.message import DecodeError as ProtobufError

from pump.edge import Service, code_number
from pump.plan import Limits
from pump.service import Gate
from pump.store import Store

MESSAGE_BYTES = 1 << 20
IN_FLIGHT_MAX = 64
PENDING_MAX = 10_000

_M = TypeVar("_M")


def _parse(kind: Callable[[bytes], _M], what: str, data: bytes) -> _M:
    try:
        return kind(data)
    except ProtobufError as error:
        raise DecodeError(what, offset=0, detail=str(error)) from error


class ExtService:
    """Handlers of `binlog.ext.PumpExt`."""

    def __init__(self, store: Store, gate: Gate, *, node_id: str, state: Callable[[], str]) -> None:
        self._store = store
        self._gate = gate
        self._node_id = node_id
        self._state = state

    def service(self) -> Service:
        return Service(
            "binlog.ext.PumpExt",
            unary={
                "Watermark": self.watermark,
                "Inspect": self.inspect,
                "Settle": self.settle,
                "Outcome": self.outcome,
            },
            streaming={"PullRange": self.pull_range},
            bidi={"WriteBatch": self.write_batch},
        )

    async def write_batch(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Answers in the order of the requests; several may be under way, at most IN_FLIGHT_MAX."""
        answers: asyncio.Queue[Awaitable[bytes] | None] = asyncio.Queue()
        slots = asyncio.Semaphore(IN_FLIGHT_MAX)

        async def read() -> None:
            try:
                async for data in requests:
                    await slots.acquire()
                    answers.put_nowait(asyncio.create_task(self._write(data)))
            finally:
                answers.put_nowait(None)

        reader = asyncio.create_task(read())
        try:
            while (answer := await answers.get()) is not None:
                yield await answer
                slots.release()
        finally:
            reader.cancel()

    async def _write(self, data: bytes) -> bytes:
        request: Any = _parse(pb.WriteBatchReq.FromString, "WriteBatchReq", data)
        self._gate.check(request.cluster_id)
        results = await self._store.write(request.payloads, refuse_prewrites=self._gate.refuses_prewrites())
        response = pb.WriteBatchResp(batch_id=request.batch_id)
        for place, error in enumerate(results):
            if error is not None:
                response.errors.add(index=place, code=code_number(error), message=str(error))
        encoded: bytes = response.SerializeToString()
        return encoded

    async def pull_range(self, data: bytes) -> AsyncIterator[bytes]:
        request: Any = _parse(pb.PullRangeReq.FromString, "PullRangeReq", data)
        self._gate.check(request.cluster_id)
        bytes_max = request.message_bytes_max or MESSAGE_BYTES
        async for chunk in self._store.pull(request.after_ts, request.until_ts, bytes_max=bytes_max):
            response = pb.PullRangeResp(payloads=[served.payload for served in chunk], last_ts=chunk[-1].commit_ts)
            encoded: bytes = response.SerializeToString()
            yield encoded

    async def watermark(self, data: bytes) -> bytes:
        """The resolved ts first, then what lies below it: the index is read after the promise (rule 4)."""
        request: Any = _parse(pb.WatermarkReq.FromString, "WatermarkReq", data)
        self._gate.check(request.cluster_id)
        state = self._state()
        resolved_ts = await self._store.resolver.refresh()
        response: Any = pb.WatermarkResp(
            resolved_ts=resolved_ts, batch_end_ts=resolved_ts, state=state, purged_ts=self._store.purged_ts
        )
        if request.batch_bytes_max and request.after_ts < resolved_ts:
            limits = Limits(
                request.batch_bytes_max, request.batch_count_max, request.stop_at_schema, request.schema_version
            )
            plan = await self._store.plan(request.after_ts, resolved_ts, limits)
            response.batch_end_ts = plan.end_ts
            response.batch_bytes = plan.bytes
            response.batch_count = plan.count
            response.stop = int(plan.stop)
            response.stop_ts = plan.stop_ts
            response.stop_schema_version = plan.stop_schema_version
            response.split_ts.extend(plan.split_ts)
        encoded: bytes = response.SerializeToString()
        return encoded

    async def inspect(self, data: bytes) -> bytes:
        request: Any = _parse(pb.InspectReq.FromString, "InspectReq", data)
        self._gate.check(request.cluster_id)
        now_s = time.monotonic()
        store = self._store
        response = pb.InspectResp(
            node_id=self._node_id,
            state=self._state(),
            resolved_ts=store.resolved_ts,
            max_commit_ts=store.index.largest_complete(),
            purged_ts=store.purged_ts,
            pending_count=store.pending_count,
            late_commit_count=store.counters.late_commits,
            late_commit_ts=store.counters.late_ts,
            version=release(),
        )
        for entry in store.pending(min(request.pending_max, PENDING_MAX)):
            response.pending.add(
                start_ts=entry.start_ts,
                age_ms=int((now_s - entry.since_s) * 1000),
                ddl_job_id=entry.ddl_job_id,
                bytes=entry.size,
                prewrite_key=entry.prewrite_key,
            )
        encoded: bytes = response.SerializeToString()
        return encoded

    async def settle(self, data: bytes) -> bytes:
        request: Any = _parse(pb.SettleReq.FromString, "SettleReq", data)
        self._gate.check(request.cluster_id)
        await self._store.settle(request.start_ts, request.commit_ts)
        encoded: bytes = pb.SettleResp(commit_ts=request.commit_ts).SerializeToString()
        return encoded

    async def outcome(self, data: bytes) -> bytes:
        request: Any = _parse(pb.OutcomeReq.FromString, "OutcomeReq", data)
        self._gate.check(request.cluster_id)
        found = [self._store.outcome(start_ts) for start_ts in request.start_ts]
        encoded: bytes = pb.OutcomeResp(commit_ts=found).SerializeToString()
        return encoded
