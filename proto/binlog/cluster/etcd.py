"""etcd client over etcd's gRPC API: the operations that the programs use. tests/support/memory_etcd.py has the same in
memory, and the same tests run on both.

From aetcd only the generated stubs are used. Its client has one endpoint and no TLS, and it multiplexes watches over a
stream whose failure it hides. Here every watch has its own stream, and the end of the stream is reported to the caller.

A request is sent to the first endpoint that is connected. Reads are tried on every endpoint. A write is not repeated
once it may have been sent: the second copy could undo other clients' writes in between, or take its own first copy for
another client's write.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import grpc
from aetcd import rpc
from grpc import aio

from binlog.cluster.tso import boot_clock_s
from binlog.errors import EtcdError, LeaseExpired, WatchBroken
from binlog.runtime.channel import keepalive, open_blocking_channel, open_channel
from binlog.runtime.log import Outage, get_logger
from binlog.runtime.security import Security

REQUEST_TIMEOUT_S = 5.0  # as in the original
RENEWAL_TIMEOUT_S = 2.0  # of a KeepAliveThread
RENEWALS_PER_TTL = 4
RENEWAL_RETRY_S = 0.3
MESSAGE_BYTES_MAX = 64 << 20

_OPTIONS = (
    *keepalive(timeout_s=5),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_retries", 0),
)
_RENEWAL_OPTIONS = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500))
_HAS_LEADER = (("hasleader", "true"),)  # a member that is separated from its cluster must end the watch

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KV:
    """A key and its value as read. `mod_revision`: of the key's last write; `lease_id` 0: no lease."""

    key: str
    value: bytes
    mod_revision: int
    lease_id: int = 0


class EventKind(StrEnum):
    PUT = "put"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Event:
    """A change of a key. For a delete, `kv.value` is empty and `kv.mod_revision` is the revision of the deletion."""

    kind: EventKind
    kv: KV


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a transaction: the key has this mod_revision (0: it is absent)."""

    key: str
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """A write in a transaction. `lease`: the id of a lease, or None."""

    key: str
    value: bytes
    lease: int | None = None


class _Endpoint:
    """The channel and the stubs of one etcd member."""

    def __init__(self, url: str, security: Security) -> None:
        self.url = url
        self.channel = open_channel(url, security, _OPTIONS)
        self.kv = rpc.KVStub(self.channel)
        self.leases = rpc.LeaseStub(self.channel)
        self.watches = rpc.WatchStub(self.channel)

    async def ready(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for a connection. Return whether there is one."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.channel.channel_ready()
        except TimeoutError:
            return False
        return True


def connect_etcd(endpoints: Sequence[str], security: Security | None = None) -> Etcd:
    """Return a client of the etcd at `endpoints` (URLs or host:port). It sends nothing before the first request."""
    if not endpoints:
        raise EtcdError("no etcd endpoint is configured")
    return Etcd(endpoints, security or Security())


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease. When it ends, its keys are removed. `ttl_s`: the time etcd granted, which may exceed the request."""

    id: int
    ttl_s: int
    _etcd: Etcd

    async def keep_alive(self) -> int:
        """Renew the lease once, on a stream of its own. A repeated renewal does no harm, so every endpoint is tried.
        Return the seconds for which it is valid, counted from a moment after the call began.

        Raises LeaseExpired if it has ended. To be safe, callers count from *before* the call (correctness rule 7: one
        allocator of timestamps).
        """
        request = rpc.LeaseKeepAliveRequest(ID=self.id)

        async def once(endpoint: _Endpoint) -> Any:
            call = endpoint.leases.LeaseKeepAlive(timeout=self._etcd.timeout_s)
            try:
                await call.write(request)
                response = await call.read()
                if response is aio.EOF:
                    raise EtcdError(f"keep-alive of lease {self.id:x}: {endpoint.url} ended it without an answer")
                return response
            finally:
                call.cancel()

        response = await self._etcd.read(f"keep-alive of lease {self.id:x}", once)
        if response.TTL <= 0:
            raise LeaseExpired(f"etcd lease {self.id:x} has expired")
        return int(response.TTL)

    async def revoke(self) -> None:
        """End the lease and delete its keys. A lease that has already ended is no error."""
        request = rpc.LeaseRevokeRequest(ID=self.id)
        what = f"revoke of lease {self.id:x}"
        endpoint = await self._etcd.connected(what)
        try:
            await endpoint.leases.LeaseRevoke(request, timeout=self._etcd.timeout_s)
        except aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise self._etcd.failed(what, endpoint, error) from error


