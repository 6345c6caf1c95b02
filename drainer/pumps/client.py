"""One of our pumps, asked over the extension service. A Go pump answers UNIMPLEMENTED, which is NoExtension here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import grpc
import grpc.aio
from binlog import envelope
from binlog.errors import BinlogError, ClusterMismatch, PumpUnavailable, PurgedPosition
from binlog.pb import pump_ext_pb2 as ext
from binlog.pb import pump_ext_pb2_grpc as ext_grpc
from binlog.security import Security

from drainer.pumps.left import MISSED_MAX, MISSED_SHOWN, Missed
from drainer.pumps.mark import Limits, PumpMark, Stop

CALL_TIMEOUT_S = 10.0
MISSED_TIMEOUT_S = 60.0
PENDING_SHOWN_MAX = 20

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", -1),  # one binlog alone may be larger than any fixed bound
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
)


class NoExtension(BinlogError):
    """This pump does not know the extension service: a Go pump."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A prewrite whose commit has not come: it holds the watermark back (`binlogctl settle` ends it)."""

    start_ts: int
    age_ms: int
    ddl_job_id: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a pump says of itself. `late_count`: commits that arrived at or below a resolved ts already given out."""

    resolved_ts: int
    pending_count: int
    pending: tuple[Pending, ...]
    late_count: int
    late_ts: tuple[int, ...]


class PumpClient(Protocol):
    """One pump that can be asked how far it is. `interrupted`: the connection was lost since this was last cleared, and
    what runs at the address may be another program now."""

    extension: bool
    interrupted: bool

    async def mark(self, *, after_ts: int, limits: Limits) -> PumpMark: ...

    async def inspect(self) -> Inspection | None: ...

    async def missed(self, *, after_ts: int, until_ts: int) -> Missed:
        """What it holds in (after_ts, until_ts], all of which must be resolved there. Raises as `mark` does."""
        ...

    async def close(self) -> None: ...


class Count:
    """Counts binlogs for `missed`, fakes apart."""

    def __init__(self) -> None:
        self._count = 0
        self._shown: list[tuple[int, int]] = []

    @property
    def full(self) -> bool:
        return self._count >= MISSED_MAX

    def add(self, found: envelope.Envelope) -> None:
        if found.is_fake:
            return
        self._count += 1
        if len(self._shown) < MISSED_SHOWN:
            self._shown.append((found.start_ts, found.commit_ts))

    def result(self) -> Missed:
        return Missed(self._count, tuple(self._shown))


def aio_channel(host: str, security: Security) -> grpc.aio.Channel:
    credentials = security.grpc_channel_credentials()
    if credentials is None:
        return grpc.aio.insecure_channel(host, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(host, credentials, options=CHANNEL_OPTIONS)


class ExtensionPump:
    """A client of PumpExt at one address. Nothing is sent before the first question."""

    extension = True
    interrupted = False  # its answers tell by themselves when it is no pump of ours any more

    def __init__(self, node_id: str, host: str, *, cluster_id: int, security: Security) -> None:
        self._node_id = node_id
        self._host = host
        self._cluster_id = cluster_id
        self._channel = aio_channel(host, security)
        self._stub = ext_grpc.PumpExtStub(self._channel)  # type: ignore[no-untyped-call]

    async def mark(self, *, after_ts: int, limits: Limits) -> PumpMark:
        """Raises NoExtension, ClusterMismatch, PurgedPosition, PumpUnavailable."""
        request = ext.WatermarkReq(
            cluster_id=self._cluster_id,
            after_ts=after_ts,
            batch_bytes_max=limits.batch_bytes_max,
            batch_count_max=limits.batch_count_max,
            stop_at_schema=limits.stop_at_schema,
            schema_version=limits.schema_version,
        )
        try:
            answer: ext.WatermarkResp = await self._stub.Watermark(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise translate(error, f"pump {self._node_id} ({self._host})", after_ts=after_ts) from error
        if 0 < after_ts < answer.purged_ts:
            raise PurgedPosition(after_ts, answer.purged_ts)
        return PumpMark(
            node_id=self._node_id,
            host=self._host,
            extension=True,
            resolved_ts=answer.resolved_ts,
            end_ts=answer.batch_end_ts,
            batch_bytes=answer.batch_bytes,
            batch_count=answer.batch_count,
            stop=Stop(answer.stop),
            stop_ts=answer.stop_ts,
            split_ts=tuple(answer.split_ts),
            purged_ts=answer.purged_ts,
        )

    async def inspect(self) -> Inspection | None:
        request = ext.InspectReq(cluster_id=self._cluster_id, pending_max=PENDING_SHOWN_MAX)
        try:
            answer: ext.InspectResp = await self._stub.Inspect(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise translate(error, f"pump {self._node_id} ({self._host})") from error
        pending = tuple(Pending(p.start_ts, p.age_ms, p.ddl_job_id) for p in answer.pending)
        return Inspection(
            answer.resolved_ts,
            answer.pending_count,
            pending,
            answer.late_commit_count,
            tuple(answer.late_commit_ts),
        )

    async def missed(self, *, after_ts: int, until_ts: int) -> Missed:
        request = ext.PullRangeReq(cluster_id=self._cluster_id, after_ts=after_ts, until_ts=until_ts)
        count = Count()
        stream = self._stub.PullRange(request, timeout=MISSED_TIMEOUT_S)
        try:
            async for answer in stream:
                for payload in answer.payloads:
                    count.add(envelope.scan(payload))
                if count.full:
                    break
        except grpc.aio.AioRpcError as error:
            raise translate(error, f"pump {self._node_id} ({self._host})", after_ts=after_ts) from error
        finally:
            stream.cancel()
        return count.result()

    async def close(self) -> None:
        await self._channel.close()


def translate(error: grpc.RpcError, who: str, *, after_ts: int = 0) -> BinlogError:
    """The one place of the drainer that knows gRPC codes."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE:
        details = details.rpartition("Failed to connect to remote host: ")[2]  # without a list of every address tried
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return NoExtension(f"{who} has no extension service")
    if code is grpc.StatusCode.UNKNOWN and "cluster ID are mismatch" in details:
        return ClusterMismatchAt(f"{who}: {details}")
    if code is grpc.StatusCode.OUT_OF_RANGE:
        return PurgedAt(f"{who}: binlogs after ts {after_ts} may be gone: {details}")
    return PumpUnavailable(f"{who}: {code.name}: {details}")


class ClusterMismatchAt(ClusterMismatch):
    """The pump belongs to another cluster."""

    def __init__(self, text: str) -> None:
        super().__init__(0, 0)
        self._text = text

    def __str__(self) -> str:
        return self._text


class PurgedAt(PurgedPosition):
    """The pump said so while it was pulled from."""

    def __init__(self, text: str) -> None:
        super().__init__(0, 0)
        self._text = text

    def __str__(self) -> str:
        return self._text
