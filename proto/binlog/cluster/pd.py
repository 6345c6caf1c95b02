"""PD client: leader, cluster id and timestamps.

The same client works with a real PD and with an elected pump, which serves GetMembers and Tso on its own port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio

from binlog.cluster.tso import LOGICAL_BITS, compose
from binlog.errors import BinlogError, ClusterMismatch, TimestampUnavailable
from binlog.pb import pdpb_pb2
from binlog.runtime.channel import keepalive, open_channel, stub_of
from binlog.runtime.security import Security
from binlog.runtime.waiting import cancel

REQUEST_TIMEOUT_S = 3.0
COUNT_MAX = 1 << (LOGICAL_BITS - 1)

_OPTIONS = (
    *keepalive(timeout_s=5),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


@dataclass(frozen=True, slots=True)
class Allocator:
    """The current allocator of timestamps: its URL or host:port, and its cluster id."""

    address: str
    cluster_id: int


class NotPD(BinlogError):
    """The server at this address is not a PD. A plain etcd answers UNIMPLEMENTED."""


async def ask_members(url: str, security: Security | None = None) -> Allocator:
    """Call GetMembers at one address and return the leader.

    Raises NotPD if the server is not a PD, TimestampUnavailable if there is no usable answer.
    """
    try:
        async with open_channel(url, security, _OPTIONS) as channel:
            stub = stub_of(channel, pdpb_pb2.DESCRIPTOR, "PD")
            response = await stub.GetMembers(pdpb_pb2.GetMembersRequest(), timeout=REQUEST_TIMEOUT_S)
    except aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise NotPD(f"{url} is not a PD: {error.details()}") from error
        raise TimestampUnavailable(f"PD at {url}: {error.code().name}: {error.details()}") from error
    _check_header(url, response.header)
    if response.header.cluster_id == 0:
        raise TimestampUnavailable(f"PD at {url} answered without a cluster id")
    leader = response.leader.client_urls[0] if response.leader.client_urls else url
    return Allocator(leader, response.header.cluster_id)


async def ask_first(urls: Sequence[str], security: Security | None = None) -> Allocator:
    """Call GetMembers at all addresses in parallel and return the first usable answer, so that a dead address costs no
    time.

    Raises NotPD if no server is a PD and at least one is something else, TimestampUnavailable if none answers usably.
    """
    asked = [asyncio.ensure_future(ask_members(url, security)) for url in urls]
    failures: list[BinlogError] = []
    try:
        for done in asyncio.as_completed(asked):
            try:
                return await done
            except (TimestampUnavailable, NotPD) as error:
                failures.append(error)
    finally:
        await cancel(*asked)
    for failure in failures:
        if isinstance(failure, NotPD):
            raise failure
    raise failures[-1] if failures else TimestampUnavailable("no address of PD is configured")


async def gc_safepoint(leader: Allocator, security: Security | None = None) -> int:
    """Return the ts up to which TiKV may have removed old records of transactions; 0 if nothing was ever removed.

    Raises TimestampUnavailable if PD does not answer.
    """
    request = pdpb_pb2.GetGCSafePointRequest(header=pdpb_pb2.RequestHeader(cluster_id=leader.cluster_id))
    response = await _ask(leader, security, "GetGCSafePoint", request)
    return int(response.safe_point)


async def hold_gc(leader: Allocator, service: str, ts: int, ttl_s: int, security: Security | None = None) -> None:
    """Keep what is readable at `ts` from being removed for `ttl_s` seconds, instead of what was asked for under this
    name before; 0: no longer.

    Raises TimestampUnavailable if PD does not answer, or if it may have been removed already.
    """
    request = pdpb_pb2.UpdateServiceGCSafePointRequest(
        header=pdpb_pb2.RequestHeader(cluster_id=leader.cluster_id),
        service_id=service.encode(),
        TTL=ttl_s,
        safe_point=ts,
    )
    response = await _ask(leader, security, "UpdateServiceGCSafePoint", request)
    if ttl_s and response.min_safe_point > ts:
        raise TimestampUnavailable(
            f"PD at {leader.address}: GC may have passed {ts}: it is at {response.min_safe_point}"
        )


async def _ask(leader: Allocator, security: Security | None, method: str, request: Any) -> Any:
    try:
        async with open_channel(leader.address, security, _OPTIONS) as channel:
            stub = stub_of(channel, pdpb_pb2.DESCRIPTOR, "PD")
            response = await getattr(stub, method)(request, timeout=REQUEST_TIMEOUT_S)
    except aio.AioRpcError as error:
        where = f"{method} of PD at {leader.address}"
        raise TimestampUnavailable(f"{where}: {error.code().name}: {error.details()}") from error
    _check_header(leader.address, response.header)
    return response


def _check_header(address: str, header: Any) -> None:
    if header.error.type != pdpb_pb2.OK:
        raise TimestampUnavailable(f"PD at {address}: {header.error.message or header.error.type}")


class TsoClient:
    """Gets timestamps over one stream from the allocator that a subclass locates.

    Idle, connected, or closed. One request is in flight at a time. After a failure, a timeout or a cancellation the
    stream is discarded, so that a late answer cannot be taken for the answer to a later request. Timestamps increase
    from call to call: a call fails if the allocator returns a smaller one.

    A *held* clock (`StubPD`, for replaying recordings) answers with count 0 and its ceiling, which is then returned
    repeatedly.
    """

    def __init__(self, security: Security | None) -> None:
        self._security = security
        self._lock = asyncio.Lock()
        self._allocator = Allocator("", 0)
        self._channel: aio.Channel | None = None
        self._stream: aio.StreamStreamCall[Any, Any] | None = None
        self._last_ts = 0

    async def locate(self) -> Allocator:
        """Return the current allocator. Called before each stream."""
        raise NotImplementedError

    async def timestamps(self, count: int) -> Sequence[int]:
        """Return `count` timestamps in ascending order, above those of earlier calls.

        Raises TimestampUnavailable or ClusterMismatch.
        """
        if not 0 < count <= COUNT_MAX:
            raise ValueError(f"between 1 and {COUNT_MAX} timestamps can be requested at once, not {count}")
        async with self._lock:
            try:
                await self._connect()
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    response = await self._ask(count)
                return self._accept(response, count)
            except aio.AioRpcError as error:
                self._drop()
                where = f"timestamps from {self._allocator.address}"
                raise TimestampUnavailable(f"{where}: {error.code().name}: {error.details()}") from error
            except (TimeoutError, asyncio.InvalidStateError) as error:
                self._drop()
                where = self._allocator.address or "an allocator"
                raise TimestampUnavailable(f"timestamps from {where}: no answer: {error}") from error
            except BaseException:
                self._drop()
                raise

    async def close(self) -> None:
        async with self._lock:
            self._drop()

    async def _connect(self) -> None:
        if self._stream is None:
            self._allocator = await self.locate()
            self._channel = open_channel(self._allocator.address, self._security, _OPTIONS)
            stub = stub_of(self._channel, pdpb_pb2.DESCRIPTOR, "PD")
            self._stream = stub.Tso()

    async def _ask(self, count: int) -> Any:
        assert self._stream is not None
        header = pdpb_pb2.RequestHeader(cluster_id=self._allocator.cluster_id)
        await self._stream.write(pdpb_pb2.TsoRequest(header=header, count=count))
        response = await self._stream.read()
        if response is aio.EOF:
            raise TimestampUnavailable(f"timestamps from {self._allocator.address}: the stream was closed")
        return response

    def _accept(self, response: Any, count: int) -> Sequence[int]:
        where = self._allocator.address
        _check_header(where, response.header)
        if response.header.cluster_id != self._allocator.cluster_id:
            raise ClusterMismatch.of(response.header.cluster_id, self._allocator.cluster_id)
        end_ts = compose(response.timestamp.physical, response.timestamp.logical)
        if response.count == 0:
            if end_ts < self._last_ts:
                raise TimestampUnavailable(
                    f"{where} went backwards: its clock is held at {end_ts} after {self._last_ts}"
                )
            self._last_ts = end_ts
            return [end_ts] * count
        if response.count != count:
            raise TimestampUnavailable(f"{where} returned {response.count} timestamps instead of {count}")
        first_ts = end_ts - count + 1
        if first_ts <= self._last_ts:
            raise TimestampUnavailable(f"{where} went backwards: it returned {first_ts} after {self._last_ts}")
        self._last_ts = end_ts
        return range(first_ts, end_ts + 1)

    def _drop(self) -> None:
        """Discard the stream without waiting. Its channel is closed in the background."""
        stream, channel = self._stream, self._channel
        self._stream = self._channel = None
        if stream is not None:
            stream.cancel()
        if channel is not None:
            _closing.add(task := asyncio.ensure_future(channel.close()))
            task.add_done_callback(_closing.discard)


_closing: set[asyncio.Future[None]] = set()


class PDClient(TsoClient):
    """The PD at some URLs. Its cluster id is queried once; later answers from another cluster are refused."""

    def __init__(self, urls: Sequence[str], security: Security | None = None) -> None:
        if not urls:
            raise ValueError("a PD client needs at least one URL")
        super().__init__(security)
        self._urls = tuple(urls)
        self._cluster_id = 0

    async def locate(self) -> Allocator:
        """Return the leader. Raises ClusterMismatch if another cluster answers now, or the errors of ask_first."""
        found = await ask_first(self._urls, self._security)
        if self._cluster_id not in (0, found.cluster_id):
            raise ClusterMismatch.of(found.cluster_id, self._cluster_id)
        self._cluster_id = found.cluster_id
        return found