class Etcd:
    """A client, open from construction until `close`. All reads are linearizable. Every failure is an EtcdError;
    a failed write may have taken place.
    """

    def __init__(self, endpoints: Sequence[str], security: Security, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._endpoints = [_Endpoint(url, security) for url in endpoints]
        self.timeout_s = timeout_s
        self._current = 0

    async def get(self, key: str) -> KV | None:
        request = rpc.RangeRequest(key=key.encode())
        response = await self.read(f"get {key}", lambda e: e.kv.Range(request, timeout=self.timeout_s))
        return _kv(response.kvs[0]) if response.kvs else None

    async def range(self, prefix: str) -> tuple[list[KV], int]:
        """Return every key with the prefix, in ascending order, and the revision of this state."""
        request = rpc.RangeRequest(key=prefix.encode(), range_end=_prefix_end(prefix))
        response = await self.read(f"range {prefix}", lambda e: e.kv.Range(request, timeout=self.timeout_s))
        return [_kv(kv) for kv in response.kvs], response.header.revision

    async def put(self, key: str, value: bytes, *, lease: int | None = None) -> int:
        """Write a key and return the revision."""
        request = rpc.PutRequest(key=key.encode(), value=value, lease=lease or 0)
        response = await self._write(f"put {key}", lambda e: e.kv.Put(request, timeout=self.timeout_s))
        return int(response.header.revision)

    async def put_if(self, key: str, value: bytes, *, mod_revision: int, lease: int | None = None) -> int | None:
        """Write if the key has this mod_revision (0: is absent). Return the revision, or None if it has another."""
        return await self.txn([Compare(key, mod_revision=mod_revision)], [Put(key, value, lease)])

    async def delete(self, key: str) -> None:
        """Delete a key, if it is there."""
        await self.txn([], deletes=[key])

    async def txn(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int | None:
        """Make all writes if all conditions hold. Return the revision, or None. A key may be written only once."""
        operations = [
            rpc.RequestOp(request_put=rpc.PutRequest(key=p.key.encode(), value=p.value, lease=p.lease or 0))
            for p in puts
        ]
        operations += [rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=k.encode())) for k in deletes]
        equal, revision = rpc.Compare.EQUAL, rpc.Compare.MOD
        conditions = [
            rpc.Compare(result=equal, target=revision, key=c.key.encode(), mod_revision=c.mod_revision)
            for c in compares
        ]
        request = rpc.TxnRequest(compare=conditions, success=operations)
        names = ", ".join([p.key for p in puts] + list(deletes))
        response = await self._write(f"txn on {names}", lambda e: e.kv.Txn(request, timeout=self.timeout_s))
        return int(response.header.revision) if response.succeeded else None

    async def watch(self, prefix: str, *, revision: int) -> AsyncIterator[list[Event]]:
        """Yield the changes *after* `revision` (of a list or a write), in order. Changes of one revision arrive
        together.

        The watch never ends by itself. It raises WatchBroken when the connection or the member fails, or when
        the history is no longer available. The caller then lists again and watches from the revision of that list.
        """
        endpoint = await self.connected(f"watch {prefix}")
        create = rpc.WatchCreateRequest(key=prefix.encode(), range_end=_prefix_end(prefix), start_revision=revision + 1)
        call = endpoint.watches.Watch(metadata=_HAS_LEADER)
        try:
            with _closing_is_an_error(f"watch of {prefix}"):
                await call.write(rpc.WatchRequest(create_request=create))
            while True:
                with _closing_is_an_error(f"watch of {prefix}"):
                    response = await call.read()
                if response is aio.EOF:
                    raise WatchBroken(f"watch of {prefix}: {endpoint.url} ended it: {await call.details()}")
                if response.compact_revision:
                    newest = response.compact_revision
                    raise WatchBroken(
                        f"watch of {prefix} after revision {revision}: history up to revision {newest} is compacted"
                    )
                if response.canceled:
                    raise WatchBroken(f"watch of {prefix}: cancelled by {endpoint.url}: {response.cancel_reason}")
                if response.events:
                    delete, put = rpc.Event.EventType.DELETE, EventKind.PUT
                    yield [Event(EventKind.DELETE if e.type == delete else put, _kv(e.kv)) for e in response.events]
        except (aio.AioRpcError, asyncio.InvalidStateError) as error:
            self._move_on(endpoint)
            raise WatchBroken(f"watch of {prefix}: {_why(endpoint, error)}") from error
        finally:
            call.cancel()

    async def lease(self, ttl_s: int) -> Lease:
        request = rpc.LeaseGrantRequest(TTL=ttl_s)
        response = await self._write("lease grant", lambda e: e.leases.LeaseGrant(request, timeout=self.timeout_s))
        return Lease(int(response.ID), int(response.TTL), self)

    async def close(self) -> None:
        for endpoint in self._endpoints:
            await endpoint.channel.close()

    async def connected(self, what: str) -> _Endpoint:
        """Return the first connected endpoint, from the last used one on. Each gets an equal share of the timeout."""
        share_s = self.timeout_s / len(self._endpoints)
        for _ in self._endpoints:
            endpoint = self._endpoints[self._current]
            if await endpoint.ready(share_s):
                return endpoint
            self._move_on(endpoint)
        urls = ", ".join(endpoint.url for endpoint in self._endpoints)
        raise EtcdError(f"{what}: no connection to etcd at {urls} within {self.timeout_s:g} s; is it running?")

    def _move_on(self, endpoint: _Endpoint) -> None:
        if self._endpoints[self._current] is endpoint:
            self._current = (self._current + 1) % len(self._endpoints)

    def failed(self, what: str, endpoint: _Endpoint, error: Exception) -> EtcdError:
        self._move_on(endpoint)
        return EtcdError(f"{what}: {_why(endpoint, error)}")

    async def _write(self, what: str, call: Callable[[_Endpoint], Awaitable[Any]]) -> Any:
        endpoint = await self.connected(what)
        try:
            with _closing_is_an_error(what):
                return await call(endpoint)
        except aio.AioRpcError as error:
            raise self.failed(what, endpoint, error) from error

    async def read(self, what: str, call: Callable[[_Endpoint], Awaitable[Any]]) -> Any:
        failure = EtcdError(what)
        for _ in self._endpoints:
            endpoint = await self.connected(what)
            try:
                with _closing_is_an_error(what):
                    return await call(endpoint)
            except WatchBroken:
                raise
            except (aio.AioRpcError, asyncio.InvalidStateError, EtcdError) as error:
                failure = self.failed(what, endpoint, error)
        raise failure


