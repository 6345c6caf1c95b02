"""Garbage collection of old binlogs; keeps those that a registered drainer has not applied (correctness rule 20: what
pumps must keep), and reports drainers for which it will keep much."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from binlog.cluster import tso
from binlog.cluster.registry import NodeStatus, Registry, State
from binlog.errors import BinlogError
from binlog.runtime.log import Outage, get_logger

from pump import metrics
from pump.index.keys import COMPLETE, OUTCOME, TS
from pump.metrics import DRAINER_FAR_BEHIND
from pump.store.recovery import removed_until_ts
from pump.store.store import Store

INTERVAL_S = 3600.0
REPORT_INTERVAL_S = 600.0
EARLY = timedelta(hours=20)

_log = get_logger("pump.tasks.gc")


def purge_point(drainers: Sequence[NodeStatus], *, now_ms: int, retention: timedelta, resolved_ts: int) -> int:
    """Return the ts at or below which binlogs may be removed: they are older than the retention, resolved, and applied
    by every drainer that is not offline. `now_ms`: unix milliseconds."""
    by_age = tso.compose(max(0, now_ms - int(retention.total_seconds() * 1000)))
    passed = [status.max_commit_ts for status in drainers if status.state is not State.OFFLINE]
    return min([by_age, resolved_ts, *passed])


async def drainers_of(registry: Registry) -> list[NodeStatus]:
    """Return the records of all drainers. Raises EtcdError, and BinlogError if one cannot be parsed: it is unknown
    which binlogs that drainer still needs (rule 20: what pumps must keep)."""
    listing = await registry.list("drainers")
    if listing.unreadable:
        raise BinlogError(f"etcd key {listing.unreadable[0]} holds no valid drainer status: repair or delete it")
    return [record.status for record in listing.nodes]


Topic = Callable[[], NodeStatus]  # the pump's topic in Kafka (pump.tasks.publisher), in the form of a drainer's record


def readers(drainers: Sequence[NodeStatus], topic: Topic | None) -> Sequence[NodeStatus]:
    """Return the readers for which binlogs are kept: drainers, and the pump's topic, if it has one, in place of those
    drainers that read the topic."""
    return drainers if topic is None else [*(each for each in drainers if not each.reads_topics), topic()]


@dataclass(eq=False)
class GarbageCollector:
    """Collects every INTERVAL_S seconds in `run`, or once in `collect` (P-GC-01); never two at a time. `clock_ms`: unix
    milliseconds; by default this machine's clock, but not ahead of the timestamp source's."""

    store: Store
    registry: Registry
    retention: timedelta
    clock_ms: Callable[[], int] | None = None
    topic: Topic | None = None
    _working: asyncio.Lock = field(default_factory=asyncio.Lock)
    _stopping: threading.Event = field(default_factory=threading.Event)

    def _bounded_clock_ms(self) -> int:
        """Return the wall clock, but not ahead of the timestamp source. If the machine's clock jumped forward, all
        binlogs that no registered drainer needs would otherwise be removed."""
        source_ms = tso.physical_ms(self.store.resolver.horizon.source_ts)
        return min(int(time.time() * 1000), source_ms)

    @property
    def working(self) -> bool:
        return self._working.locked()

    async def run(self) -> None:
        outage = Outage(_log, "garbage collection failed", "garbage collection works again", level="error")
        await outage.repeating(self.collect, INTERVAL_S, BinlogError, OSError)

    async def collect(self) -> int:
        """Advance and store the purge point, then remove files and keys up to it (P-GC-03, P-GC-04). Return the purge
        point."""
        async with self._working:
            point = purge_point(
                readers(await drainers_of(self.registry), self.topic),
                now_ms=(self.clock_ms or self._bounded_clock_ms)(),
                retention=self.retention,
                resolved_ts=self.store.resolved_ts,
            )
            before = self.store.index.purged_ts()
            if point > before:
                await asyncio.to_thread(self.store.checkpoints.purge, point)
                _log.info("GC: binlogs at or below purged_ts are no longer served", purged_ts=point, former=before)
            point = max(point, before)
            await self._remove_in_thread(removed_until_ts(point))
            return point

    async def _remove_in_thread(self, until_ts: int) -> None:
        """Run `_remove` in a thread. If the caller is cancelled, stop the removal and wait until it has ended: a pump
        that stops closes the index next, and LevelDB must not be used after that."""
        self._stopping.clear()
        removing = asyncio.ensure_future(asyncio.to_thread(self._remove, until_ts))
        try:
            await asyncio.shield(removing)
        except asyncio.CancelledError:
            self._stopping.set()
            await asyncio.gather(removing, return_exceptions=True)
            raise

    def _remove(self, until_ts: int) -> None:
        """Remove files whose binlogs, and the commits that need them, are all at or below `until_ts`; then remove index
        keys. When a stop is requested, it ends soon; the next collection removes the rest."""
        store = self.store
        needs = store.index.needs()
        files = store.log.files()
        for file in files[:-1]:
            if max(file.max_ts, needs.get(file.fid, 0)) > until_ts:
                continue
            store.log.remove(file.fid)
            store.index.delete_file(file.fid)
            _log.info("value log file removed", file=str(file.path), max_ts=file.max_ts)
        for prefix in (TS, COMPLETE, OUTCOME):
            for deleted in store.index.delete_until(prefix, until_ts):
                metrics.DELETED_KEYS.inc(deleted)
                if self._stopping.is_set():
                    return
        metrics.DONE_GC.set(tso.physical_ms(until_ts))


def far_behind(drainers: Sequence[NodeStatus], *, purged_ts: int, retention: timedelta) -> list[NodeStatus]:
    """Return the drainers that are not offline and whose position is less than EARLY above the purge point, or less
    than half of the retention if that is shorter."""
    if not purged_ts:
        return []
    early_ms = min(EARLY, retention / 2) // timedelta(milliseconds=1)
    limit_ts = tso.compose(tso.physical_ms(purged_ts) + early_ms)
    return [each for each in drainers if each.state is not State.OFFLINE and each.max_commit_ts < limit_ts]


async def report_far_behind(
    store: Store, registry: Registry, retention: timedelta, topic: Topic | None = None
) -> list[NodeStatus]:
    """Count, log and return the drainers that are far behind: binlogs that they have not read are kept past `gc` and
    fill the disk (P-GC-06). Raises the errors of `drainers_of`.

    Upstream counts the same drainers as if their binlogs had been purged, twenty hours before it purges them."""
    purged_ts = store.reads.purged_ts
    found = far_behind(readers(await drainers_of(registry), topic), purged_ts=purged_ts, retention=retention)
    for drainer in found:
        DRAINER_FAR_BEHIND.labels(drainer.node_id).inc()
        _log.error(
            "a drainer is far behind: binlogs that it has not read are kept past gc and fill the disk",
            remedy="if it will never run again: binlogctl offline-drainer, or update-drainer -state offline"
            if drainer.host
            else "its brokers must store what this pump publishes; or remove [kafka] from the configuration",
            drainer=drainer.node_id,
            state=drainer.state,
            position=tso.format_local(drainer.max_commit_ts) if drainer.max_commit_ts else "none",
            purged=tso.format_local(purged_ts),
        )
    return found


async def watch_drainers(store: Store, registry: Registry, retention: timedelta, topic: Topic | None) -> None:
    """Report the drainers that are far behind every REPORT_INTERVAL_S seconds, until cancelled."""
    outage = Outage(_log, "the drainers' positions are unknown", "the drainers' positions are known again")
    await outage.repeating(
        partial(report_far_behind, store, registry, retention, topic), REPORT_INTERVAL_S, BinlogError
    )
