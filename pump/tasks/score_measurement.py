"""Measures a pump's score before each write of its record."""

from __future__ import annotations

from binlog.cluster.node import State
from binlog.cluster.registry import Registry
from binlog.errors import BinlogError
from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage

from pump.metrics import call_metrics
from pump.store.gauges import SCORE
from pump.store.store import Store
from pump.tasks.gc import drainers_of
from pump.tasks.score import Backlog, Measures, WriteTime, room

_log = get_logger("pump.tasks.score")


class Measuring:
    """Measures the score of one open store. `measures`: the last measures; `take` measures again."""

    def __init__(self, store: Store, registry: Registry, *, stop_bytes: int) -> None:
        self._store = store
        self._registry = registry
        self._stop_bytes = stop_bytes
        self._write_time = WriteTime()
        self._write_time.update(*call_metrics.write_seconds())
        self._begun_bytes = call_metrics.written_bytes()
        self._backlog = Backlog([(file.max_ts, file.size) for file in store.log.files()])
        self._positions: list[int] = []
        self._outage = Outage(_log, "positions of drainers are unknown", "positions of drainers are known again")
        self.measures = Measures()

    async def take(self) -> int:
        """Measure and return the score. If etcd does not answer, the last known positions of the drainers are used."""
        with self._outage.catching(BinlogError):
            drainers = await drainers_of(self._registry)
            self._positions = [status.max_commit_ts for status in drainers if status.state is not State.OFFLINE]
        space, written = self._store.space, call_metrics.written_bytes() - self._begun_bytes
        self._backlog.sample(self._store.resolved_ts, written)
        self.measures = Measures(
            write_s=self._write_time.update(*call_metrics.write_seconds()),
            room=room(space.available_bytes, space.capacity_bytes, self._stop_bytes),
            backlog_bytes=self._backlog.above(self._positions, written),
        )
        SCORE.set(self.measures.score)
        return self.measures.score
