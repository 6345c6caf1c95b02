"""Decides which pumps count for the watermark (correctness rule 8: which pumps count). Pure.

    list the pumps ──► ask every one that counts ──► list again ──► equal? ──► watermark
          ▲                                                          │ no
          └──────────────────────────────────────────────────────────┘

A pump registers before it accepts a prewrite, so prewrites that a pump in neither list accepts later commit above the
watermark. Equal means: the same ids with the same state and address, and for pumps that do not count the same
mod_revision too, or one could have been brought online, written to, and forced offline between two equal lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from binlog.cluster.node import State


@dataclass(frozen=True, slots=True)
class RegisteredPump:
    """One pump, from a linearizable read of the registry. `final`: the record of a `paused` pump states that
    nothing is pending there and nothing newer than `max_commit_ts` is stored (rule 1: paused pumps); a Go pump never
    does."""

    node_id: str
    host: str
    state: State
    mod_revision: int
    max_commit_ts: int
    final: bool


def counts(pump: RegisteredPump, *, after_ts: int) -> bool:
    """Return whether this pump may hold binlogs above `after_ts`, so that the watermark must wait for it."""
    if pump.state is State.OFFLINE:
        return False
    return not (pump.state is State.PAUSED and pump.final and pump.max_commit_ts <= after_ts)


def unchanged(before: Sequence[RegisteredPump], after: Sequence[RegisteredPump], *, after_ts: int) -> bool:
    """Return whether answers collected between the two lists are valid."""
    return _signature(before, after_ts) == _signature(after, after_ts)


def _signature(pumps: Sequence[RegisteredPump], after_ts: int) -> Mapping[str, tuple[str, str, int]]:
    return {
        pump.node_id: (pump.state, pump.host, 0 if counts(pump, after_ts=after_ts) else pump.mod_revision)
        for pump in pumps
    }
