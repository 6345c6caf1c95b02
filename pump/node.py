"""This pump's record in the registry, and what follows from it (correctness rules 1 and 2).

Every write compares with the revision of our own last one. A mismatch means that an operator forced the node offline,
or that a second process has its id: prewrites stop at once, and the record is left to whoever wrote it.

A `paused` record with the label `final` is a promise: nothing is pending here and nothing above its maxCommitTS is
stored, so a drainer that is there need not wait for this pump. Registering takes it back before anything is accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from binlog import tso
from binlog.errors import BinlogError, EtcdError, NodeNotFound, RegistryConflict
from binlog.log import get_logger
from binlog.node import FINAL_LABEL, STATUS_LABEL, Event, NodeStatus, State, next_state
from binlog.registry import NodeRecord, Registry

_log = get_logger("pump.node")


class Node:
    """Absent, registered, usurped (somebody else wrote the record), or left.

    `state` is what this process is; the record follows at the next write.
    """

    def __init__(self, registry: Registry, node_id: str, *, resolved_ts: Callable[[], int]) -> None:
        self.node_id = node_id
        self.state = State.OFFLINE
        self.previous: State | None = None
        self.usurped = ""
        self._registry = registry
        self._resolved_ts = resolved_ts
        self._host = ""
        self._status_addr = ""
        self._final_ts: int | None = None
        self._started: tuple[int, float] = (0, 0.0)
        self._revision = 0
        self._unsure: NodeStatus | None = None  # a write whose outcome etcd did not tell
        self._writing = asyncio.Lock()

    @property
    def refuses_prewrites(self) -> str:
        """The state to name in a refusal (P-RPC-03), or "" while prewrites are welcome."""
        if self.usurped:
            return self.usurped
        return "" if self.state is State.ONLINE and self._revision else str(self.state)

    async def register(self, host: str, now_ts: int, *, status_addr: str = "") -> None:
        """Become online (P-LC-05). RegistryConflict if somebody else writes the record at the same time.

        `status_addr`: host:port where binlogctl finds /state, told in a label; "" where there is none.
        """
        self._host, self._status_addr = host, status_addr
        self._started = (now_ts, asyncio.get_running_loop().time())
        record = await self._registry.get("pumps", self.node_id)
        self.previous = record.status.state if record is not None else None
        self.state = next_state(self.previous or State.OFFLINE, Event.START)
        status = self._status(now_ts)
        if record is None:
            self._revision = await self._registry.create("pumps", status)
        else:
            self._revision = await self._registry.update("pumps", status, mod_revision=record.mod_revision)
        _log.info("registered", node_id=self.node_id, host=host, previous=self.previous)

    def _status(self, update_ts: int | None = None) -> NodeStatus:
        start_ts, start_s = self._started
        now_ts = tso.approximate(start_ts, asyncio.get_running_loop().time() - start_s)
        final_ts = self._final_ts if self.state is State.PAUSED else None
        labels = {STATUS_LABEL: self._status_addr} if self._status_addr else {}
        if final_ts is not None:
            labels[FINAL_LABEL] = "true"
        return NodeStatus(
            self.node_id,
            self._host,
            self.state,
            label=labels or None,
            max_commit_ts=self._resolved_ts() if final_ts is None else final_ts,
            update_ts=now_ts if update_ts is None else update_ts,
        )

    async def move(self, event: Event, *, final_ts: int | None = None) -> None:
        """Change state here and in the registry. `final_ts`: no binlog above it is stored, and none will be."""
        self.state = next_state(self.state, event)
        self._final_ts = final_ts
        await self.write()

    async def write(self) -> None:
        """Write the record as we are now. RegistryConflict or NodeNotFound: we are usurped; EtcdError: try again."""
        async with self._writing:
            if self.usurped:
                raise RegistryConflict(f"the record of {self.node_id} belongs to somebody else: {self.usurped}")
            status = self._status()
            try:
                self._revision = await self._registry.update("pumps", status, mod_revision=self._revision)
            except EtcdError:
                self._unsure = status
                raise
            except (RegistryConflict, NodeNotFound):
                await self._explain(status)
            self._unsure = None

    async def _explain(self, status: NodeStatus) -> None:
        """A mismatch: it was our own write, whose answer was lost, or somebody else's."""
        found = await self._registry.get("pumps", self.node_id)
        if found is not None and self._unsure is not None and found.status == self._unsure:
            self._revision = await self._registry.update("pumps", status, mod_revision=found.mod_revision)
            return
        self._usurp(found)
        raise RegistryConflict(f"the record of {self.node_id} was written by somebody else: {found}")

    def _usurp(self, found: NodeRecord | None) -> None:
        self.usurped = str(found.status.state) if found is not None else "removed"
        _log.error(
            "somebody else wrote this pump's record: no more prewrites are taken; restart it to register again",
            node_id=self.node_id,
            record=found,
        )

    async def heartbeat(self, interval_s: float) -> None:
        """Refresh the record for ever; failures of etcd are logged and tried again (P-LC-06)."""
        while not self.usurped:
            await asyncio.sleep(interval_s)
            try:
                await self.write()
            except (RegistryConflict, NodeNotFound):
                return
            except BinlogError as error:
                _log.warning("heartbeat failed", error=error)

    async def watch(self) -> None:
        """Notice a foreign write when it happens, not at the next heartbeat."""
        while not self.usurped:
            try:
                async for changes in self._registry.watch("pumps", self._revision):
                    for change in changes:
                        if change.node_id == self.node_id:
                            await self._judge(change.record)
                    if self.usurped:
                        return
            except EtcdError as error:
                _log.warning("watch of the registry broke", error=error)
                await asyncio.sleep(1)

    async def _judge(self, record: NodeRecord | None) -> None:
        """A change of our key is ours, about to be known as ours (its answer is on the way), or foreign."""
        async with self._writing:
            if record is not None and (record.mod_revision <= self._revision or record.status == self._unsure):
                return
            with suppress(EtcdError):
                found = await self._registry.get("pumps", self.node_id)
                if found is None or found.mod_revision != self._revision:
                    self._usurp(found)

    async def go_offline(self) -> None:
        """Take the registration back (P-LC-05)."""
        self.state = State.OFFLINE
        self._revision = await self._registry.update(
            "pumps", replace(self._status(), update_ts=0), mod_revision=self._revision
        )
