"""The `Etcd` protocol and its values: what the programs use of etcd.

`binlog.cluster.etcd` is the real one, `binlog.stub.etcd` the one in memory; one suite of tests runs on both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class KV:
    """A key as read. `mod_revision` is the revision of its last write; `lease_id` 0 means none."""

    key: str
    value: bytes
    mod_revision: int
    lease_id: int = 0


class EventKind(StrEnum):
    PUT = "put"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Event:
    """One change. Of a delete, `kv.value` is empty and `kv.mod_revision` is the revision of the deletion."""

    kind: EventKind
    kv: KV


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a transaction: the key has exactly this mod_revision (0: is absent) and, or, this value."""

    key: str
    mod_revision: int | None = None
    value: bytes | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """A write of a transaction. `lease` is a lease's id."""

    key: str
    value: bytes
    lease: int | None = None


class Lease(Protocol):
    """Keys put with it vanish when it ends. `ttl_s` is what etcd granted, which may be more than was asked."""

    @property
    def id(self) -> int: ...

    @property
    def ttl_s(self) -> int: ...

    async def keep_alive(self) -> int:
        """Renew once; the seconds it now lives, counted from some moment after the call. LeaseExpired if gone.

        Who relies on the lease counts from *before* the call (correctness rule 7).
        """
        ...

    async def revoke(self) -> None:
        """End it and delete its keys; a lease already gone is fine."""
        ...


class Etcd(Protocol):
    """All reads are linearizable. Every failure is an EtcdError; from a write it leaves open whether it took place."""

    async def get(self, key: str) -> KV | None: ...

    async def range(self, prefix: str) -> tuple[list[KV], int]:
        """Every key with the prefix, ascending, and the revision at which that was true."""
        ...

    async def put(self, key: str, value: bytes, *, lease: int | None = None) -> int:
        """The revision of the write."""
        ...

    async def put_if(self, key: str, value: bytes, *, mod_revision: int, lease: int | None = None) -> int | None:
        """Write if the key still has this mod_revision (0: is absent); the revision, or None if it has another."""
        ...

    async def delete(self, key: str, *, mod_revision: int | None = None) -> bool:
        """Whether a key was deleted; False if absent or, where given, of another mod_revision."""
        ...

    async def txn(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int | None:
        """All writes if all conditions hold: the revision, or None. A key may be written once."""
        ...

    def watch(self, prefix: str, *, revision: int) -> AsyncIterator[list[Event]]:
        """Changes *after* `revision` (that of a list or a write), in order; those of one revision come together.

        It never ends by itself: it raises WatchBroken when the connection or the member fails, and WatchCompacted
        when the history is gone. Then list again, and watch from that list's revision.
        """
        ...

    async def lease(self, ttl_s: int) -> Lease: ...

    async def close(self) -> None: ...
