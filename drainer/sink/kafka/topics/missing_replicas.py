"""Why partitions cannot be written, from the client library's metadata. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def missing_replicas(topics: Mapping[str, Any], sent: Iterable[tuple[str, int]]) -> list[str]:
    """Return texts that say why partitions cannot be written: they have no leader, or replicas that are not in sync.
    `topics`: the client library's metadata; `sent`: topics and partitions to look at."""
    found = []
    for name, number in sorted(sent):
        partitions = topics[name].partitions if name in topics else {}
        if number not in partitions:
            continue
        one = partitions[number]
        if one.leader < 0:
            why = f" ({one.error.str()})" if one.error is not None else ""
            found.append(f"partition {number} of topic {name} has no leader{why}")
        elif len(one.isrs) < len(one.replicas):
            away = ", ".join(str(broker) for broker in sorted(set(one.replicas) - set(one.isrs)))
            found.append(
                f"partition {number} of topic {name} has {len(one.isrs)} of {len(one.replicas)} replicas in sync, not "
                f"that of broker {away}, and needs min.insync.replicas of them"
            )
    return found
