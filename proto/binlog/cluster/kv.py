"""The `Etcd` protocol and its values: the operations of etcd that the programs use.

`binlog.cluster.etcd` implements it with a real etcd, tests/support/memory_etcd.py in memory. The same tests run on
both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class KV:
    """A key and its value as read. `mod_revision` is the revision of the key's last write; `lease_id` 0 means
    no lease.
    """

    key: str
    value: bytes
    mod_revision: int
    lease_id: int = 0


class EventKind(StrEnum):
    PUT = "put"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Event:
    """A change of a key. For a delete, `kv.value` is empty and `kv.mod_revision` is the revision of the deletion."""

    kind: EventKind
    kv: KV


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a transaction: the key has this mod_revision (0: it is absent)."""

    key: str
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """A write in a transaction. `lease`: the id of a lease, or None."""

    key: str
    value: bytes
    lease: int | None = None


class Lease(Protocol):
    """A lease. Keys that are put with it are removed when it ends. `ttl_s`: the time etcd granted, which may exceed the
    request.
    """

    @property
    def id(self) -> int: ...

    @property
    def ttl_s(self) -> int: ...

    async def keep_alive(self) -> int:
        """Renew the lease once. Return the seconds for which it is valid, counted from a moment after the call began.

        Raises LeaseExpired if it has ended. To be safe, callers count from *before* the call (correctness rule 7: one
        allocator of timestamps).
        """
        ...

    async def revoke(self) -> None:
        """End the lease and delete its keys. A lease that has already ended is no error."""
        ...


class Etcd(Protocol):
    """A client of etcd. All reads are linearizable. Every failure is an EtcdError; a failed write may have
    taken place.
    """

    async def get(self, key: str) -> KV | None: ...

    async def range(self, prefix: str) -> tuple[list[KV], int]:
        """Return every key with the prefix, in ascending order, and the revision of this state."""
        ...

    async def put(self, key: str, value: bytes, *, lease: int | None = None) -> int:
        """Write a key and return the revision."""
        ...

    async def put_if(self, key: str, value: bytes, *, mod_revision: int, lease: int | None = None) -> int | None:
        """Write if the key has this mod_revision (0: is absent). Return the revision, or None if the key has
        another.
        """
        ...

    async def delete(self, key: str) -> None:
        """Delete a key, if it is there."""
        ...

    async def txn(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int | None:
        """Make all writes if all conditions hold. Return the revision, or None. A key may be written only once."""
        ...

    def watch(self, prefix: str, *, revision: int) -> AsyncIterator[list[Event]]:
        """Yield the changes *after* `revision` (of a list or a write), in order. Changes of one revision arrive
        together.

        The watch never ends by itself. It raises WatchBroken when the connection or the member fails, or when
        the history is no longer available. The caller then lists again and watches from the revision of that list.
        """
        ...

    async def lease(self, ttl_s: int) -> Lease: ...

    async def close(self) -> None: ...
