"""A node's record in the registry, and the state machine of pumps and drainers as a table.

The value in etcd is JSON with the original's keys in the original's order (`R-02`), so that the original's tools can
read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from binlog.errors import BinlogError, DecodeError
from binlog.tidb.document import Layout, Reader, Typed, dump_document

# Labels of this project. The original's programs ignore them.
FINAL_LABEL = "final"  # "true": a `paused` pump that stores nothing above its maxCommitTS and holds nothing pending
STATUS_LABEL = "status"  # host:port of the node's status page, where PUT /state is answered
SOURCE_LABEL = "source"  # "kafka": a drainer that reads the pumps' topics and asks no pump
OWN_LABELS = frozenset({FINAL_LABEL, STATUS_LABEL, SOURCE_LABEL})


def parse_labels(items: Iterable[str]) -> dict[str, str]:
    """Parse labels given by an operator as `name=value`. Raises ValueError for other forms and for names in
    OWN_LABELS.
    """
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
    """A node's record (`R-02`, `R-04`). `max_commit_ts` of a drainer is its checkpoint. Both `*_ts` are TSOs."""

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
        """Parse a record. Every key except nodeId and state may be absent or null; unknown keys are ignored. Raises
        DecodeError.
        """
        found = cls(**_STATUS.read(Reader.of(data, "node status")))
        if not found.node_id:
            raise DecodeError("node status", offset=0, detail="nodeId is missing")
        return found
