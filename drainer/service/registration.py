"""This drainer's record in the registry: pumps notify registered drainers and keep the binlogs they have not
applied."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from binlog.cluster import tso
from binlog.cluster.registry import (
    SOURCE_LABEL,
    STATUS_LABEL,
    Event,
    NodeStatus,
    OwnRecord,
    Registry,
    State,
    next_state,
)
from binlog.errors import BinlogError, RegistryConflict
from binlog.runtime.log import Outage, get_logger

HEARTBEAT_S = 1.0
FAILURES_MAX = 20  # in a row, as upstream (D-LC-02)

_log = get_logger(__name__)


class Displaced(BinlogError):
    """Another process wrote this node's record: an operator changed its state, or a second drainer has its id."""


@dataclass(eq=False)
class DrainerNode:
    """The drainer's registry record: `online` after `register`, then refreshed by `heartbeats`, `pausing` or `closing`
    while the last batch in flight continues, `paused` or `offline` at the end.

    `position` gives maxCommitTS: the destination's position, which pumps must not purge beyond (rule 20: what pumps
    must keep). `status_addr`: host:port where binlogctl finds /state, stored in a label; "" for none.
    `reads_topics`: from Kafka in place of the pumps.
    """

    registry: Registry
    node_id: str
    host: str
    position: Callable[[], int]
    started_ts: int
    status_addr: str = ""
    reads_topics: bool = False
    state: State = State.OFFLINE

    def __post_init__(self) -> None:
        self._record = OwnRecord(self.registry, "drainers", self.node_id)
        labels = {STATUS_LABEL: self.status_addr, SOURCE_LABEL: "kafka" if self.reads_topics else ""}
        self._label = {name: value for name, value in labels.items() if value} or None
        self._started_at = time.monotonic()

    async def register(self, state: State = State.ONLINE) -> None:
        """Write the record with this state, whatever it was. RegistryConflict when two drainers start at once."""
        await self._record.take(self._status(state), await self._record.read())
        self.state = state

    async def heartbeats(self, interval_s: float = HEARTBEAT_S) -> None:
        """Run until cancelled. Raises Displaced, and the last error after FAILURES_MAX failures in a row."""
        failures = 0
        outage = Outage(_log, "heartbeat failed", "heartbeat succeeds again")
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self._write(self.state)
                failures = 0
                outage.over()
            except RegistryConflict as error:
                raise Displaced(f"drainer {self.node_id} was registered by another process: {error}") from error
            except BinlogError as error:
                failures += 1
                outage.failed(error=str(error), gives_up_after=FAILURES_MAX)
                if failures >= FAILURES_MAX:
                    raise

    async def move(self, event: Event) -> None:
        """Write the state after `event`. If that fails, the record of the last heartbeat stays."""
        self.state = next_state(self.state, event)
        try:
            await self._write(self.state)
        except BinlogError as error:
            _log.warning("cannot write the state to the registry", state=self.state, error=str(error))

    async def _write(self, state: State) -> None:
        await self._record.write(lambda: self._status(state))

    def _status(self, state: State) -> NodeStatus:
        update_ts = tso.approximate(self.started_ts, time.monotonic() - self._started_at)
        return NodeStatus(
            self.node_id,
            self.host,
            state,
            label=self._label,
            max_commit_ts=max(0, self.position()),
            update_ts=update_ts,
        )
