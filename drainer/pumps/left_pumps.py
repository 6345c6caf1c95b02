"""Where pumps were left that do not count any more, and what they hold of it when they come back (correctness rule 2).

    counts ──► offline, or paused with a last word: left at the position of that moment, written to etcd before any
      ▲                                             watermark without the pump is believed
      └─────── is back: what lies in (left, position] was never read ──► alarm; above the position it is read as ever

A pump that left in order holds nothing there. One that an operator forced offline may: its rows are older than what has
been applied since, so they cannot simply be applied now, and nobody may take them for applied either.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from binlog.cluster.kv import Etcd
from binlog.cluster.registry import ROOT
from binlog.runtime.log import get_logger

MISSED_MAX = 10_000  # more are not counted
MISSED_SHOWN = 20

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Missed:
    """What a pump holds of a range that was passed without it: how many binlogs (MISSED_MAX: or more), and of the
    first MISSED_SHOWN (start_ts, commit_ts)."""

    count: int = 0
    shown: tuple[tuple[int, int], ...] = ()


class Left:
    """node id → position, kept in etcd under `scope`. Empty until `load`."""

    def __init__(self, etcd: Etcd, scope: str) -> None:
        self._etcd = etcd
        self._prefix = f"{ROOT}/left/{scope}/"
        self._ts: dict[str, int] = {}

    async def load(self) -> None:
        """What earlier lives left. Raises EtcdError."""
        kvs, _ = await self._etcd.range(self._prefix)
        for kv in kvs:
            node_id, text = kv.key.removeprefix(self._prefix), kv.value.decode(errors="replace")
            if text.isdigit():
                self._ts[node_id] = int(text)
            else:
                _log.error("where a pump was left cannot be read", key=kv.key, value=text)

    def ts(self, node_id: str) -> int | None:
        """Everything of this pump up to there has been read; None for a pump that was never left."""
        return self._ts.get(node_id)

    async def leave(self, node_id: str, position_ts: int) -> None:
        """From now on it does not count. The place where it was left first stays. Raises EtcdError."""
        if node_id not in self._ts:
            await self._etcd.put(f"{self._prefix}{node_id}", str(position_ts).encode())
            self._ts[node_id] = position_ts

    async def forget(self, node_id: str) -> None:
        """It counts again. Raises EtcdError."""
        await self._etcd.delete(f"{self._prefix}{node_id}")
        del self._ts[node_id]


def scope_of(changefeed: str, destination: str) -> str:
    """A part of an etcd key: one stream into one place, whichever drainer carries it."""
    return f"{changefeed}-{hashlib.blake2b(destination.encode(), digest_size=6).hexdigest()}"
