"""The extension service: writes and pulls many binlogs per message, and plans batches. Contract: pump_ext.proto."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

from binlog.errors import BinlogError
from binlog.extension import PENDING_MAX
from binlog.pb import parsed
from binlog.pb import pump_ext_pb2 as pb
from binlog.rpc.messages import Buffer
from binlog.rpc.method import Method, Received
from binlog.runtime.version import release
from google.protobuf.message import Message

from pump import metrics
from pump.errors import Overloaded, TooManyItems
from pump.pull import pull_bytes
from pump.rpc.admission import InFlight
from pump.rpc.messages import parse_batch, range_messages, read_bytes
from pump.rpc.methods import Service, code_of, kind_of
from pump.rpc.original_service import Gate
from pump.store.store import Store

MESSAGE_BYTES = 1 << 20
MESSAGE_BYTES_CAP = 16 << 20  # the largest message size that a caller may request
IN_FLIGHT_MAX = 64
PAYLOAD_BYTES = 1024  # memory of a payload's objects, in addition to its bytes in the message


def _answer(batch_id: int, results: Sequence[BinlogError | None]) -> bytes:
    response = pb.WriteBatchResp(batch_id=batch_id)
    for place, error in enumerate(results):
        if error is not None:
            response.errors.add(index=place, code=code_of(error), message=str(error), kind=kind_of(error))
    return response.SerializeToString()


@dataclass(eq=False)
class ExtService:
    """Handlers of `binlog.ext.PumpExt`. Those of single calls get and return protobuf messages."""

    store: Store
    gate: Gate
    in_flight: InFlight = field(default_factory=InFlight)
    _: KW_ONLY
    node_id: str
    state: Callable[[], str]

    def service(self) -> Service:
        return Service(
            "binlog.ext.PumpExt",
            {
                "Watermark": self._unary(pb.WatermarkReq, self.watermark),
                "Count": self._unary(pb.CountReq, self.count),
                "Inspect": self._unary(pb.InspectReq, self.inspect),
                "Settle": self._unary(pb.SettleReq, self.settle),
                "PassOver": self._unary(pb.PassOverReq, self.skip_binlog),
                "Outcome": self._unary(pb.OutcomeReq, self.outcome),
                "PullRange": Method(streaming=self.pull_range),
                "WriteBatch": Method(bidi=self.write_batch, counted=True),
            },
        )

    def _request(self, kind: Any, data: Buffer) -> Any:
        """Parse a message to this cluster. Raises DecodeError, ClusterMismatch."""
        request = parsed(kind, bytes(data))
        self.gate.check(request.cluster_id)
        return request

    def _unary(self, kind: Any, handler: Callable[[Any], Awaitable[Message]]) -> Method:
        """Return a method whose requests are messages of `kind`, as is the answer of `handler`."""

        async def answer(data: Buffer) -> bytes:
            return (await handler(self._request(kind, data))).SerializeToString()

        return Method(unary=answer)

    async def write_batch(self, requests: AsyncIterator[Received]) -> AsyncIterator[bytes]:
        """Write batches and answer them in the order of the requests. At most IN_FLIGHT_MAX are under way."""
        answers: asyncio.Queue[Awaitable[bytes] | None] = asyncio.Queue()
        slots = asyncio.Semaphore(IN_FLIGHT_MAX)

        async def read() -> None:
            try:
                async for received in requests:
                    try:
                        await slots.acquire()
                    except BaseException:
                        received.release()
                        raise
                    answers.put_nowait(asyncio.create_task(self._admit(received)))
                    del received
            finally:
                answers.put_nowait(None)

        reader = asyncio.create_task(read())
        try:
            while (answer := await answers.get()) is not None:
                yield await answer
                slots.release()
            await reader  # an error of the requests ends the stream, too
        finally:
            reader.cancel()
            await asyncio.wait([reader])  # the requests cannot be closed while the reader still waits for the next one

    async def _admit(self, received: Received) -> bytes:
        try:
            cluster_id, batch_id, payloads = parse_batch(received.data)
            refused = received.refused
            if not isinstance(refused, BinlogError):
                try:
                    with self.in_flight.request(len(payloads) * PAYLOAD_BYTES, held=len(received.data)):
                        return _answer(batch_id, await self._write(cluster_id, payloads))
                except Overloaded as error:
                    refused = error
            return _answer(batch_id, [refused] * len(payloads))  # per binlog, so that the stream stays open
        finally:
            received.release()

    async def _write(self, cluster_id: int, payloads: Sequence[bytes]) -> Sequence[BinlogError | None]:
        began_s, results = time.monotonic(), None
        try:
            results = await self.gate.write(self.store, "WriteBatch", cluster_id, payloads)
        finally:
            taken = results is not None and not any(results)
            metrics.observe("WriteBatch", "succ" if taken else "fail", time.monotonic() - began_s)
        return results

    async def pull_range(self, data: Buffer) -> AsyncIterator[bytes]:
        request = self._request(pb.PullRangeReq, data)
        bytes_max = min(request.message_bytes_max or MESSAGE_BYTES, MESSAGE_BYTES_CAP)
        part_bytes_max = min(request.part_bytes_max or MESSAGE_BYTES_CAP, MESSAGE_BYTES_CAP)
        end = pb.PullEnd()
        with metrics.pulling("PullRange"), self.in_flight.pull(pull_bytes(max(bytes_max, part_bytes_max))):
            async for message in self.store.reads.pull_as(
                partial(range_messages, message_bytes_max=bytes_max),
                request.after_ts,
                request.until_ts,
                bytes_max=read_bytes(bytes_max),
                fakes=False,
                part_bytes_max=part_bytes_max,
            ):
                end.count += message.binlogs
                end.bytes += message.size
                metrics.read("PullRange", count=message.binlogs, size=message.size)
                yield message.data
                del message
        yield pb.PullRangeResp(end=end).SerializeToString()

    async def count(self, request: Any) -> Any:
        plan = await self.store.reads.count(request.after_ts, request.until_ts)
        return pb.CountResp(count=plan.batch_count, bytes=plan.batch_bytes, bytes_exact=plan.bytes_exact)

    async def watermark(self, request: Any) -> Any:
        """Return the resolved ts and, if requested, the plan of a batch. The order matters (correctness rules 4 and
        22): the resolved ts is computed first, the index is read after it, and the purge point is read last."""
        state = self.state()
        resolved_ts = await self.store.resolver.refresh()
        response: Any = pb.WatermarkResp(batch_end_ts=resolved_ts)
        if request.batch_bytes_max and request.after_ts < resolved_ts:
            response = await self.store.reads.plan(request.after_ts, resolved_ts, request)
        response.resolved_ts, response.state = resolved_ts, state
        response.purged_ts = self.store.reads.purged_ts
        self._tell_oldest(response)
        return response

    def _tell_oldest(self, response: Any) -> None:
        """Add the prewrite that holds the resolved ts of this answer back, if there is one."""
        entry = self.store.oldest_pending()
        if entry is None or entry.start_ts > response.resolved_ts + 1:
            return
        response.oldest_pending.start_ts = entry.start_ts
        response.oldest_pending.age_ms = int((time.monotonic() - entry.since_s) * 1000)
        response.oldest_pending.ddl_job_id = entry.ddl_job_id
        response.oldest_pending.writer = entry.writer

    async def inspect(self, request: Any) -> Any:
        now_s = time.monotonic()
        store = self.store
        response = pb.InspectResp(
            node_id=self.node_id,
            state=self.state(),
            resolved_ts=store.resolved_ts,
            max_commit_ts=store.index.largest_complete(),
            purged_ts=store.reads.purged_ts,
            pending_count=len(store.pending),
            late_commit_count=store.writes.late_commits,
            late_commit_ts=store.writes.late_ts,
            version=release(),
        )
        for entry in store.pending.first(min(request.pending_max, PENDING_MAX)):
            response.pending.add(
                start_ts=entry.start_ts,
                age_ms=int((now_s - entry.since_s) * 1000),
                ddl_job_id=entry.ddl_job_id,
                bytes=entry.size,
                prewrite_key=entry.prewrite_key,
                writer=entry.writer,
            )
        return response

    async def settle(self, request: Any) -> Any:
        await self.store.writes.settle(request.start_ts, request.commit_ts)
        return pb.SettleResp(commit_ts=request.commit_ts)

    async def skip_binlog(self, request: Any) -> Any:
        return await self.store.reads.skip_binlog(request.commit_ts, dry_run=request.dry_run)

    async def outcome(self, request: Any) -> Any:
        if len(request.start_ts) > PENDING_MAX:
            raise TooManyItems("start_ts", PENDING_MAX)
        # In a thread, because parts of the index may have to be read from the disk.
        outcomes = await asyncio.to_thread(lambda: list(map(self.store.reads.outcome, request.start_ts)))
        return pb.OutcomeResp(commit_ts=outcomes)
