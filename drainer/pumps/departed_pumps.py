"""Positions at which pumps stopped counting, stored in etcd (correctness rule 2: pumps that return).

    counts ──► offline, or paused and final: the position is stored in etcd before any watermark without the pump
      ▲                                      is used
      └─────── rejoins: binlogs in (stored position, current position] were never read ──► alarm; later ones are read

A pump that left in order holds no such binlogs. One that an operator forced offline may: its rows are older than those
applied since, so they cannot be applied now, and they must not count as applied either.
"""

from __future__ import annotations

import hashlib

from binlog.cluster.etcd import Etcd
from binlog.cluster.registry import ROOT
from binlog.runtime.log import get_logger

_log = get_logger(__name__)


class DepartedPumps:
    """Node id → position at which the pump stopped counting, in etcd under `scope`. Empty until `load`."""

    def __init__(self, etcd: Etcd, scope: str) -> None:
        self._etcd = etcd
        self._prefix = f"{ROOT}/left/{scope}/"
        self._ts: dict[str, int] = {}

    async def load(self) -> None:
        """Read the entries of earlier runs. Raises EtcdError."""
        kvs, _ = await self._etcd.range(self._prefix)
        for kv in kvs:
            node_id, text = kv.key.removeprefix(self._prefix), kv.value.decode(errors="replace")
            if text.isdigit():
                self._ts[node_id] = int(text)
            else:
                _log.error("cannot parse the recorded position of a pump that left", key=kv.key, value=text)

    def ts(self, node_id: str) -> int | None:
        """Return the position up to which this pump was read; None for a pump that has not left."""
        return self._ts.get(node_id)

    async def leave(self, node_id: str, position_ts: int) -> None:
        """Record that the pump stopped counting; an existing entry stays. Raises EtcdError."""
        if node_id not in self._ts:
            await self._etcd.put(f"{self._prefix}{node_id}", str(position_ts).encode())
            self._ts[node_id] = position_ts

    async def forget(self, node_id: str) -> None:
        """Remove the entry of a pump that counts again. Raises EtcdError."""
        await self._etcd.delete(f"{self._prefix}{node_id}")
        del self._ts[node_id]


def scope_of(changefeed: str, destination: str) -> str:
    """Return the part of an etcd key that identifies a changefeed and its destination, whichever drainer runs it."""
    return f"{changefeed}-{hashlib.blake2b(destination.encode(), digest_size=6).hexdigest()}"
