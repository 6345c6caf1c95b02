"""This drainer's record in the registry (R-04, R-07): pumps notify who is there, and keep what it has not read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from binlog.cluster import tso
from binlog.cluster.node import STATUS_LABEL, Event, NodeStatus, State, next_state
from binlog.cluster.own_record import OwnRecord
from binlog.cluster.registry import Registry
from binlog.errors import BinlogError, RegistryConflict
from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage

HEARTBEAT_S = 1.0
FAILURES_MAX = 20  # in a row, as upstream (D-LC-02)

_log = get_logger(__name__)


class Displaced(BinlogError):
    """Somebody else wrote this node's record: an operator changed its state, or a second process has its id."""


class DrainerNode:
    """Absent or left behind, `online` after `register`, then a heartbeat a second, `pausing` or `closing` from
    `stopping` on, `paused` or `offline` after `leave`.

    `position` gives maxCommitTS: the destination's position, which pumps must not purge beyond (rule 20).
    `status_addr`: host:port where binlogctl finds /state, told in a label; "" where there is none.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        node_id: str,
        host: str,
        position: Callable[[], int],
        started_ts: int,
        status_addr: str = "",
    ) -> None:
        self._record = OwnRecord(registry, "drainers", node_id)
        self._node_id, self._host = node_id, host
        self._label = {STATUS_LABEL: status_addr} if status_addr else None
        self._position = position
        self._started_ts, self._started_at = started_ts, time.monotonic()
        self.state = State.OFFLINE

    async def register(self) -> None:
        """Take the id, whatever state a former life left it in. Raises RegistryConflict when two start at once."""
        await self._record.take(self._status(State.ONLINE), await self._record.read())
        self.state = State.ONLINE

    async def heartbeats(self, interval_s: float = HEARTBEAT_S) -> None:
        """Run until cancelled. Raises Displaced, and the last error after FAILURES_MAX failures in a row."""
        failures = 0
        outage = Outage(_log, "heartbeat failed", "the heartbeat is back")
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self._write(self.state)
                failures = 0
                outage.over()
            except RegistryConflict as error:
                raise Displaced(f"drainer {self._node_id} is not ours any more: {error}") from error
            except BinlogError as error:
                failures += 1
                outage.failed(error=str(error), gives_up_after=FAILURES_MAX)
                if failures >= FAILURES_MAX:
                    raise

    async def stopping(self, event: Event) -> None:
        """PAUSE or CLOSE: the batch in flight still goes on."""
        await self._move(event)

    async def leave(self) -> None:
        """The last record. What was not written then is what the heartbeats last said."""
        await self._move(Event.DRAINED)

    async def _move(self, event: Event) -> None:
        self.state = next_state(self.state, event)
        try:
            await self._write(self.state)
        except BinlogError as error:
            _log.warning("the state could not be registered", state=self.state, error=str(error))

    async def _write(self, state: State) -> None:
        await self._record.write(lambda: self._status(state))

    def _status(self, state: State) -> NodeStatus:
        update_ts = tso.approximate(self._started_ts, time.monotonic() - self._started_at)
        return NodeStatus(
            self._node_id,
            self._host,
            state,
            label=self._label,
            max_commit_ts=max(0, self._position()),
            update_ts=update_ts,
        )
