"""The registry: the records of pumps and drainers in etcd (`R-01` to `R-07`).

The original's `Registry.UpdateNode` reads and then writes, so two processes with the same id overwrite each other. Here
every write is conditional on the revision that the writer last saw (correctness rules 2: pumps that return, and 8:
which pumps count).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from binlog.errors import BinlogError, DecodeError, NodeNotFound, RegistryConflict
from binlog.runtime.log import get_logger
from binlog.tidb.document import Layout, Reader, Typed, dump_document

if TYPE_CHECKING:
    from binlog.cluster.etcd import KV, Etcd

ROOT = "/tidb-binlog/v1"
Kind = Literal["pumps", "drainers"]

_log = get_logger("registry")

# Labels of this project. The original's programs ignore them.
FINAL_LABEL = "final"  # "true": a `paused` pump that stores nothing above its maxCommitTS and holds nothing pending
STATUS_LABEL = "status"  # host:port of the node's status page, where PUT /state is answered
SOURCE_LABEL = "source"  # "kafka": a drainer that reads the pumps' topics and asks no pump
OWN_LABELS = frozenset({FINAL_LABEL, STATUS_LABEL, SOURCE_LABEL})


def parse_labels(items: Iterable[str]) -> dict[str, str]:
    """Parse an operator's labels `name=value`. Raises ValueError for other forms and for names in OWN_LABELS."""
    labels: dict[str, str] = {}
    for item in items:
        name, found, value = (part.strip() for part in item.partition("="))
        if not (name and found and value):
            raise ValueError(f"label {item!r} must be name=value")
        if name in OWN_LABELS:
            raise ValueError(f"label {item!r}: the name {name} is used by pumps themselves")
        if name in labels:
            raise ValueError(f"label {item!r}: {name} is given twice")
        labels[name] = value
    return labels


def check_node_id(node_id: str) -> str:
    """Return the id, trimmed (`P-LC-01`). Raises ValueError if it cannot be a key (`R-06`: a slash breaks listing)."""
    node_id = node_id.strip()
    if not node_id or "/" in node_id or not node_id.isprintable():
        raise ValueError(f"node id {node_id!r} must not be empty, nor contain a slash or control characters")
    return node_id


class State(StrEnum):
    """The state of a node in its record (`R-03`)."""

    ONLINE = "online"
    PAUSING = "pausing"
    PAUSED = "paused"
    CLOSING = "closing"
    OFFLINE = "offline"


class Event(StrEnum):
    """Events of the node's state machine."""

    START = "start"  # the process registers, from any state, which may be left from before a crash
    PAUSE = "pause"  # a request to pause, or a signal
    CLOSE = "close"  # a request to leave the cluster permanently
    DRAINED = "drained"  # accepts no writes and has nothing pending; when closing, drainers have read everything too


TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.OFFLINE: {Event.START: State.ONLINE},
    State.ONLINE: {Event.START: State.ONLINE, Event.PAUSE: State.PAUSING, Event.CLOSE: State.CLOSING},
    State.PAUSING: {Event.START: State.ONLINE, Event.DRAINED: State.PAUSED},
    State.PAUSED: {Event.START: State.ONLINE},
    State.CLOSING: {Event.START: State.ONLINE, Event.DRAINED: State.OFFLINE},
}


def next_state(state: State, event: Event) -> State:
    """Return the state after `event`. Raises BinlogError if the transition does not exist."""
    after = TRANSITIONS[state].get(event)
    if after is None:
        raise BinlogError(f"a node that is {state} cannot {event}")
    return after


def _state(read: Reader, key: str) -> State:
    text = read.text(key)
    try:
        return State(text)
    except ValueError as error:
        raise DecodeError(read.what, offset=0, detail=f"unknown state {text!r}") from error


