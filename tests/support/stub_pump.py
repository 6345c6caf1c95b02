"""A pump for tests: a real gRPC server that serves the given binlogs and reports the given resolved ts."""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections.abc import Iterator
from concurrent import futures

import grpc
from binlog import envelope
from binlog.errors import ERROR_TRAILER, PumpError
from binlog.pb import pump_ext_pb2 as ext
from binlog.pb import pump_pb2

from drainer.pumps.client import cut_into_parts
from drainer.pumps.go_pump import ReceivedBinlog, cut, received
from drainer.pumps.watermark import BatchLimits
from tests.support.grpc_service import add_service

MESSAGE_BYTES_CAP = 16 << 20
HEARTBEAT_S = 1.0  # while a Go pump is idle


class StubPump:
    """Serves on a port of `address` from construction until `stop`. `extension` False: a Go pump.

    `put` stores a merged binlog. If the last one is a fake, a Go pump serves further ones while it is idle. `resolve`
    sets the ts up to which everything is final. `failing_pulls`: how many pulls break off in the middle before one is
    served completely. `unserved`: commit_ts that its plans announce but its pulls omit. `omits_end`: its pulls lack the
    final message. A DDL is served complete, as by a real pump.
    """

    def __init__(
        self,
        *,
        extension: bool = True,
        cluster_id: int = 1,
        threads: int = 8,
        port: int = 0,
        address: str = "127.0.0.1",
    ) -> None:
        self._stored: list[tuple[int, bytes]] = []
        self._changed = threading.Condition()
        self._cluster_id = cluster_id
        self.resolved_ts = 0
        self.purged_ts = 0
        self.failing_pulls = 0
        self.unserved: set[int] = set()
        self.omits_end = False
        self.extension = extension
        self.streaming = threading.Event()  # set when a PullBinlogs has sent everything that is stored
        self.pulls: list[tuple[int, int]] = []
        self.streams: list[int] = []  # after_ts of each PullBinlogs
        self._server = grpc.server(futures.ThreadPoolExecutor(threads))
        if extension:
            add_service(self._server, ext.DESCRIPTOR, "PumpExt", self)
        add_service(self._server, pump_pb2.DESCRIPTOR, "Pump", self)
        self.host = f"{address}:{self._server.add_insecure_port(f'{address}:{port}')}"
        self._stopping = False
        self._server.start()

    def put(self, *payloads: bytes) -> None:
        with self._changed:
            for payload in payloads:
                insort(self._stored, (envelope.scan(payload).commit_ts, payload))
            self._changed.notify_all()

    def resolve(self, ts: int) -> None:
        self.resolved_ts = ts

    def end_streams(self) -> None:
        """End every PullBinlogs as if there were nothing more, as a stopping Go pump does."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def stop(self) -> None:
        self.end_streams()
        self._server.stop(None).wait()

    def Watermark(self, request: ext.WatermarkReq, context: grpc.ServicerContext) -> ext.WatermarkResp:
        self._check(request.cluster_id, context)
        resolved_ts = self.resolved_ts
        limits = BatchLimits(
            request.batch_bytes_max,
            request.batch_count_max,
            request.stop_at_schema,
            request.schema_version,
            request.large_bytes_min,
        )
        binlogs = self._received(request.after_ts, resolved_ts)
        mark = cut(received(binlogs), limits, node_id="", host="", resolved_ts=resolved_ts)
        return ext.WatermarkResp(
            resolved_ts=resolved_ts,
            batch_end_ts=mark.end_ts,
            batch_bytes=mark.batch_bytes,
            batch_count=mark.batch_count,
            stop=mark.stop.name,
            stop_ts=mark.stop_ts,
            split_ts=mark.split_ts,
            state="online",
            purged_ts=self.purged_ts,
            stop_bytes=mark.stop_bytes,
            last_ts=mark.last_ts,
            split_count=[part.count for part in mark.splits],
            split_bytes=[part.size or 0 for part in mark.splits],
            bytes_exact=True,
        )

    def Count(self, request: ext.CountReq, context: grpc.ServicerContext) -> ext.CountResp:
        self._check(request.cluster_id, context)
        self._check_range(request.after_ts, request.until_ts, context)
        sizes = [binlog.size for binlog in self._received(request.after_ts, request.until_ts)]
        return ext.CountResp(count=len(sizes), bytes=sum(sizes), bytes_exact=True)

    def PullRange(self, request: ext.PullRangeReq, context: grpc.ServicerContext) -> Iterator[ext.PullRangeResp]:
        self._check(request.cluster_id, context)
        self._check_range(request.after_ts, request.until_ts, context)
        self.pulls.append((request.after_ts, request.until_ts))
        message, size, end = ext.PullRangeResp(), 0, ext.PullEnd()
        for ts, payload in self._between(request.after_ts, request.until_ts):
            found = envelope.scan(payload)
            if ts in self.unserved or found.is_fake:
                continue
            if len(payload) > (request.part_bytes_max or MESSAGE_BYTES_CAP) and not found.ddl_job_id:
                if size:
                    yield message
                yield from cut_into_parts(payload, ts, request.part_bytes_max or MESSAGE_BYTES_CAP)
                end.count += 1
                end.bytes += len(payload)
                message, size = ext.PullRangeResp(), 0
                continue
            if size and size + len(payload) > (request.message_bytes_max or 1 << 20):
                yield message
                message, size = ext.PullRangeResp(), 0
            message.payloads.append(payload)
            message.last_ts = ts
            size += len(payload)
            end.count += 1
            end.bytes += len(payload)
            if self.failing_pulls:
                self.failing_pulls -= 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "the pump was killed")
        if size:
            yield message
        if not self.omits_end:
            yield ext.PullRangeResp(end=end)

    def Inspect(self, request: ext.InspectReq, context: grpc.ServicerContext) -> ext.InspectResp:
        return ext.InspectResp(resolved_ts=self.resolved_ts)

    def PullBinlogs(
        self, request: pump_pb2.PullBinlogReq, context: grpc.ServicerContext
    ) -> Iterator[pump_pb2.PullBinlogResp]:
        last, sent_s = request.startFrom.offset, time.monotonic()
        self.streams.append(last)
        while context.is_active() and not self._stopping:
            with self._changed:
                found = self._between(last, 1 << 62)
                if not found:
                    self.streaming.set()
                    self._changed.wait(0.1)
            if not found and time.monotonic() - sent_s > HEARTBEAT_S and self._writes_fakes():
                last += 1
                found = [(last, envelope.encode_fake(last))]
            for ts, payload in found:
                last, sent_s = ts, time.monotonic()
                if ts not in self.unserved:
                    yield pump_pb2.PullBinlogResp(entity=pump_pb2.Entity(payload=payload))

    def _writes_fakes(self) -> bool:
        return bool(self._stored) and envelope.scan(self._stored[-1][1]).is_fake

    def _between(self, after_ts: int, until_ts: int) -> list[tuple[int, bytes]]:
        return [(ts, payload) for ts, payload in list(self._stored) if after_ts < ts <= until_ts]

    def _received(self, after_ts: int, until_ts: int) -> Iterator[ReceivedBinlog]:
        for ts, payload in self._between(after_ts, until_ts):
            found = envelope.scan(payload)
            if not found.is_fake:
                yield ReceivedBinlog(ts, len(payload), bool(found.ddl_job_id), found.schema_version)

    def _check_range(self, after_ts: int, until_ts: int, context: grpc.ServicerContext) -> None:
        if after_ts < self.purged_ts:
            context.abort(grpc.StatusCode.OUT_OF_RANGE, f"purged up to {self.purged_ts}")
        if until_ts > self.resolved_ts:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"resolved is {self.resolved_ts}")

    def _check(self, cluster_id: int, context: grpc.ServicerContext) -> None:
        if cluster_id != self._cluster_id:
            context.set_trailing_metadata(((ERROR_TRAILER, PumpError.CLUSTER_MISMATCH),))
            text = f"cluster ID are mismatch, {cluster_id} vs {self._cluster_id}"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
