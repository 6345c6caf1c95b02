"""Writes a node's own registry record, only if no other process has written it since (rule 2: pumps that return).

A write to etcd may take place although its answer is lost. Such a write is *open*: the record may hold the old value or
the written one. All open writes are conditional on the same revision, so at most one of them took place. A record with
the value of an open write is therefore ours. Any other record was written by another process.
"""

from __future__ import annotations

from collections.abc import Callable

from binlog.cluster.node import NodeStatus, State
from binlog.cluster.registry import Kind, NodeRecord, Registry
from binlog.errors import DecodeError, NodeNotFound, RegistryConflict


class ForeignRecord(RegistryConflict):
    """Another process wrote or removed the record. `state`: the record's state now, or "removed" or "unreadable"."""

    def __init__(self, node_id: str, state: str, found: object) -> None:
        super().__init__(f"the record of {node_id} was written by another process: {found}")
        self.state = state
        self.found = found


class OwnRecord:
    """The record of this node: absent until `take`, then ours until ForeignRecord. `revision`: that of our last known
    write.
    """

    def __init__(self, registry: Registry, kind: Kind, node_id: str) -> None:
        self._registry = registry
        self._kind: Kind = kind
        self._node_id = node_id
        self._open: list[NodeStatus] = []
        self.revision = 0

    async def read(self) -> NodeRecord | None:
        """Return the current record in the registry, whichever process wrote it."""
        return await self._registry.get(self._kind, self._node_id)

    async def take(self, status: NodeStatus, before: NodeRecord | None) -> None:
        """Make the first write, over `before`, the result of `read`. Raises RegistryConflict if the record has changed
        since.
        """
        if before is None:
            self.revision = await self._registry.create(self._kind, status)
        else:
            self.revision = await self._registry.update(self._kind, status, mod_revision=before.mod_revision)

    async def write(self, current: Callable[[], NodeStatus]) -> None:
        """Write the value of `current`.

        Raises ForeignRecord if another process wrote the record (nothing was written), and EtcdError if the write may
        or may not have taken place (try again).
        """
        settled = False
        while not settled:
            status = current()
            # An open value with the same meaning is written instead, so that few are open however long etcd is down.
            status = next((value for value in self._open if _promise(value) == _promise(status)), status)
            repeated = status in self._open
            try:
                await self._put(status)
                settled = not repeated  # after a repeated value the current one is written too
            except (RegistryConflict, NodeNotFound):
                await self._recognise()

    def is_ours(self, record: NodeRecord | None) -> bool:
        """Return whether a record from a watch is one of our writes, open writes included."""
        return record is not None and (record.mod_revision <= self.revision or record.status in self._open)

    async def _put(self, status: NodeStatus) -> None:
        first = status not in self._open
        if first:
            self._open.append(status)  # before the write, which may be cancelled while it is in flight
        try:
            self.revision = await self._registry.update(self._kind, status, mod_revision=self.revision)
        except (RegistryConflict, NodeNotFound):  # this write certainly did not take place
            if first and status in self._open:  # a concurrent write may have settled all of them
                self._open.remove(status)
            raise
        self._open.clear()

    async def _recognise(self) -> None:
        """Identify a record that does not have our last known revision: it holds an open value, or is another
        process's.
        """
        try:
            found = await self.read()
        except DecodeError as error:
            raise ForeignRecord(self._node_id, "unreadable", error) from error
        if found is not None and found.mod_revision == self.revision:
            return  # a concurrent write of ours, which has been settled
        if found is None or found.status not in self._open:
            raise ForeignRecord(self._node_id, str(found.status.state) if found else "removed", found)
        self.revision = found.mod_revision
        self._open.clear()


def _promise(status: NodeStatus) -> tuple[State, object, object, object]:
    """Return the part of a record that others act upon. An older position or time in it does no harm."""
    final_ts = status.max_commit_ts if status.final else None
    return status.state, status.host, status.label, final_ts
