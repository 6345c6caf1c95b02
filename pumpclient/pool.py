"""The known pumps, which of them are available (C-03 to C-06, C-14), and which one gets a prewrite. Pure, except for
the random numbers of `score`.

A pump is available if the registry says online, it has not failed more than ERRORS_MAX times in a row, and it was
not found slow. A pump that fails or is slow is suspended. A suspended pump is probed after one second, then at doubled
intervals. If it is suspended again soon after it recovered, the interval stays long, so that a pump which recovers only
for short times delays writers less and less.

`range` and `hash` are the original's strategies. The original names `score` and `label`, but does not implement them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from binlog.cluster.registry import NodeStatus, State

ERRORS_MAX = 10  # consecutive errors, as in the original (C-03)
PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 30.0  # the interval of the original's probes (C-05)
WORST = 1.0  # the lowest score of a pump
STALE_S = 10.0  # a record is stale if unchanged for this long, and for three times its usual interval
STEADY_S = 30.0  # after a pump was available for this long, its next suspension begins with the first pause again
STRATEGIES = ("range", "hash", "score", "label")
NO_LABELS: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True)
class Member:
    """A pump.

    `suspended` is set after errors or slowness. A success, a successful probe, or a change of state or address clears
    it. A `slow` pump needs a successful probe: a late acknowledgement does not show that it is fast again.
    """

    node_id: str
    host: str
    state: State
    errors: int = 0
    suspended: bool = False
    slow: bool = False
    pause_s: float = 0.0  # from its suspension, or its last probe, to the next probe
    probe_at_s: float = 0.0
    revived_s: float = float("-inf")
    last_cause: object = None
    score: int = 0  # 0: the pump reports no score; Go pumps never do
    update_ts: int = 0
    seen_s: float = 0.0  # when this process last saw the record change, on its own clock
    interval_s: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def online(self) -> bool:
        return self.state is State.ONLINE

    @property
    def available(self) -> bool:
        return self.online and not self.suspended

    def take(self, status: NodeStatus, now_s: float) -> None:
        """Copy the state, address, score and labels from the registry's record."""
        if self.update_ts != status.update_ts:
            self.interval_s = now_s - self.seen_s if self.update_ts else 0.0
            self.seen_s, self.update_ts = now_s, status.update_ts
        self.host, self.state, self.score = status.host, status.state, status.score
        self.labels = status.label or NO_LABELS

    def has(self, labels: Mapping[str, str]) -> bool:
        return all(self.labels.get(name) == value for name, value in labels.items())

    def stale(self, now_s: float) -> bool:
        """Return whether the pump's heartbeats have stopped, or no longer reach this process."""
        return now_s - self.seen_s > max(STALE_S, 3 * self.interval_s)


