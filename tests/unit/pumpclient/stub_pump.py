"""A pump in this process: a real gRPC server whose next answers a test can script.

It keeps what a pump keeps, by start_ts: pending prewrites, commits, and tombstones of rollbacks (correctness rule 5).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import grpc
import grpc.aio
from binlog.cluster.registry import NodeStatus, State
from binlog.envelope import BinlogType, Envelope, scan
from binlog.errors import ERROR_TRAILER, PumpError
from binlog.pb import binlog_pb2, pump_ext_pb2, pump_pb2

from tests.support.grpc_service import add_service
from tests.support.servers import free_port

CLUSTER_ID = 77


class Fault(Enum):
    """What happens to the next write instead of success."""

    REFUSE = "refuse by name, nothing stored"
    REFUSE_TEXT = "refuse as the Go pump does, nothing stored"
    BUSY = "too many bytes are in flight, nothing stored"
    FULL = "its disk is full, nothing stored"
    INVALID = "what it will never take, nothing stored"
    ERRMSG = "answer OK with an errmsg"
    LOSE_ANSWER = "store it, then fail as if the connection broke"
    TOO_LARGE = "RESOURCE_EXHAUSTED"
    DELAY = "hold it until `release`, then store it; the caller gets no answer"
    HANG = "never answer"
    UNCLEAR = "end the stream with INTERNAL, nothing stored"


class Refused(Exception):
    def __init__(self, code: grpc.StatusCode, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.kind = kind


@dataclass
class StubPump:
    """`faults` are used up one a write; `only` limits them to writes it is true of."""

    node_id: str
    extension: bool = True
    state: State = State.ONLINE
    score: int = 0
    label: Mapping[str, str] | None = None
    faults: deque[Fault] = field(default_factory=deque)
    only: Callable[[Envelope], bool] = lambda envelope: True
    on_write: Callable[[Envelope], object] = lambda envelope: None
    received: list[Envelope] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    pending: dict[int, bytes] = field(default_factory=dict)
    commits: dict[int, int] = field(default_factory=dict)
    tombstones: set[int] = field(default_factory=set)
    messages: list[int] = field(default_factory=list)
    plain_calls: int = 0
    receive_bytes_max: int = -1
    returns: bool = False  # it will be started again: nobody else may take its port meanwhile
    addr: str = ""
    delayed: list[bytes] = field(default_factory=list)
    _server: grpc.aio.Server | None = None

    async def start(self, port: int = 0) -> StubPump:
        self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", self.receive_bytes_max)])
        add_service(self._server, pump_pb2.DESCRIPTOR, "Pump", _Plain(self))
        if self.extension:
            add_service(self._server, pump_ext_pb2.DESCRIPTOR, "PumpExt", _Extension(self))
        if self.returns and not port:
            port = free_port()
        bound = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.addr = f"127.0.0.1:{bound}"
        await self._server.start()
        return self

    @property
    def port(self) -> int:
        return int(self.addr.rsplit(":", 1)[1])

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    @property
    def status(self) -> NodeStatus:
        return NodeStatus(self.node_id, self.addr, self.state, score=self.score, label=self.label)

    def release(self) -> None:
        """The delayed writes arrive now. A prewrite whose tombstone is there is refused, as a pump must."""
        for payload in self.delayed:
            try:
                self.store(payload)
            except Refused:
                continue
        self.delayed.clear()

    async def write(self, payload: bytes) -> str:
        """Store one binlog; an errmsg, "" for success. Raises Refused, or grpc's abort through the caller."""
        envelope = scan(payload)
        self.received.append(envelope)
        self.payloads.append(payload)
        self.on_write(envelope)
        fault = self.faults.popleft() if self.faults and self.only(envelope) else None
        if fault is Fault.REFUSE:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "no online: paused", PumpError.NOT_ONLINE)
        if fault is Fault.REFUSE_TEXT:
            raise Refused(grpc.StatusCode.UNKNOWN, "no online: pausing")
        if fault is Fault.BUSY:
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many bytes in flight", PumpError.OVERLOADED)
        if fault is Fault.FULL:
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "no available space", PumpError.NO_SPACE)
        if fault is Fault.INVALID:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "no binlog")
        if fault is Fault.ERRMSG:
            return "write failed: disk on fire"
        if fault is Fault.TOO_LARGE:
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "received message larger than max")
        if fault is Fault.UNCLEAR:
            raise Refused(grpc.StatusCode.INTERNAL, "Internal error from Core")
        if fault is Fault.HANG:
            await asyncio.Event().wait()
        if fault is Fault.DELAY:
            self.delayed.append(payload)
            raise Refused(grpc.StatusCode.UNAVAILABLE, "connection reset by peer")
        if self.state is not State.ONLINE and envelope.tp == BinlogType.PREWRITE:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, f"no online: {self.state}", PumpError.NOT_ONLINE)
        self.store(payload)
        if fault is Fault.LOSE_ANSWER:
            raise Refused(grpc.StatusCode.UNAVAILABLE, "connection reset by peer")
        return ""

    def store(self, payload: bytes) -> None:
        envelope = scan(payload)
        start_ts = envelope.start_ts
        if envelope.tp == BinlogType.PREWRITE:
            if start_ts == 0:
                return
            if start_ts in self.tombstones:
                raise Refused(grpc.StatusCode.ABORTED, f"transaction {start_ts} was rolled back")
            if start_ts not in self.commits:
                self.pending[start_ts] = payload
        elif envelope.commit_ts:
            if start_ts in self.tombstones:
                raise Refused(grpc.StatusCode.ABORTED, f"commit of {start_ts}: a rollback is stored already")
            assert start_ts in self.pending or self.commits.get(start_ts) == envelope.commit_ts, (
                "commit without prewrite"
            )
            self.pending.pop(start_ts, None)
            self.commits[start_ts] = envelope.commit_ts
        else:
            self.pending.pop(start_ts, None)
            self.tombstones.add(start_ts)

    def store_rollback(self, start_ts: int) -> None:
        """As if its writer's lease had ended."""
        self.pending.pop(start_ts, None)
        self.tombstones.add(start_ts)

    def of(self, tp: BinlogType) -> list[Envelope]:
        return [envelope for envelope in self.received if envelope.tp == tp and envelope.start_ts]


