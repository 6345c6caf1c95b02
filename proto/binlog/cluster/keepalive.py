"""Keeps an etcd lease alive from a separate thread, with blocking gRPC.

An application may keep its event loop busy for longer than its lease lasts. A task in that loop could then not renew
the lease. A second event loop in a thread is no solution: grpc's asyncio layer shares one poller among all loops of a
process and complains in the application's log. grpc's blocking layer does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import grpc
from aetcd import rpc

from binlog.cluster.etcd import Lease
from binlog.cluster.tso import boot_clock_s
from binlog.errors import EtcdError
from binlog.runtime.channel import open_blocking_channel
from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage
from binlog.runtime.security import Security

REQUEST_TIMEOUT_S = 2.0
RENEWALS_PER_TTL = 4
RETRY_S = 0.3
_OPTIONS = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500))

_log = get_logger(__name__)


class KeepAliveThread:
    """Renews a lease in a daemon thread, over its own connections to `endpoints`.

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
        channels = [open_blocking_channel(url, self._security, _OPTIONS) for url in self._endpoints]
        failing = Outage(_log, "cannot renew an etcd lease", "etcd lease renewed again")
        pause_s = self._ttl_s / RENEWALS_PER_TTL
        try:
            while not self._stopped.wait(pause_s):
                asked_s = boot_clock_s()
                try:
                    ttl_s = self._renew(channels)
                except EtcdError as error:
                    pause_s = RETRY_S
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
        """Return the seconds for which the lease is valid from now, 0 if it has ended. Raises EtcdError if no endpoint
        answers.
        """
        failure = "no endpoint"
        for url, channel in zip(self._endpoints, channels, strict=True):
            request = iter([rpc.LeaseKeepAliveRequest(ID=self._lease_id)])
            timeout_s = min(REQUEST_TIMEOUT_S, self._ttl_s / 2)
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