@dataclass(eq=False)
class Pool:
    """All registered pumps by id. Methods list them in the order of ids, so that `hash` chooses alike in all
    processes. `only`: labels that a pump must have to be chosen. Pumps without all of them are known, but never chosen.
    """

    pause_first_s: float = PAUSE_FIRST_S
    pause_max_s: float = PAUSE_MAX_S
    clock: Callable[[], float] = time.monotonic
    only: Mapping[str, str] = field(default_factory=dict)
    _members: dict[str, Member] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._members)

    def get(self, node_id: str) -> Member | None:
        return self._members.get(node_id)

    def put(self, status: NodeStatus) -> bool:
        """Apply a status from the registry. Return True if the address changed: the connection must then be reset.

        A change of state or address resets the error count. A change of state alone keeps the connection, so that
        answers on their way are not lost.
        """
        known, now_s = self._members.get(status.node_id), self.clock()
        if known is None:
            known = self._members[status.node_id] = Member(status.node_id, status.host, status.state, seen_s=now_s)
            known.take(status, now_s)
            return False
        moved = known.host != status.host
        if moved or known.state is not status.state:
            known.errors, known.suspended, known.slow = 0, False, False
        known.take(status, now_s)
        return moved

    def remove(self, node_id: str) -> bool:
        return self._members.pop(node_id, None) is not None

    def replace_all(self, statuses: Iterable[NodeStatus]) -> set[str]:
        """Replace the pool by a listing. Return the ids that were removed or whose connection must be reset."""
        listed = {status.node_id: status for status in statuses}
        stale = {node_id for node_id in self._members if node_id not in listed}
        for node_id in stale:
            self.remove(node_id)
        return stale | {node_id for node_id, status in listed.items() if self.put(status)}

    def available(self) -> tuple[str, ...]:
        return tuple(sorted(m.node_id for m in self._chosen() if m.available))

    def online(self) -> tuple[str, ...]:
        return tuple(sorted(m.node_id for m in self._chosen() if m.online))

    def _chosen(self) -> Iterable[Member]:
        if not self.only:
            return self._members.values()
        return [m for m in self._members.values() if m.has(self.only)]

    def told(self) -> str:
        """Describe for an error message how many pumps are registered, and how many of them have the labels."""
        text = f"{len(self)} registered"
        if self.only:
            labels = ",".join(f"{name}={value}" for name, value in self.only.items())
            text += f", {len(list(self._chosen()))} of them with {labels}"
        return text

    def weights(self, pumps: Sequence[str]) -> list[float]:
        """Return how often to choose each of these pumps in relation to the others, by the reported scores.

        A pump that reports no score gets the mean. A pump whose record is stale, while records of others are fresh,
        gets the worst score. If no pump has a fresh score, all get the same weight.
        """
        now_s = self.clock()
        members = [self._members.get(pump) for pump in pumps]
        fresh = [m.score for m in members if m is not None and m.score > 0 and not m.stale(now_s)]
        if not fresh:
            return [1.0] * len(pumps)
        mean = sum(fresh) / len(fresh)
        return [mean if m is None or m.score <= 0 else (WORST if m.stale(now_s) else float(m.score)) for m in members]

    def labelled(self, pump: str, labels: Mapping[str, str]) -> bool:
        """Return whether the pump has all of these labels."""
        member = self._members.get(pump)
        return member is not None and member.has(labels)

    def due(self) -> tuple[str, ...]:
        """Return the suspended pumps that are to be probed now (C-05); all suspended pumps if no pump is available."""
        waits = any(m.available for m in self._chosen())
        now_s = self.clock()
        return tuple(
            sorted(
                m.node_id for m in self._chosen() if m.online and m.suspended and (m.probe_at_s <= now_s or not waits)
            )
        )

    def next_probe_s(self) -> float:
        """Return the seconds until a suspended pump is due; infinity if none is suspended."""
        due = [m.probe_at_s for m in self._chosen() if m.online and m.suspended]
        return max(0.0, min(due) - self.clock()) if due else float("inf")

    def succeeded(self, node_id: str, *, probe: bool = False) -> bool:
        """Note that a write or a probe was acknowledged. Return True if this made the pump available again."""
        member = self._members.get(node_id)
        if member is None:
            return False
        member.errors = 0
        if not member.suspended or (member.slow and not probe and self._others(member)):
            return False
        member.suspended = member.slow = False
        member.revived_s = self.clock()
        return True

    def failed(self, node_id: str, cause: object = None) -> bool:
        """Count one more consecutive error. Return True if this made the pump unavailable.

        The same `cause` object twice counts as one error: a broken stream is one, however many binlogs were on it.
        """
        member = self._members.get(node_id)
        if member is None or (cause is not None and cause is member.last_cause):
            return False
        member.last_cause = cause
        member.errors += 1
        return member.errors > ERRORS_MAX and self._suspend(member)

    def found_slow(self, node_id: str) -> bool:
        """Note that a write was late. Return True if this made the pump unavailable; the last available one stays."""
        member = self._members.get(node_id)
        if member is None or not self._others(member) or not self._suspend(member):
            return False
        member.slow = True
        return True

    def probe_failed(self, node_id: str) -> None:
        """Keep the pump suspended and double the pause before its next probe."""
        member = self._members.get(node_id)
        if member is not None:
            self._pause(member)

    def _others(self, member: Member) -> bool:
        return any(m.available for m in self._chosen() if m is not member)

    def _suspend(self, member: Member) -> bool:
        if member.suspended:
            return False
        member.suspended = True
        if self.clock() - member.revived_s > STEADY_S:
            member.pause_s = 0.0
        self._pause(member)
        return True

    def _pause(self, member: Member) -> None:
        member.pause_s = min(max(self.pause_first_s, member.pause_s * 2), self.pause_max_s)
        member.probe_at_s = self.clock() + member.pause_s