class _Plain:
    def __init__(self, pump: StubPump) -> None:
        self._pump = pump

    async def WriteBinlog(self, request: pump_pb2.WriteBinlogReq, context: Any) -> pump_pb2.WriteBinlogResp:
        self._pump.plain_calls += 1
        if request.clusterID != CLUSTER_ID:
            await context.abort(
                grpc.StatusCode.UNKNOWN, f"cluster ID are mismatch, {request.clusterID} vs {CLUSTER_ID}"
            )
        try:
            return pump_pb2.WriteBinlogResp(errmsg=await self._pump.write(request.payload))
        except Refused as refused:
            trailers = ((ERROR_TRAILER, refused.kind),) if refused.kind else ()
            await context.abort(refused.code, refused.message, trailers)
            raise


class _Extension:
    def __init__(self, pump: StubPump) -> None:
        self._pump = pump

    async def WriteBatch(
        self, requests: AsyncIterator[pump_ext_pb2.WriteBatchReq], context: Any
    ) -> AsyncIterator[pump_ext_pb2.WriteBatchResp]:
        async for request in requests:
            self._pump.messages.append(len(request.payloads))
            errors: list[pump_ext_pb2.WriteError] = []
            for index, payload in enumerate(request.payloads):
                try:
                    errmsg = await self._pump.write(payload)
                except Refused as refused:
                    if refused.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL):
                        await context.abort(refused.code, refused.message)
                    errors.append(_error(index, refused.code.value[0], refused.message, refused.kind))
                    continue
                if errmsg:
                    errors.append(_error(index, 2, errmsg))
            yield pump_ext_pb2.WriteBatchResp(batch_id=request.batch_id, errors=errors)

    async def Inspect(self, request: pump_ext_pb2.InspectReq, context: Any) -> pump_ext_pb2.InspectResp:
        response = pump_ext_pb2.InspectResp(
            node_id=self._pump.node_id, state=self._pump.state, pending_count=len(self._pump.pending)
        )
        for start_ts, payload in sorted(self._pump.pending.items())[: request.pending_max]:
            binlog = binlog_pb2.Binlog.FromString(payload)
            response.pending.add(
                start_ts=start_ts,
                age_ms=1500,
                ddl_job_id=binlog.ddl_job_id,
                bytes=len(payload),
                prewrite_key=binlog.prewrite_key,
                writer=binlog.writer,
            )
        return response

    async def Settle(self, request: pump_ext_pb2.SettleReq, context: Any) -> pump_ext_pb2.SettleResp:
        if self._pump.pending.pop(request.start_ts, None) is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no prewrite of start_ts {request.start_ts} is pending")
        if request.commit_ts:
            self._pump.commits[request.start_ts] = request.commit_ts
        return pump_ext_pb2.SettleResp(commit_ts=request.commit_ts)

    async def Outcome(self, request: pump_ext_pb2.OutcomeReq, context: Any) -> pump_ext_pb2.OutcomeResp:
        return pump_ext_pb2.OutcomeResp(commit_ts=[self._pump.commits.get(ts, 0) for ts in request.start_ts])


def _error(index: int, code: int, message: str, kind: str = "") -> pump_ext_pb2.WriteError:
    return pump_ext_pb2.WriteError(index=index, code=code, message=message, kind=kind)
