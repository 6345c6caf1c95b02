"""Reports drainers that are far behind: binlogs that they have not read are kept past `gc` and fill the disk (P-GC-06).

Upstream counts the same drainers as if their binlogs had been purged, twenty hours before it purges them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from binlog.cluster.node import NodeStatus, State
from binlog.cluster.registry import Registry
from binlog.cluster.tso import compose, format_local, physical_ms
from binlog.errors import BinlogError
from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage

from pump.metrics.storage_metrics import DRAINER_FAR_BEHIND
from pump.store.store import Store
from pump.tasks.gc import Topic, drainers_of, readers

INTERVAL_S = 600.0
EARLY = timedelta(hours=20)

_log = get_logger("pump.tasks.drainer_lag")


def far_behind(drainers: Sequence[NodeStatus], *, purged_ts: int, retention: timedelta) -> list[NodeStatus]:
    """Return the drainers that are not offline and whose position is less than EARLY above the purge point, or less
    than half of the retention if that is shorter."""
    if not purged_ts:
        return []
    early_ms = min(EARLY, retention / 2) // timedelta(milliseconds=1)
    limit_ts = compose(physical_ms(purged_ts) + early_ms)
    return [each for each in drainers if each.state is not State.OFFLINE and each.max_commit_ts < limit_ts]


async def report_far_behind(
    store: Store, registry: Registry, retention: timedelta, topic: Topic | None = None
) -> list[NodeStatus]:
    """Count, log and return the drainers that are far behind. Raises the errors of `drainers_of`."""
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
            position=format_local(drainer.max_commit_ts) if drainer.max_commit_ts else "none",
            purged=format_local(purged_ts),
        )
    return found


async def watch_drainers(store: Store, registry: Registry, retention: timedelta, topic: Topic | None) -> None:
    """Report the drainers that are far behind every INTERVAL_S seconds, until cancelled."""
    outage = Outage(_log, "the drainers' positions are unknown", "the drainers' positions are known again")
    await outage.repeating(partial(report_far_behind, store, registry, retention, topic), INTERVAL_S, BinlogError)