class Selector(Protocol):
    """Chooses among the available pumps."""

    name: str

    def select(self, available: Sequence[str], *, start_ts: int, tries: int, tried: Collection[str] = ()) -> str | None:
        """Return an id from `available` (which is in a stable order), or None if it is empty.

        `tries` counts from 0. `tried`: pumps that were sent this prewrite and did not acknowledge it.
        """
        ...


class RangeSelector:
    """Round robin. The position is reset when the list of pumps changes."""

    name = "range"

    def __init__(self) -> None:
        self._list: tuple[str, ...] = ()
        self._next = 0

    def select(self, available: Sequence[str], *, start_ts: int, tries: int, tried: Collection[str] = ()) -> str | None:
        current = tuple(available)
        if current != self._list:
            self._list, self._next = current, 0
        if not current:
            return None
        chosen = current[self._next % len(current)]
        self._next = (self._next + 1) % len(current)
        return chosen


class HashSelector:
    """Index (start_ts + tries) mod n: a transaction always begins at the same pump, then takes the next one."""

    name = "hash"

    def select(self, available: Sequence[str], *, start_ts: int, tries: int, tried: Collection[str] = ()) -> str | None:
        if not available:
            return None
        return available[(start_ts + tries) % len(available)]


class ScoreSelector:
    """Random choice in proportion to the weights. Each process has its own random numbers, so writers that see the same
    scores do not all choose the same pump. A transaction tries no pump twice before it has tried all.
    """

    name = "score"

    def __init__(self, weights: Callable[[Sequence[str]], Sequence[float]], dice: random.Random | None = None) -> None:
        self._weights = weights
        self._dice = dice or random.Random()

    def select(self, available: Sequence[str], *, start_ts: int, tries: int, tried: Collection[str] = ()) -> str | None:
        left = [pump for pump in available if pump not in tried] or list(available)
        if not left:
            return None
        return self._dice.choices(left, self._weights(left))[0]


class LabelSelector:
    """The choice of `score`, among the pumps that have all of the writer's labels.

    If none of these is available, or all were tried in vain, other pumps are chosen. A binlog on a pump in another
    place is better than none, because TiDB stops when it cannot write its binlog. For a writer that prefers to stop,
    the pool itself is limited to pumps with its labels.
    """

    name = "label"

    def __init__(self, among: ScoreSelector, has_labels: Callable[[str], bool]) -> None:
        self._among = among
        self._has_labels = has_labels

    def select(self, available: Sequence[str], *, start_ts: int, tries: int, tried: Collection[str] = ()) -> str | None:
        ours = [pump for pump in available if self._has_labels(pump)]
        if all(pump in tried for pump in ours):
            others = [pump for pump in available if pump not in ours]
            if not ours or not all(pump in tried for pump in others):
                ours = others
        return self._among.select(ours, start_ts=start_ts, tries=tries, tried=tried)


def make_selector(
    strategy: str,
    *,
    weights: Callable[[Sequence[str]], Sequence[float]],
    has_labels: Callable[[str], bool] = lambda pump: True,
) -> tuple[Selector, bool]:
    """Return the selector, and whether the strategy is known. An unknown strategy gets the range selector."""
    if strategy == "hash":
        return HashSelector(), True
    if strategy == "score":
        return ScoreSelector(weights), True
    if strategy == "label":
        return LabelSelector(ScoreSelector(weights), has_labels), True
    return RangeSelector(), strategy == "range"
