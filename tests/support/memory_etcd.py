"""An etcd in memory, for tests.

It keeps revisions, a history for watches, compaction and leases as etcd does. The tests in tests/support/etcd_suite.py
run on it and on a real etcd.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

from binlog.cluster.etcd import KV, Compare, Event, EventKind, Put
from binlog.errors import EtcdError, LeaseExpired, WatchBroken


@dataclass(slots=True)
class MemoryLease:
    """A lease. It ends `ttl_s` after its last renewal, by the running loop's clock."""

    id: int
    ttl_s: int
    _etcd: MemoryEtcd
    _timer: asyncio.TimerHandle | None = None

    def restart(self) -> None:
        self.stop()
        self._timer = asyncio.get_running_loop().call_later(self.ttl_s, self._etcd.expire, self.id)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def keep_alive(self) -> int:
        self._etcd.check_up("keep_alive")
        if self.id not in self._etcd.leases:
            raise LeaseExpired(f"etcd lease {self.id:x} has expired")
        self.restart()
        return self.ttl_s

    async def revoke(self) -> None:
        self._etcd.check_up("revoke")
        self._etcd.expire(self.id)


@dataclass(slots=True, eq=False)
class _Watcher:
    prefix: str
    queue: asyncio.Queue[list[Event] | EtcdError] = field(default_factory=asyncio.Queue)


class MemoryEtcd:
    """The operations of `Etcd` on a dict.

    It is up, or after `fail` it refuses every request until `recover`. Tests also use `expire`, `compact` and
    `break_watches`.
    """

    def __init__(self) -> None:
        self.leases: dict[int, MemoryLease] = {}
        self._kvs: dict[str, KV] = {}
        self._revision = 1  # an empty etcd is at revision 1
        self._compacted = 0
        self._history: list[Event] = []
        self._watchers: set[_Watcher] = set()
        self._lease_ids = itertools.count(7001)
        self._down: str | None = None

    # Operations for tests.

    def fail(self, reason: str = "etcd is down") -> None:
        """Refuse every request and break every watch until `recover`."""
        self._down = reason
        self.break_watches(reason)

    def recover(self) -> None:
        self._down = None

    def break_watches(self, reason: str = "watch broken") -> None:
        for watcher in self._watchers:
            watcher.queue.put_nowait(WatchBroken(f"watch of {watcher.prefix}: {reason}"))

    def expire(self, lease_id: int) -> None:
        """End a lease now and delete its keys in a single revision."""
        lease = self.leases.pop(lease_id, None)
        if lease is None:
            return
        lease.stop()
        self._write((), [kv.key for kv in self._kvs.values() if kv.lease_id == lease_id])

    def compact(self, revision: int) -> None:
        """Forget history up to and including `revision`."""
        self._compacted = max(self._compacted, revision)
        self._history = [event for event in self._history if event.kv.mod_revision > revision]

    def check_up(self, request: str) -> None:
        if self._down is not None:
            raise EtcdError(f"{request}: {self._down}")

    # The protocol.

    async def get(self, key: str) -> KV | None:
        await self._turn("get")
        return self._kvs.get(key)

    async def range(self, prefix: str) -> tuple[list[KV], int]:
        await self._turn("range")
        found = sorted(k for k in self._kvs if k.startswith(prefix))
        return [self._kvs[key] for key in found], self._revision

    async def put(self, key: str, value: bytes, *, lease: int | None = None) -> int:
        await self._turn("put")
        return self._write([Put(key, value, lease)], ())

    async def put_if(self, key: str, value: bytes, *, mod_revision: int, lease: int | None = None) -> int | None:
        return await self.txn([Compare(key, mod_revision=mod_revision)], [Put(key, value, lease)])

    async def delete(self, key: str) -> None:
        await self.txn([], deletes=[key])

    async def txn(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int | None:
        await self._turn("txn")
        if not all(self._holds(compare) for compare in compares):
            return None
        keys = [put.key for put in puts] + list(deletes)
        if len(set(keys)) != len(keys):
            raise EtcdError("txn: duplicate key given in txn request")
        return self._write(puts, deletes)

    async def watch(self, prefix: str, *, revision: int) -> AsyncIterator[list[Event]]:
        self.check_up("watch")
        if revision < self._compacted:
            raise WatchBroken(f"history up to revision {self._compacted} is compacted")
        watcher = _Watcher(prefix)
        past = [e for e in self._history if e.kv.mod_revision > revision and e.kv.key.startswith(prefix)]
        for _, events in itertools.groupby(past, key=lambda event: event.kv.mod_revision):
            watcher.queue.put_nowait(list(events))
        self._watchers.add(watcher)
        try:
            while True:
                item = await watcher.queue.get()
                if isinstance(item, EtcdError):
                    raise item
                if item[0].kv.mod_revision > revision:  # a watch may begin in the future
                    yield item
        finally:
            self._watchers.discard(watcher)

    async def lease(self, ttl_s: int) -> MemoryLease:
        await self._turn("lease")
        lease = MemoryLease(next(self._lease_ids), ttl_s, self)
        self.leases[lease.id] = lease
        lease.restart()
        return lease

    async def close(self) -> None:
        for lease in self.leases.values():
            lease.stop()
        self.break_watches("closed")

    async def _turn(self, request: str) -> None:
        """Let other tasks run, as a real request would, so that tests see interleavings. Raises EtcdError if etcd is
        down.
        """
        await asyncio.sleep(0)
        self.check_up(request)

    def _holds(self, compare: Compare) -> bool:
        kv = self._kvs.get(compare.key)
        return compare.mod_revision == (kv.mod_revision if kv else 0)

    def _write(self, puts: Iterable[Put], deletes: Iterable[str]) -> int:
        """Make all writes in one revision, or raise EtcdError before anything changed. Without an effect, the revision
        stays.
        """
        puts = list(puts)
        for put in puts:
            if put.lease and put.lease not in self.leases:
                raise EtcdError(f"put of {put.key}: requested lease not found")
        revision = self._revision + 1
        events = []
        for put in puts:
            kv = self._kvs[put.key] = KV(put.key, put.value, revision, put.lease or 0)
            events.append(Event(EventKind.PUT, kv))
        for key in deletes:
            if self._kvs.pop(key, None) is not None:
                events.append(Event(EventKind.DELETE, KV(key, b"", revision)))
        if events:
            self._revision = revision
            self._history += events
            self._tell(events)
        return self._revision

    def _tell(self, events: Sequence[Event]) -> None:
        for watcher in self._watchers:
            mine = [event for event in events if event.kv.key.startswith(watcher.prefix)]
            if mine:
                watcher.queue.put_nowait(mine)
