"""Which one of several processes with one node id runs: the oldest candidate in etcd; the others wait.

Each process has a key of its own under its lease. The key with the smallest revision is that of the process that runs.
When it ends, cleanly or with its lease, the next one is first. The destination's epoch protects it from a process whose
lease has ended and which does not know it yet (rule 15: fencing), so this is not about safety: it decides who tries.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from binlog.cluster.etcd import KV, Etcd, Keep, KeepAliveThread, Lease, wait_for_change
from binlog.cluster.registry import ROOT
from binlog.cluster.tso import boot_clock_s
from binlog.errors import BinlogError, EtcdError
from binlog.runtime.log import Outage, get_logger

CANDIDATES_PREFIX: Final = f"{ROOT}/drainer-candidates/"
LEASE_S: Final = 4
POLL_S: Final = 2.0
RETRY_S: Final = 0.5

_log = get_logger(__name__)


class Candidate:
    """This process among those with its node id. `running`: address of the process that runs, "" if not known;
    `waiting`: addresses of those that wait, the next one first."""

    def __init__(
        self, etcd: Etcd, keep: Keep, *, node_id: str, address: str, poll_s: float = POLL_S, lease_s: int = LEASE_S
    ) -> None:
        """`keep`: renews the lease (binlog.cluster.etcd); `poll_s`: how often `stay_first` looks, and how long at
        most passes after an error; `lease_s`: how long a lease outlives its process."""
        self._etcd = etcd
        self._keep = keep
        self._node_id, self._address = node_id, address
        self._poll_s = poll_s
        self._lease_s = lease_s
        self._prefix = f"{CANDIDATES_PREFIX}{node_id}/"
        self._key, self._revision = "", 0
        self._lease: tuple[Lease, KeepAliveThread] | None = None
        self.running = ""
        self.waiting: Sequence[str] = ()

    async def first(self, tell: Callable[[str], None]) -> None:
        """Wait until this process is the first. `tell`: called with the address of the one that runs, whenever that
        changes. If etcd does not answer, that is logged and tried again."""
        outage = Outage(_log, "cannot learn from etcd which drainer runs", "etcd answers again")
        while True:
            try:
                before = self.running
                if await self._is_first():
                    return
                outage.over()
                if self.running != before:
                    tell(self.running)
                await wait_for_change(self._etcd, self._prefix, revision=self._revision, within_s=self._lease_s)
            except EtcdError as error:
                outage.failed(error=error)
                await asyncio.sleep(min(RETRY_S, self._poll_s))

    async def stay_first(self) -> None:
        """Run until cancelled. Raises BinlogError if another process is first. Without an answer of etcd this process
        stays: nobody else can take over then."""
        while True:
            await asyncio.sleep(self._poll_s)
            with suppress(EtcdError):
                if not await self._is_first():
                    why = f"the lease of this drainer ended, and {self._node_id} runs at {self.running} now"
                    raise BinlogError(why)

    async def leave(self) -> None:
        """Give way to the next process at once."""
        if self._lease is None:
            return
        lease, keeping = self._lease
        self._lease = None
        keeping.stop()
        with suppress(EtcdError):
            await lease.revoke()

    async def _is_first(self) -> bool:
        order = await self._order()
        if self._key not in [kv.key for kv in order]:
            await self._enter()
            order = await self._order()
        addresses = [_address(kv) for kv in order]
        self.running, self.waiting = (addresses[0], tuple(addresses[1:])) if order else ("", ())
        return bool(order) and order[0].key == self._key

    async def _order(self) -> list[KV]:
        found, self._revision = await self._etcd.range(self._prefix)
        return sorted(found, key=lambda kv: kv.mod_revision)

    async def _enter(self) -> None:
        """Become the last candidate, under a new lease."""
        await self.leave()
        asked_s = boot_clock_s()
        lease = await self._etcd.lease(self._lease_s)
        self._lease = lease, self._keep(lease, asked_s)
        self._key = f"{self._prefix}{uuid.uuid4().hex}"
        await self._etcd.put(self._key, json.dumps({"host": self._address}).encode(), lease=lease.id)


async def waiting_by_node(etcd: Etcd) -> dict[str, list[str]]:
    """Return the addresses of the processes that wait, by node id, the next one first. Raises EtcdError."""
    found, _ = await etcd.range(CANDIDATES_PREFIX)
    by_node: dict[str, list[str]] = {}
    for kv in sorted(found, key=lambda kv: kv.mod_revision):
        by_node.setdefault(kv.key.removeprefix(CANDIDATES_PREFIX).rpartition("/")[0], []).append(_address(kv))
    return {node_id: addresses[1:] for node_id, addresses in by_node.items()}


def _address(kv: KV) -> str:
    """Return the address in a candidate's value; of a damaged one its text."""
    try:
        return str(json.loads(kv.value)["host"])
    except (ValueError, KeyError, TypeError):
        return kv.value.decode(errors="replace")
