"""Writes a node's own registry record, only if nobody else has written it since (rule 2).

etcd may take a write and fail before it says so. Such a write is *open*: the record may be what was there before, or
what was written. All open writes compare with one revision, so at most one of them took place, and a record found
there with the value of one of them is ours; any other is somebody else's.
"""

from __future__ import annotations

from collections.abc import Callable

from binlog.cluster.node import NodeStatus, State
from binlog.cluster.registry import Kind, NodeRecord, Registry
from binlog.errors import DecodeError, NodeNotFound, RegistryConflict


class ForeignRecord(RegistryConflict):
    """Another process wrote or removed the record. `state`: of the record now, or "removed" or "unreadable"."""

    def __init__(self, node_id: str, state: str, found: object) -> None:
        super().__init__(f"the record of {node_id} was written by another process: {found}")
        self.state = state
        self.found = found


class OwnRecord:
    """Absent until `take`, then ours until ForeignRecord. `revision` is that of our last known write."""

    def __init__(self, registry: Registry, kind: Kind, node_id: str) -> None:
        self._registry = registry
        self._kind: Kind = kind
        self._node_id = node_id
        self._open: list[NodeStatus] = []
        self.revision = 0

    async def read(self) -> NodeRecord | None:
        """The current record in the registry, whoever wrote it."""
        return await self._registry.get(self._kind, self._node_id)

    async def take(self, status: NodeStatus, before: NodeRecord | None) -> None:
        """The first write, over `before`, which `read` found. RegistryConflict if it has changed since."""
        if before is None:
            self.revision = await self._registry.create(self._kind, status)
        else:
            self.revision = await self._registry.update(self._kind, status, mod_revision=before.mod_revision)

    async def write(self, current: Callable[[], NodeStatus]) -> None:
        """Write what `current` says. ForeignRecord: nothing was written; EtcdError: perhaps, try again."""
        settled = False
        while not settled:
            status = self._value(current())
            repeated = status in self._open
            try:
                await self._put(status)
                settled = not repeated  # after a repeated value the current one is written too
            except (RegistryConflict, NodeNotFound):
                await self._recognise()

    def is_ours(self, record: NodeRecord | None) -> bool:
        """Whether this record, seen in a watch, is a write of ours, open ones included."""
        return record is not None and (record.mod_revision <= self.revision or record.status in self._open)

    def _value(self, status: NodeStatus) -> NodeStatus:
        """The open value that says the same, or `status`: however long etcd is away, few values are open."""
        return next((value for value in self._open if _promise(value) == _promise(status)), status)

    async def _put(self, status: NodeStatus) -> None:
        first = status not in self._open
        if first:
            self._open.append(status)  # before the write: it may be cancelled while it is under way
        try:
            self.revision = await self._registry.update(self._kind, status, mod_revision=self.revision)
        except (RegistryConflict, NodeNotFound):  # this write certainly did not take place
            if first and status in self._open:  # a write beside this one may have settled all of them
                self._open.remove(status)
            raise
        self._open.clear()

    async def _recognise(self) -> None:
        """The record is not of our last known revision: it is one of the open values, or foreign."""
        try:
            found = await self.read()
        except DecodeError as error:
            raise ForeignRecord(self._node_id, "unreadable", error) from error
        if found is not None and found.mod_revision == self.revision:
            return  # a write beside this one, which has been settled
        if found is None or found.status not in self._open:
            raise ForeignRecord(self._node_id, str(found.status.state) if found else "removed", found)
        self.revision = found.mod_revision
        self._open.clear()


def _promise(status: NodeStatus) -> tuple[State, object, object, object]:
    """What others act upon at once; a position and a time of day are merely older in an older value."""
    final_ts = status.max_commit_ts if status.final else None
    return status.state, status.host, status.label, final_ts