async def wait_for_change(etcd: Etcd, prefix: str, *, revision: int, within_s: float) -> None:
    """Return when a key with the prefix changes after `revision`, or after `within_s` seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            async for _ in etcd.watch(prefix, revision=revision):
                return


@contextlib.contextmanager
def _closing_is_an_error(what: str) -> Iterator[None]:
    """Turn the cancellation of calls by `close` into an EtcdError for their callers."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise WatchBroken(f"{what}: the client was closed") from None


def _why(endpoint: _Endpoint, error: Exception) -> str:
    if isinstance(error, aio.AioRpcError):
        return f"{endpoint.url} answered {error.code().name}: {error.details()}"
    return f"{endpoint.url}: {error}"


def _prefix_end(prefix: str) -> bytes:
    """Return the first key after all keys with the prefix. For an empty prefix, the range is all keys."""
    data = prefix.encode()  # UTF-8, in which no byte is ff
    return data[:-1] + bytes((data[-1] + 1,)) if data else b"\0"


def _kv(kv: Any) -> KV:
    return KV(kv.key.decode(errors="surrogateescape"), bytes(kv.value), int(kv.mod_revision), int(kv.lease))


class KeepAliveThread:
    """Renews a lease in a daemon thread, over its own connections to `endpoints`, with blocking gRPC.

    An application may keep its event loop busy for longer than its lease lasts, and a task in that loop could then not
    renew it. A second event loop in a thread is no solution: grpc's asyncio layer shares one poller among all loops of
    a process and complains in the application's log. grpc's blocking layer does not.

    `until_s`: until when the lease is valid, as a time of `boot_clock_s`. A time in the past: the lease has expired, or
    its state is unknown.
    """

    def __init__(self, endpoints: Sequence[str], security: Security | None, lease: Lease, asked_s: float) -> None:
        self._endpoints = endpoints
        self._security = security
        self._lease_id = lease.id
        self._ttl_s: float = lease.ttl_s
        self.until_s = asked_s + lease.ttl_s  # from here on only the thread writes it
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease-keep-alive", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after its current request, without waiting."""
        self._stopped.set()

    def _run(self) -> None:
        channels = [open_blocking_channel(url, self._security, _RENEWAL_OPTIONS) for url in self._endpoints]
        failing = Outage(_log, "cannot renew an etcd lease", "etcd lease renewed again")
        pause_s = self._ttl_s / RENEWALS_PER_TTL
        try:
            while not self._stopped.wait(pause_s):
                asked_s = boot_clock_s()
                try:
                    ttl_s = self._renew(channels)
                except EtcdError as error:
                    pause_s = RENEWAL_RETRY_S
                    if not self._stopped.is_set():
                        failing.failed(lease=f"{self._lease_id:x}", error=error)
                    continue
                if ttl_s <= 0:  # the lease has ended; the next caller of the lease gets LeaseExpired
                    self.until_s = float("-inf")
                    return
                failing.over()
                self.until_s = asked_s + ttl_s
                pause_s = ttl_s / RENEWALS_PER_TTL
        finally:
            for channel in channels:
                channel.close()

    def _renew(self, channels: Sequence[grpc.Channel]) -> int:
        """Return the seconds the lease is valid from now, 0: it has ended. Raises EtcdError if no endpoint answers."""
        failure = "no endpoint"
        for url, channel in zip(self._endpoints, channels, strict=True):
            request = iter([rpc.LeaseKeepAliveRequest(ID=self._lease_id)])
            timeout_s = min(RENEWAL_TIMEOUT_S, self._ttl_s / 2)
            try:
                stream = rpc.LeaseStub(channel).LeaseKeepAlive(request, timeout=timeout_s)
                for answer in stream:
                    stream.cancel()
                    return int(answer.TTL)
                failure = f"{url} ended the stream without an answer"
            except grpc.RpcError as error:
                failure = f"{url} answered {error.code().name}: {error.details()}"
        raise EtcdError(f"keep-alive of lease {self._lease_id:x}: {failure}")


# a lease, and the time on `boot_clock_s` at which it was requested
Keep = Callable[[Lease, float], KeepAliveThread]


def keep_in_thread(endpoints: Sequence[str], security: Security | None) -> Keep:
    """Return a `Keep` for the etcd at `endpoints`."""
    return lambda lease, asked_s: KeepAliveThread(endpoints, security, lease, asked_s)
