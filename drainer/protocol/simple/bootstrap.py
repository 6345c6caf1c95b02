"""When a table's schema is sent again, for readers that begin in the middle of a partition. Pure: the time is an
argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from drainer.protocol.options import ProtocolOptions
from drainer.protocol.table import Table

# A table that has no rows for this long is forgotten. Its schema is then sent before its next row.
IDLE_MAX_S: Final = 30 * 60.0


@dataclass(slots=True)
class _Sent:
    """One table's state. `rows`: the number of rows since `at_s`, when the schema was last sent. `seen_s`: when the
    last rows arrived."""

    schema: tuple[object, ...]
    at_s: float
    rows: int
    seen_s: float


class BootstrapSchedule:
    """Decides when a table's schema is due: with its first rows, when the schema has changed since it was last sent,
    when the interval has passed, and when the configured number of rows has been sent. If the interval or the number is
    0, it is never due."""

    def __init__(self, options: ProtocolOptions) -> None:
        self._interval_s = options.send_bootstrap_interval_in_sec
        self._count = options.send_bootstrap_in_msg_count
        self._everywhere = options.send_bootstrap_to_all_partition
        self._sent: dict[tuple[str, int], _Sent] = {}

    def due(self, topic: str, table: Table, *, rows: int, partitions: int, now_s: float) -> range:
        """Return the partitions of `topic` to which the table's schema must be sent before these `rows`; empty if it is
        not due. `now_s`: seconds of a monotonic clock."""
        if self._interval_s <= 0 or self._count <= 0:
            return range(0)
        self._forget(now_s)
        schema = (*table.key, table.name)
        sent = self._sent.get((topic, table.id))
        if sent is None or sent.schema != schema or sent.rows >= self._count or now_s - sent.at_s >= self._interval_s:
            self._sent[topic, table.id] = _Sent(schema, now_s, rows, now_s)
            return range(partitions if self._everywhere else min(partitions, 1))
        sent.rows += rows
        sent.seen_s = now_s
        return range(0)

    def _forget(self, now_s: float) -> None:
        idle = [key for key, sent in self._sent.items() if now_s - sent.seen_s > IDLE_MAX_S]
        for key in idle:
            del self._sent[key]
