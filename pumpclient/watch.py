"""Keeps the pool equal to the registry and probes suspended pumps (C-04, C-05).

One loop follows the registry from the revision of its listing. The other probes pumps that are registered as online,
but were suspended after errors or slowness.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from binlog.cluster.registry import Registry
from binlog.errors import BinlogError
from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage

from pumpclient.writer import Writer

log = get_logger(__name__)

RELIST_S = 1.0


class Watch:
    """Call `list_once` first. `follow` and `detect` then run until they are cancelled."""

    def __init__(self, registry: Registry, writer: Writer) -> None:
        self._registry = registry
        self._writer = writer
        self._pool, self._limits = writer.pool, writer.limits
        self._revision = 0

    async def list_once(self) -> int:
        """Replace the pool by a listing and return the number of pumps. Raises EtcdError."""
        listing = await self._registry.list("pumps")
        self._revision = listing.revision
        for node_id in self._pool.replace_all(record.status for record in listing.nodes):
            self._writer.forget(node_id)
        return len(listing.nodes)

    async def follow(self) -> None:
        """Apply changes until cancelled. After a broken watch, list the pumps again, so that no change is missed."""
        outage = Outage(log, "watch of pumps failed", "watch of pumps works again")
        while True:
            try:
                async for changes in self._registry.watch("pumps", self._revision):
                    for node_id, record in changes:
                        if record is None:
                            self._pool.remove(node_id)
                            self._writer.forget(node_id)
                        elif self._pool.put(record.status):
                            self._writer.forget(node_id)
            except BinlogError as error:
                outage.failed(error=str(error))
            await asyncio.sleep(RELIST_S)
            with contextlib.suppress(BinlogError):  # etcd is unreachable: keep the pool as it is and retry
                await self.list_once()
                outage.over()

    async def detect(self) -> None:
        """Probe suspended pumps when they are due. While no pump is available, probe all of them repeatedly."""
        last_s = -self._limits.detect_soonest_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self._limits.detect_s, self._pool.next_probe_s())):
                    await self._writer.suspended.wait()
            self._writer.suspended.clear()
            self._writer.report_expired()
            await asyncio.sleep(max(0.0, last_s + self._limits.detect_soonest_s - time.monotonic()))
            due = self._pool.due()
            if not due:
                continue
            last_s = time.monotonic()
            answers = await asyncio.gather(*(self._writer.probe(pump) for pump in due))
            for pump, answer in zip(due, answers, strict=True):
                if not answer.acked:
                    log.info("pump is still unavailable", pump=pump, detail=answer.detail)
            if not self._pool.available():
                self._writer.suspended.set()
