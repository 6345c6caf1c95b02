"""The set of pumps known to this client, and which are available (C-03 to C-06, C-14). Pure.

A pump is available when the registry says online and it has not failed more than `errors_max` times in a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from binlog.cluster.node import NodeStatus, State

ERRORS_MAX = 10  # consecutive, as upstream (C-03)


@dataclass(slots=True)
class Member:
    """One pump. `suspended` is set by errors and cleared by a success, a probe, or a change of state or address."""

    node_id: str
    host: str
    state: State
    errors: int = 0
    suspended: bool = False
    last_cause: object = None

    @property
    def online(self) -> bool:
        return self.state is State.ONLINE

    @property
    def available(self) -> bool:
        return self.online and not self.suspended


class Pool:
    """All registered pumps by id. Lists come in the order of ids, so that `hash` is stable over processes."""

    def __init__(self, *, errors_max: int = ERRORS_MAX) -> None:
        self._errors_max = errors_max
        self._members: dict[str, Member] = {}

    def __len__(self) -> int:
        return len(self._members)

    def get(self, node_id: str) -> Member | None:
        return self._members.get(node_id)

    def put(self, status: NodeStatus) -> bool:
        """Take a status from the registry. True when its connection must go: the pump has another address.

        Another state is a fresh start for its error count, and no reason to lose answers that are on their way.
        """
        known = self._members.get(status.node_id)
        if known is None:
            self._members[status.node_id] = Member(status.node_id, status.host, status.state)
            return False
        moved = known.host != status.host
        if moved or known.state is not status.state:
            known.errors, known.suspended = 0, False
        known.host, known.state = status.host, status.state
        return moved

    def remove(self, node_id: str) -> bool:
        return self._members.pop(node_id, None) is not None

    def replace_all(self, statuses: Iterable[NodeStatus]) -> set[str]:
        """Replace the pool by a listing; returns ids that are gone or whose connection must be reset."""
        listed = {status.node_id: status for status in statuses}
        stale = {node_id for node_id in self._members if node_id not in listed}
        for node_id in stale:
            self.remove(node_id)
        return stale | {node_id for node_id, status in listed.items() if self.put(status)}

    def available(self) -> tuple[str, ...]:
        return tuple(sorted(m.node_id for m in self._members.values() if m.available))

    def online(self) -> tuple[str, ...]:
        return tuple(sorted(m.node_id for m in self._members.values() if m.online))

    def suspended(self) -> tuple[str, ...]:
        """Pumps that are online in the registry but failed, which detection probes (C-05)."""
        return tuple(sorted(m.node_id for m in self._members.values() if m.online and m.suspended))

    def succeeded(self, node_id: str) -> bool:
        """A write or a probe was acknowledged. True when this made the pump available again."""
        member = self._members.get(node_id)
        if member is None:
            return False
        revived = member.suspended
        member.errors, member.suspended = 0, False
        return revived

    def failed(self, node_id: str, cause: object = None) -> bool:
        """One more error in a row. True when this made the pump unavailable.

        The same `cause` again is the same error: a broken stream is one, however many binlogs were on it.
        """
        member = self._members.get(node_id)
        if member is None or (cause is not None and cause is member.last_cause):
            return False
        member.last_cause = cause
        member.errors += 1
        newly = member.errors > self._errors_max and not member.suspended
        if newly:
            member.suspended = True
        return newly
