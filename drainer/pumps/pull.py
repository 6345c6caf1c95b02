"""Pulls one range from one pump, inside an executor. Synchronous; a worker keeps its channels between tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import grpc
from binlog import envelope
from binlog.pb import pump_ext_pb2 as ext
from binlog.pb import pump_pb2, pump_pb2_grpc
from binlog.security import Security

from drainer.pumps.client import CHANNEL_OPTIONS, NoExtension, translate
from drainer.pumps.mark import PumpRange

MESSAGE_BYTES_MAX = 1 << 20
PULL_TIMEOUT_S = 600.0
_PULL_RANGE = "/binlog.ext.PumpExt/PullRange"


@lru_cache(maxsize=64)
def _channel(host: str, security: Security) -> grpc.Channel:
    credentials = security.grpc_channel_credentials()
    if credentials is None:
        return grpc.insecure_channel(host, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(host, credentials, options=CHANNEL_OPTIONS)


def pull(part: PumpRange, *, cluster_id: int, security: Security) -> Iterator[bytes]:
    """Serialized PullRangeResp messages that hold every binlog of the range, ascending.

    Raises PumpUnavailable, PurgedPosition and ClusterMismatch; what was yielded before is a prefix of the range.
    """
    messages = _pull_ours if part.extension else _pull_go
    try:
        yield from messages(part, cluster_id, _channel(part.host, security))
    except grpc.RpcError as error:
        failure = translate(error, f"pump {part.node_id} ({part.host})", after_ts=part.after_ts)
        if not isinstance(failure, NoExtension):
            raise failure from error
        # Planned while ours ran there: a Go pump has been started on its data-dir since.
        yield from pull(replace(part, extension=False), cluster_id=cluster_id, security=security)


def payloads(message: bytes) -> list[bytes]:
    """The binlogs in one message of `pull`."""
    return list(ext.PullRangeResp.FromString(message).payloads)


def _pull_ours(part: PumpRange, cluster_id: int, channel: grpc.Channel) -> Iterator[bytes]:
    request = ext.PullRangeReq(
        cluster_id=cluster_id,
        after_ts=part.after_ts,
        until_ts=part.until_ts,
        message_bytes_max=MESSAGE_BYTES_MAX,
    )
    # No deserializer: the message goes to Spark as it came.
    call: grpc.UnaryStreamMultiCallable[ext.PullRangeReq, bytes] = channel.unary_stream(
        _PULL_RANGE, request_serializer=ext.PullRangeReq.SerializeToString
    )
    yield from call(request, timeout=PULL_TIMEOUT_S, wait_for_ready=True)


def _pull_go(part: PumpRange, cluster_id: int, channel: grpc.Channel) -> Iterator[bytes]:
    """A Go pump streams without end: stop at the first binlog at or above until_ts. There is one, for the driver
    has seen it before it planned this range (drainer.pumps.go)."""
    stub = pump_pb2_grpc.PumpStub(channel)  # type: ignore[no-untyped-call]
    request = pump_pb2.PullBinlogReq(clusterID=cluster_id, startFrom=pump_pb2.Pos(offset=part.after_ts))
    stream = stub.PullBinlogs(request, timeout=PULL_TIMEOUT_S, wait_for_ready=True)
    message, size = ext.PullRangeResp(), 0
    try:
        for answer in stream:
            payload = answer.entity.payload
            commit_ts = envelope.scan(payload).commit_ts
            if commit_ts <= part.until_ts:
                message.payloads.append(payload)
                message.last_ts = commit_ts
                size += len(payload)
            if commit_ts >= part.until_ts:
                break
            if size >= MESSAGE_BYTES_MAX:
                yield message.SerializeToString()
                message, size = ext.PullRangeResp(), 0
        if message.payloads:
            yield message.SerializeToString()
    finally:
        stream.cancel()
