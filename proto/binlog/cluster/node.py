"""A node's record in the registry, and the state machine of pumps and drainers as a table.

The value in etcd is JSON with the original's keys in the original's order (`R-02`), so that the original's tools can
read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from binlog.errors import DecodeError, LifecycleError

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
    FORCE_OFFLINE = "force offline"  # an operator declares the node gone, without contacting it


TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.OFFLINE: {Event.START: State.ONLINE},
    State.ONLINE: {
        Event.START: State.ONLINE,
        Event.PAUSE: State.PAUSING,
        Event.CLOSE: State.CLOSING,
        Event.FORCE_OFFLINE: State.OFFLINE,
    },
    State.PAUSING: {
        Event.START: State.ONLINE,
        Event.DRAINED: State.PAUSED,
        Event.FORCE_OFFLINE: State.OFFLINE,
    },
    State.PAUSED: {Event.START: State.ONLINE, Event.FORCE_OFFLINE: State.OFFLINE},
    State.CLOSING: {
        Event.START: State.ONLINE,
        Event.DRAINED: State.OFFLINE,
        Event.FORCE_OFFLINE: State.OFFLINE,
    },
}


def next_state(state: State, event: Event) -> State:
    """Return the state after `event`. Raises LifecycleError if the transition does not exist."""
    after = TRANSITIONS[state].get(event)
    if after is None:
        raise LifecycleError(f"a node that is {state} cannot {event}")
    return after


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
        document = {
            "nodeId": self.node_id,
            "host": self.host,
            "state": self.state.value,
            "isAlive": self.is_alive,
            "score": self.score,
            "label": None if self.label is None else {"labels": dict(self.label)},
            "maxCommitTS": self.max_commit_ts,
            "updateTS": self.update_ts,
        }
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
        return text.translate(_GO_ESCAPES).encode()

    @classmethod
    def from_json(cls, data: bytes) -> NodeStatus:
        """Parse a record. Every key except nodeId and state may be absent; unknown keys are ignored. Raises
        DecodeError.
        """
        try:
            document = json.loads(data)
        except ValueError as error:
            offset = getattr(error, "pos", getattr(error, "start", 0))
            raise DecodeError("node status", offset=offset, detail="not JSON") from error
        if not isinstance(document, dict):
            raise DecodeError("node status", offset=0, detail=f"an object was expected, not {type(document).__name__}")
        return cls(
            node_id=_typed(document, "nodeId", str, None),
            host=_typed(document, "host", str, ""),
            state=_state(document),
            is_alive=_typed(document, "isAlive", bool, False),
            score=_typed(document, "score", int, 0),
            label=_label(document.get("label")),
            max_commit_ts=_typed(document, "maxCommitTS", int, 0),
            update_ts=_typed(document, "updateTS", int, 0),
        )


_T = TypeVar("_T")

_GO_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def _typed(document: Mapping[str, Any], key: str, kind: type[_T], default: _T | None) -> _T:
    value = document.get(key, default)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise DecodeError("node status", offset=0, detail=f"{key} must be {kind.__name__}, not {value!r}")
    return value


def _state(document: Mapping[str, Any]) -> State:
    text = document.get("state")
    try:
        return State(text)  # type: ignore[arg-type]  # a wrong type raises the ValueError below
    except ValueError as error:
        raise DecodeError("node status", offset=0, detail=f"unknown state {text!r}") from error


def _label(value: object) -> Mapping[str, str] | None:
    if value is None:
        return None
    labels = value.get("labels") if isinstance(value, dict) else value
    if labels is None:
        return {}
    if not isinstance(labels, dict) or not all(isinstance(v, str) for v in labels.values()):
        raise DecodeError("node status", offset=0, detail=f"label must be null or hold labels, not {value!r}")
    return labels
