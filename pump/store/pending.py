"""The set of pending prewrites, and the resolved ts that follows from it. Pure: no clock, no I/O.

Why `resolved = min(T, oldest pending - 1)` is final if T was fetched *before* the set was read: a commit_ts <= T was
allocated before T. Its prewrite was acknowledged before that, so it was pending before the set was read. Either it is
still in the set, and resolved stays below its start_ts, or its commit was stored before it left the set.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

_LEFT_MAX = 1000  # start_ts that have left are removed from the heap when they are half of it, and more than this


@dataclass(slots=True)
class Pending:
    """A prewrite whose outcome is not stored. `since_s`: its arrival, on the caller's monotonic clock."""

    start_ts: int
    since_s: float
    size: int
    ddl_job_id: int = 0
    prewrite_key: bytes = b""
    writer: bytes = b""  # id of its writer, which holds a lease in etcd under that id
    in_flight: int = 0  # requests with this prewrite that were read and are not yet written or refused
    held: bool = False  # the log holds it, or may hold it
    safepoint_ts: int = 0  # PD's GC safepoint, if it is at or above start_ts: TiKV cannot report the outcome


@dataclass(slots=True)
class PendingSet:
    """The prewrites whose request was read and whose commit or rollback is not yet stored and visible.

    A start_ts may arrive several times, because a client repeats a prewrite that was not answered. It leaves the set
    when no request for it is in flight and the log holds no prewrite of it without an outcome.
    """

    _entries: dict[int, Pending] = field(default_factory=dict)
    _heap: list[int] = field(default_factory=list)  # every start_ts of _entries, and some that have left
    _reserved: list[int] = field(default_factory=list)  # a ts below that of each fake binlog that is being made

    def __len__(self) -> int:
        """Return how many prewrites are pending, and fake binlogs being made."""
        return len(self._entries) + len(self._reserved)

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
        """Record that a request with this prewrite was read. Never called for the ts-0 probe (`P-RPC-05`)."""
        assert start_ts > 0
        entry = self._entries.get(start_ts)
        if entry is None:
            entry = self._entries[start_ts] = Pending(start_ts, since_s, size, ddl_job_id, prewrite_key, writer)
            heapq.heappush(self._heap, start_ts)
        entry.in_flight += 1

    def reserve(self, ts: int) -> None:
        """Hold the resolved ts below `ts` until `release(ts)`: a fake binlog is being made, whose ts will not be below.

        It is no entry, because a prewrite may have the same ts as its start_ts."""
        self._reserved.append(ts)

    def release(self, ts: int) -> None:
        self._reserved.remove(ts)

    def arrive_all(self, prewrites: Iterable[tuple[int, int, bytes]], since_s: float) -> None:
        """Do `arrive` for fast-path prewrites that were read together. `prewrites`: start_ts, size, prewrite_key of
        each."""
        entries, heap = self._entries, self._heap
        for start_ts, size, key in prewrites:
            entry = entries.get(start_ts)
            if entry is None:
                entry = entries[start_ts] = Pending(start_ts, since_s, size, 0, key)
                heapq.heappush(heap, start_ts)
            entry.in_flight += 1

    def stored(self, starts: Iterable[int]) -> None:
        """Record that a request for each start_ts has ended and that the log holds the prewrite, or may hold it (a
        write whose result is unknown)."""
        entries = self._entries
        for start_ts in starts:
            entry = entries[start_ts]
            entry.in_flight -= 1
            entry.held = True

    def settled(self, starts: Iterable[int]) -> None:
        """Record that the commit or rollback of each start_ts is stored and visible to pulls."""
        entries = self._entries
        for start_ts in starts:
            entry = entries.get(start_ts)
            if entry is not None:
                entry.held = False
                if entry.in_flight == 0:
                    del entries[start_ts]

    def refused(self, start_ts: int) -> None:
        """Record that a request for it has ended and stored no prewrite without an outcome."""
        entry = self._entries[start_ts]
        entry.in_flight -= 1
        if not entry.held and entry.in_flight == 0:
            del self._entries[start_ts]

    def oldest(self) -> int | None:
        """Return the smallest pending start_ts or reserved ts, or None."""
        heap, entries = self._heap, self._entries
        while heap and heap[0] not in entries:
            heapq.heappop(heap)
        if len(heap) > 2 * len(entries) + _LEFT_MAX:  # the oldest one stays, and later ones have left
            heap[:] = entries
            heapq.heapify(heap)
        return min([*heap[:1], *self._reserved], default=None)

    def first(self, count_max: int) -> list[Pending]:
        """Return the oldest `count_max` prewrites, ascending by start_ts."""
        return [self._entries[ts] for ts in heapq.nsmallest(count_max, self._entries)]

    def below_safepoint(self) -> list[Pending]:
        """Return the prewrites whose outcome TiKV can no longer report (see `Pending.safepoint_ts`)."""
        return [entry for entry in self._entries.values() if entry.safepoint_ts]

    def older_than(self, since_s: float) -> list[Pending]:
        """Return the held prewrites that arrived at or before `since_s`, ascending by start_ts."""
        return sorted((e for e in self._entries.values() if e.held and e.since_s <= since_s), key=lambda e: e.start_ts)

    def restore(self, entries: Iterable[Pending]) -> None:
        """Add the prewrites that recovery found in the log without an outcome."""
        for entry in entries:
            entry.held = True
            self._entries[entry.start_ts] = entry
            heapq.heappush(self._heap, entry.start_ts)
