"""The registry: the records of pumps and drainers in etcd (`R-01` to `R-07`).

The original's `Registry.UpdateNode` reads and then writes, so two processes with the same id overwrite each other. Here
every write is conditional on the revision that the writer last saw (correctness rules 2: pumps that return, and 8:
which pumps count).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal

from binlog.cluster.etcd import KV, Etcd, EventKind
from binlog.cluster.node import NodeStatus
from binlog.errors import DecodeError, NodeNotFound, RegistryConflict
from binlog.runtime.log import get_logger

ROOT = "/tidb-binlog/v1"
Kind = Literal["pumps", "drainers"]

_log = get_logger("registry")


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node's status and the revision of its last write."""

    status: NodeStatus
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Listing:
    """All nodes of one kind, sorted by id, at one revision of etcd. `unreadable`: keys whose value is not a valid
    status.
    """

    nodes: tuple[NodeRecord, ...]
    revision: int
    unreadable: tuple[str, ...] = ()


def key_of(kind: Kind, node_id: str) -> str:
    """Return the key of a node's record (`R-01`)."""
    return f"{ROOT}/{kind}/{node_id}"


class Registry:
    """The records under ROOT. An object keeps no state: writers remember the revision."""

    def __init__(self, etcd: Etcd) -> None:
        self._etcd = etcd

    async def list(self, kind: Kind) -> Listing:
        """Return every node of a kind (`R-06`), read linearizably. A value that is not a valid status is logged and
        left out.
        """
        kvs, revision = await self._etcd.range(f"{ROOT}/{kind}/")
        nodes: list[NodeRecord] = []
        unreadable: list[str] = []
        for kv in kvs:
            try:
                nodes.append(_record(kv))
            except DecodeError as error:
                _log.error("a node's record cannot be read", key=kv.key, error=error)
                unreadable.append(kv.key)
        return Listing(tuple(nodes), revision, tuple(unreadable))

    async def get(self, kind: Kind, node_id: str) -> NodeRecord | None:
        """Return a node's record, or None. Raises DecodeError with the key if the value is not a valid status."""
        kv = await self._etcd.get(key_of(kind, node_id))
        return None if kv is None else _record(kv)

    async def create(self, kind: Kind, status: NodeStatus) -> int:
        """Write the record of a new node and return the revision. Raises RegistryConflict if the node exists
        (`R-05`).
        """
        key = key_of(kind, status.node_id)
        revision = await self._etcd.put_if(key, status.to_json(), mod_revision=0)
        if revision is None:
            raise RegistryConflict(f"key {key} in etcd already exists")
        return revision

    async def update(self, kind: Kind, status: NodeStatus, *, mod_revision: int) -> int:
        """Replace the record of revision `mod_revision` and return the new revision.

        Raises RegistryConflict if another process has written it since: an operator forced the node offline, or another
        node has the same id. Raises NodeNotFound if the key was deleted.
        """
        if mod_revision <= 0:
            raise ValueError(f"update of {status.node_id} needs the revision of a record, not {mod_revision}")
        key = key_of(kind, status.node_id)
        revision = await self._etcd.put_if(key, status.to_json(), mod_revision=mod_revision)
        if revision is not None:
            return revision
        now = await self._etcd.get(key)
        if now is None:
            raise NodeNotFound(f"key {key} in etcd not found")
        raise RegistryConflict(
            f"key {key} in etcd was written by another process: revision {now.mod_revision}, not {mod_revision}: "
            f"{now.value[:200]!r}"
        )

    async def watch(self, kind: Kind, revision: int) -> AsyncIterator[Sequence[tuple[str, NodeRecord | None]]]:
        """Yield the changes after `revision` (of a Listing or a write): node id and record, or None if the key was
        deleted (our programs never delete one: `R-05`). Raises WatchBroken as `Etcd.watch` does."""
        prefix = f"{ROOT}/{kind}/"
        async for events in self._etcd.watch(prefix, revision=revision):
            changes: list[tuple[str, NodeRecord | None]] = []
            for event in events:
                try:
                    record = None if event.kind is EventKind.DELETE else _record(event.kv)
                    changes.append((event.kv.key.removeprefix(prefix), record))
                except DecodeError as error:
                    _log.error("a node's record cannot be read", key=event.kv.key, error=error)
            if changes:
                yield changes


def _record(kv: KV) -> NodeRecord:
    try:
        return NodeRecord(NodeStatus.from_json(kv.value), kv.mod_revision)
    except DecodeError as error:
        raise error.within(kv.key) from error
