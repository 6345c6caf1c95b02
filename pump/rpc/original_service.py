"""The original's services. For TiDB and Go drainers: WriteBinlog and PullBinlogs; of PD, for clusters without it:
GetMembers and Tso. Bytes in, bytes out."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any

from binlog.cluster.pd import COUNT_MAX
from binlog.cluster.tso import logical, physical_ms
from binlog.errors import BinlogError, ClusterMismatch
from binlog.pb import parsed, pump_pb2
from binlog.pb import pdpb_pb2 as pb
from binlog.rpc.messages import Buffer
from binlog.rpc.method import Method, Received, Responder
from binlog.runtime.log import Outage, get_logger

from pump import metrics
from pump.cluster.election import Election
from pump.errors import InvalidBinlog, NotLeader, Stopping
from pump.pull import BinlogPart, Chunk, pull_bytes
from pump.rpc.admission import InFlight
from pump.rpc.messages import LARGE_BYTES_MIN, entity, fast_payloads, parse_write
from pump.rpc.methods import Service
from pump.rpc.write_groups import Callers, TurnWriter
from pump.store.store import Store
from pump.store.write_path import Done

PULL_BYTES_MAX = 1 << 20
TOGETHER_BYTES = 32 << 10

_log = get_logger("pump.rpc.original_service")


class TsoService:
    """Handlers of `pdpb.PD`, on pumps whose cluster has no PD."""

    def __init__(self, election: Election, cluster_id: int) -> None:
        self._election = election
        self._cluster_id = cluster_id

    def service(self) -> Service:
        return Service("pdpb.PD", {"GetMembers": Method(unary=self.get_members), "Tso": Method(bidi=self.tso)})

    async def get_members(self, _data: Buffer) -> bytes:
        """Return the leader as the only member. Raises NotLeader while no pump is elected."""
        leader = self._election.leader
        if not leader:
            raise NotLeader("no pump is elected to allocate timestamps")
        member = pb.Member(name=leader, member_id=1, client_urls=[leader])
        response = pb.GetMembersResponse(header=self._header(), members=[member], leader=member)
        return response.SerializeToString()

    async def tso(self, requests: AsyncIterator[Received]) -> AsyncIterator[bytes]:
        """Answer each request, in order. NotLeader ends the stream; the client then looks for the new leader."""
        async for received in requests:
            request: Any = parsed(pb.TsoRequest, bytes(received.data))
            if request.header.cluster_id not in (0, self._cluster_id):
                raise ClusterMismatch.of(request.header.cluster_id, self._cluster_id)
            if not 0 < request.count <= COUNT_MAX:
                raise InvalidBinlog(
                    f"between 1 and {COUNT_MAX} timestamps can be requested at once, not {request.count}"
                )
            with metrics.timed("Tso"):
                last_ts = await self._election.timestamps(request.count)
            timestamp = pb.Timestamp(physical=physical_ms(last_ts), logical=logical(last_ts))
            response = pb.TsoResponse(header=self._header(), count=request.count, timestamp=timestamp)
            yield response.SerializeToString()

    def _header(self) -> Any:
        return pb.ResponseHeader(cluster_id=self._cluster_id)


class Gate:
    """The checks of both services before they use the store: whether the pump serves, whether the request is for this
    cluster, and whether the pump accepts prewrites now."""

    def __init__(self, cluster_id: int, refuses_prewrites: Callable[[], str]) -> None:
        """`refuses_prewrites`: returns the state in which prewrites are refused, or ""."""
        self.cluster_id = cluster_id
        self.refuses_prewrites = refuses_prewrites
        self.closed: str = "the pump is starting"

    def check(self, cluster_id: int) -> None:
        """Raise ClusterMismatch (P-RPC-01) for another cluster, and Stopping before the pump serves and after."""
        if cluster_id != self.cluster_id:
            raise ClusterMismatch.of(cluster_id, self.cluster_id)
        if self.closed:
            raise Stopping(self.closed)

    async def write(
        self, store: Store, method: str, cluster_id: int, payloads: Sequence[bytes]
    ) -> list[BinlogError | None]:
        """Do `check`, then write. Return one result for each payload. Metrics count the write under `method`."""
        try:
            self.check(cluster_id)
            began_s = time.monotonic()
            results = await store.writes.write(payloads, refuse_prewrites=self.refuses_prewrites())
        except BinlogError:
            metrics.lost(payloads)
            raise
        metrics.written(method, payloads, results, took_s=time.monotonic() - began_s)
        return results

    def submit(self, store: Store, method: str, payloads: Sequence[bytes], done: Done) -> None:
        """Write binlogs for this cluster like `write`, but report to `done`; see WritePath.submit."""
        began_s = time.monotonic()

        def count(results: list[BinlogError | None], left: Sequence[int]) -> None:
            given, judgements = payloads, results
            if left:
                judged = [place for place in range(len(payloads)) if place not in left]
                given, judgements = [payloads[place] for place in judged], [results[place] for place in judged]
            metrics.written(method, given, judgements, took_s=time.monotonic() - began_s)
            done(results, left)

        try:
            self.check(self.cluster_id)
            store.writes.submit(payloads, count, refuse_prewrites=self.refuses_prewrites())
        except BinlogError:
            metrics.lost(payloads)
            raise


def _together(chunk: Chunk) -> Iterator[list[bytes]]:
    """Yield the PullBinlogResps of a chunk in groups of about TOGETHER_BYTES, which is cheaper than one by one; no
    message waits long."""
    messages: list[bytes] = []
    size = 0
    for served in chunk:
        messages.append(entity(served.start_ts, served.commit_ts, (served.payload,)))
        size += len(served.payload)
        if size >= TOGETHER_BYTES:
            metrics.read("PullBinlogs", count=len(messages), size=size)
            yield messages
            messages, size = [], 0
    if messages:
        metrics.read("PullBinlogs", count=len(messages), size=size)
        yield messages


class PumpService:
    """Handlers of `binlog.Pump`."""

    def __init__(
        self, store: Store, gate: Gate, in_flight: InFlight | None = None, *, slow_write_s: float = 1.0
    ) -> None:
        self._store = store
        self._in_flight = in_flight or InFlight()
        self._gate = gate
        self._slow_write_s = slow_write_s
        submit = partial(gate.submit, store, "WriteBinlog")
        self._turn = TurnWriter(submit, partial(gate.write, store, "WriteBinlog", gate.cluster_id), self._tell)
        self._refusing = Outage(_log, "write refused", "writes are taken again")

    def service(self) -> Service:
        return Service(
            "binlog.Pump",
            {
                "WriteBinlog": Method(batched=self.write_batched, counted=True),
                "PullBinlogs": Method(streaming=self.pull_binlogs),
            },
            upstream=True,
        )

    def write_batched(self, responder: Responder, numbers: Sequence[int], requests: Sequence[Buffer]) -> None:
        """Write binlogs that arrived together, and answer each call through `responder` when its binlog is durable
        (P-RPC-02, P-RPC-03, P-RPC-07). If a caller is cancelled, its binlog is written all the same."""
        began_s = time.monotonic()
        payloads = fast_payloads(self._gate.cluster_id, requests)
        if payloads is not None:
            self._turn.take(Callers(responder, numbers, began_s), payloads)
            return
        for number, data in zip(numbers, requests, strict=True):
            callers = Callers(responder, (number,), began_s)
            try:
                cluster_id, payload = parse_write(data)
                if cluster_id != self._gate.cluster_id:
                    metrics.lost([payload])
                    self._gate.check(cluster_id)
            except BinlogError as error:
                metrics.observe("WriteBinlog", "fail", time.monotonic() - began_s)
                responder.refuse(number, error)
            else:
                self._turn.take(callers, (payload,))

    def _tell(self, callers: Callers, error: BaseException | None) -> None:
        responder, numbers, began_s = callers
        took_s = time.monotonic() - began_s
        if error is None:
            waited = responder.answer(numbers, b"")
            metrics.observe("WriteBinlog", "succ", took_s, waited)
            metrics.observe("WriteBinlog", "fail", took_s, len(numbers) - waited)
            self._refusing.over()
            if took_s >= self._slow_write_s:
                _log.warning("slow write", seconds=round(took_s, 3), binlogs=len(numbers))
            return
        for number in numbers:
            responder.refuse(number, error)
        metrics.observe("WriteBinlog", "fail", took_s, len(numbers))
        if isinstance(error, BinlogError):
            self._refusing.failed(error=error)

    async def pull_binlogs(self, data: Buffer) -> AsyncIterator[bytes | Sequence[bytes]]:
        """Stream every binlog after startFrom.offset when it is resolved (P-RPC-09, P-PULL-04, P-PULL-06). Fakes are
        included unchanged (P-FAKE-03), rollbacks are not (P-PULL-05).

        A purged position, damage or a stop of the pump ends the stream with an error status, never with an EOF that
        looks like a normal end.
        """
        request = parsed(pump_pb2.PullBinlogReq, bytes(data))
        self._gate.check(request.clusterID)
        last_ts = max(0, request.startFrom.offset)
        self._store.reads.check_position(last_ts)
        with metrics.pulling("PullBinlogs"), self._in_flight.pull(pull_bytes(PULL_BYTES_MAX)):
            async for message in self._entities(last_ts):
                yield message

    async def _entities(self, last_ts: int) -> AsyncIterator[bytes | Sequence[bytes]]:
        """Yield messages until the pump closes. A large binlog is one message, assembled from its parts."""
        large: list[bytes] = []
        async with contextlib.AsyncExitStack() as held:
            while not self._gate.closed:
                until_ts = await self._store.resolver.passed(last_ts)
                async for chunk in self._store.reads.pull(
                    last_ts, until_ts, bytes_max=PULL_BYTES_MAX, fakes=True, part_bytes_max=LARGE_BYTES_MIN
                ):
                    if not isinstance(chunk, BinlogPart):
                        for messages in _together(chunk):
                            yield messages
                        continue
                    if not large:
                        await held.enter_async_context(self._in_flight.answer(chunk.whole_bytes))
                    large.append(chunk.data)
                    if chunk.offset + len(chunk.data) == chunk.whole_bytes:
                        metrics.read("PullBinlogs", count=1, size=chunk.whole_bytes)
                        message = entity(chunk.start_ts, chunk.commit_ts, large)
                        large.clear()
                        yield message
                        del message
                        await held.aclose()
                last_ts = until_ts
            raise Stopping(self._gate.closed)
