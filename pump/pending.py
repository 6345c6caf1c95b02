"""Which prewrites are pending, and the resolved ts that follows from them. Values in, values out; no clock, no I/O.

Why `resolved = min(T, oldest pending - 1)` is final when T was fetched *before* the set was read: a commit_ts <= T was
allocated before T, so its prewrite had been acknowledged, hence was pending, before the set was read. It is either
still there, and holds resolved below its start, or its commit was stored before it left.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Pending:
    """One prewrite whose outcome is not stored. `since_s` is on the caller's monotonic clock."""

    start_ts: int
    since_s: float
    size: int
    ddl_job_id: int = 0
    prewrite_key: bytes = b""
    writer: bytes = b""  # the id that the prewrite names, for which its writer holds a lease in etcd
    in_flight: int = 0  # requests read whose fate in the log is not known yet
    held: bool = False  # it is in the log, or may be
    safepoint_ts: int = 0  # PD's GC safepoint, where TiKV no longer tells what became of it


@dataclass(slots=True)
class PendingSet:
    """Prewrites from the moment their request is read until their commit or rollback is stored and visible.

    A start_ts may arrive several times (a client repeats what was not answered); it leaves when no request for it is
    in flight and the log holds none without an outcome.
    """

    _entries: dict[int, Pending] = field(default_factory=dict)
    _heap: list[int] = field(default_factory=list)  # every start_ts of _entries, and some that have left

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, start_ts: int) -> bool:
        return start_ts in self._entries

    def get(self, start_ts: int) -> Pending | None:
        return self._entries.get(start_ts)

    def arrive(
        self,
        start_ts: int,
        *,
        since_s: float,
        size: int,
        ddl_job_id: int = 0,
        prewrite_key: bytes = b"",
        writer: bytes = b"",
    ) -> None:
        """A request with this prewrite was read. The ts-0 probe never comes here (`P-RPC-05`)."""
        assert start_ts > 0
        entry = self._entries.get(start_ts)
        if entry is None:
            entry = self._entries[start_ts] = Pending(start_ts, since_s, size, ddl_job_id, prewrite_key, writer)
            heapq.heappush(self._heap, start_ts)
        entry.in_flight += 1

    def arrive_all(self, prewrites: Iterable[tuple[int, int, bytes]], since_s: float) -> None:
        """As `arrive`, of usual prewrites that were read together: start_ts, size, prewrite_key of each."""
        entries, heap = self._entries, self._heap
        for start_ts, size, key in prewrites:
            entry = entries.get(start_ts)
            if entry is None:
                entry = entries[start_ts] = Pending(start_ts, since_s, size, 0, key)
                heapq.heappush(heap, start_ts)
            entry.in_flight += 1

    def stored_all(self, starts: Iterable[int]) -> None:
        """As `stored`, of each."""
        entries = self._entries
        for start_ts in starts:
            entry = entries[start_ts]
            entry.in_flight -= 1
            entry.held = True

    def settled_all(self, starts: Iterable[int]) -> None:
        """As `settled`, of each."""
        entries = self._entries
        for start_ts in starts:
            entry = entries.get(start_ts)
            if entry is not None:
                entry.held = False
                if entry.in_flight == 0:
                    del entries[start_ts]

    def stored(self, start_ts: int) -> None:
        """Its request is answered: the log holds it, or may hold it (a write whose end is unknown)."""
        entry = self._entries[start_ts]
        entry.in_flight -= 1
        entry.held = True

    def refused(self, start_ts: int) -> None:
        """Its request is answered and put nothing without an outcome into the log."""
        entry = self._entries[start_ts]
        entry.in_flight -= 1
        self._leave(entry)

    def settled(self, start_ts: int) -> None:
        """Its commit or rollback is stored and visible to pulls."""
        entry = self._entries.get(start_ts)
        if entry is not None:
            entry.held = False
            self._leave(entry)

    def _leave(self, entry: Pending) -> None:
        if not entry.held and entry.in_flight == 0:
            del self._entries[entry.start_ts]

    def oldest(self) -> int | None:
        """The smallest pending start_ts."""
        heap, entries = self._heap, self._entries
        while heap and heap[0] not in entries:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def first(self, count_max: int) -> list[Pending]:
        """The oldest ones, ascending."""
        return [self._entries[ts] for ts in heapq.nsmallest(count_max, self._entries)]

    def below_safepoint(self) -> list[Pending]:
        """Those of which TiKV keeps no record any more."""
        return [entry for entry in self._entries.values() if entry.safepoint_ts]

    def older_than(self, since_s: float) -> list[Pending]:
        """Held ones that arrived before a moment, ascending by start_ts."""
        return sorted((e for e in self._entries.values() if e.held and e.since_s <= since_s), key=lambda e: e.start_ts)

    def restore(self, entries: Iterable[Pending]) -> None:
        """What recovery found in the log without an outcome."""
        for entry in entries:
            entry.held = True
            self._entries[entry.start_ts] = entry
            heapq.heappush(self._heap, entry.start_ts)


@dataclass(slots=True)
class Resolved:
    """The resolved ts given out last. It never goes back while the pump runs (correctness rule 4). `ts` starts at the
    persisted value, which after a kill is up to a second older, and nothing can commit in between: see the rule."""

    ts: int = 0

    def advance(self, fetched_ts: int, oldest_pending: int | None) -> int:
        """`fetched_ts` must have been fetched before `oldest_pending` was read."""
        reach = fetched_ts if oldest_pending is None else min(fetched_ts, oldest_pending - 1)
        if reach > self.ts:
            self.ts = reach
        return self.ts

    def is_late(self, commit_ts: int) -> bool:
        """A commit that becomes visible now breaks the protocol: pulls may have passed it."""
        return commit_ts <= self.ts
