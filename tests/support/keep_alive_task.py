"""Renews an etcd lease in the running event loop, for an etcd in memory."""

from __future__ import annotations

import asyncio

from binlog.cluster.etcd import RENEWALS_PER_TTL, Lease
from binlog.cluster.tso import boot_clock_s
from binlog.errors import BinlogError


class KeepAliveTask:
    """As `binlog.cluster.etcd.KeepAliveThread`, in the event loop. While etcd fails, the lease runs out."""

    def __init__(self, lease: Lease, asked_s: float) -> None:
        self._lease = lease
        self.until_s = asked_s + lease.ttl_s
        self._task = asyncio.create_task(self._run(), name="lease keep-alive")

    def stop(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._lease.ttl_s / RENEWALS_PER_TTL)
            asked_s = boot_clock_s()
            try:
                self.until_s = asked_s + await self._lease.keep_alive()
            except BinlogError:
                continue