def _label(read: Reader, key: str) -> Mapping[str, str] | None:
    document = read.child(key)
    if document is None:
        return None
    labels = Reader(Reader(document, f"{read.what}.{key}").child("labels") or {}, f"{read.what}.{key}")
    return {name: labels.text(name) for name in labels.document}


_STATUS = Layout(
    Typed("nodeId", Reader.text, name="node_id"),
    Typed("host", Reader.text),
    Typed("state", _state),
    Typed("isAlive", Reader.boolean, name="is_alive"),
    Typed("score", Reader.integer),
    Typed("label", _label, lambda label: None if label is None else {"labels": dict(label)}),
    Typed("maxCommitTS", Reader.integer, name="max_commit_ts"),
    Typed("updateTS", Reader.integer, name="update_ts"),
)


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node's record (`R-02`, `R-04`); in etcd JSON with the original's keys in the original's order, so that the
    original's tools can read it. `max_commit_ts` of a drainer is its checkpoint. Both `*_ts` are TSOs."""

    node_id: str
    host: str
    state: State
    is_alive: bool = False
    score: int = 0
    label: Mapping[str, str] | None = None
    max_commit_ts: int = 0
    update_ts: int = 0

    @property
    def final(self) -> bool:
        """Whether a `paused` pump promises FINAL_LABEL. Meaningless for any other state."""
        return self.label is not None and self.label.get(FINAL_LABEL) == "true"

    @property
    def reads_topics(self) -> bool:
        """Whether this is a drainer with SOURCE_LABEL."""
        return self.label is not None and self.label.get(SOURCE_LABEL) == "kafka"

    def to_json(self) -> bytes:
        """Return compact JSON as Go writes it, with `<`, `>` and `&` escaped."""
        return dump_document(_STATUS.write(self))

    @classmethod
    def from_json(cls, data: bytes) -> NodeStatus:
        """Parse a record. Keys but nodeId and state may be absent or null, others are ignored. Raises DecodeError."""
        found = cls(**_STATUS.read(Reader.of(data, "node status")))
        if not found.node_id:
            raise DecodeError("node status", offset=0, detail="nodeId is missing")
        return found


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node's status and the revision of its last write."""

    status: NodeStatus
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Listing:
    """All nodes of one kind, sorted by id, at one revision of etcd. `unreadable`: keys without a valid status."""

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
        """Return every node of a kind (`R-06`), read linearizably. An invalid status is logged and left out."""
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
        """Write the record of a new node; return the revision. Raises RegistryConflict if the node exists (`R-05`)."""
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
        from binlog.cluster.etcd import EventKind  # its client is slow to load, and configurations need names of nodes

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


class ForeignRecord(RegistryConflict):
    """Another process wrote or removed the record. `state`: the record's state now, or "removed" or "unreadable"."""

    def __init__(self, node_id: str, state: str, found: object) -> None:
        super().__init__(f"the record of {node_id} was written by another process: {found}")
        self.state = state
        self.found = found


@dataclass(slots=True, eq=False)
class OwnRecord:
    """Writes the record of this node, only if no other process has written it since: absent until `take`, then ours
    until ForeignRecord. `revision`: that of our last known write.

    A write to etcd may take place although its answer is lost. Such a write is *open*: the record may hold the old
    value or the written one. All open writes are conditional on the same revision, so at most one of them took place. A
    record with the value of an open write is therefore ours. Any other record was written by another process.
    """

    _registry: Registry
    _kind: Kind
    _node_id: str
    _open: list[NodeStatus] = field(default_factory=list)
    revision: int = 0

    async def read(self) -> NodeRecord | None:
        """Return the current record in the registry, whichever process wrote it."""
        return await self._registry.get(self._kind, self._node_id)

    async def take(self, status: NodeStatus, before: NodeRecord | None) -> None:
        """Make the first write, over `before` from `read`. Raises RegistryConflict if the record has changed since."""
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
        """Identify a record without our last known revision: it holds an open value, or is another process's."""
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
