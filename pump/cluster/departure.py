"""Takes a stopping pump out of the cluster: what it waits for, and the state that it registers in the end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from binlog.cluster.node import Event, State
from binlog.cluster.registry import Registry
from binlog.cluster.timestamp import TimestampSource
from binlog.errors import BinlogError, LogBroken, TimestampUnavailable
from binlog.runtime.log import get_logger
from binlog.runtime.outage import Outage

from pump.cluster.drainer_notice import is_stale
from pump.cluster.node import Node
from pump.store.store import Store
from pump.tasks.gc import Topic, drainers_of, readers

PASSED_POLL_S = 1.0
SEAL_S = 5.0  # for writes that were accepted before the store was sealed
READ_WAIT_S = 5.0  # for online drainers to read the last binlogs, so that they do not wait for this pump's next start
READ_POLL_S = 0.1

_log = get_logger("pump")


@dataclass(frozen=True, slots=True)
class Leaving:
    """Takes a pump out of the cluster while it still serves stored binlogs. Call `leave` once. `drain_wait_s`: how long
    pending prewrites may take to get their commits."""

    node: Node
    store: Store
    registry: Registry
    timestamps: TimestampSource
    drain_wait_s: float
    topic: Topic | None = None

    async def leave(self, event: Event) -> None:
        """Leave with PAUSE or CLOSE, as Pump.stop says. Raises BinlogError if the new state cannot be registered."""
        if self.node.usurped:
            return
        if self.store.log.broken is not None:
            await self._leave_broken()
            return
        await self.node.move(event)
        if not await self.store.writes.drained(self.drain_wait_s):
            _log.warning(
                "prewrites are still pending: the pump keeps its state and holds drainers back",
                state=self.node.state,
                pending=len(self.store.pending),
            )
            return
        if event is Event.CLOSE:
            await self._wait_for_drainers()
            await self.node.move(Event.DRAINED)
            return
        with suppress(TimestampUnavailable):  # a Go pump that opens this directory serves up to this ts
            await self.store.resolver.refresh()
        final_ts = await self.store.writes.seal("the pump is stopping", SEAL_S)
        if final_ts is None:
            _log.warning("a write has not finished: drainers wait until this pump is started again")
        else:
            await self._wait_for_readers(final_ts)
        await self.node.move(Event.DRAINED, final_ts=final_ts)

    async def _leave_broken(self) -> None:
        """Stop with a broken log: its last records are unknown until recovery, so the state stays as it is for
        drainers."""
        if self.node.state is State.ONLINE:
            await self.node.move(Event.PAUSE)
        else:
            await self.node.write()
        _log.warning("the value log is broken: the pump keeps its state, and drainers wait until it is started again")

    async def _wait_for_readers(self, final_ts: int) -> None:
        """Wait up to READ_WAIT_S until every online drainer has applied the last binlog stored here."""
        with suppress(BinlogError, TimeoutError):
            async with asyncio.timeout(READ_WAIT_S):
                now_ts = await self.timestamps.get()
                while True:
                    known = readers(await drainers_of(self.registry), self.topic)
                    online = [each for each in known if each.state is State.ONLINE]
                    if all(d.max_commit_ts >= final_ts or is_stale(d, now_ts) for d in online):
                        return
                    await asyncio.sleep(READ_POLL_S)

    async def _wait_for_drainers(self) -> None:
        """Wait until every drainer that is not offline has applied everything up to a current ts. Failures are retried
        (P-LC-09): if the pump stopped waiting, it would stay `closing` and hold drainers back."""
        outage = Outage(_log, "cannot tell whether drainers have read everything", "the drainers' positions are known")
        waiting = Outage(_log, "waiting for drainers before going offline", "every drainer has read everything")
        ts = 0
        while not self.node.usurped:  # a usurped record must not be changed by this pump
            try:
                fake_ts = await self.store.writes.write_fake()
                ts = ts or fake_ts
                drainers = readers(await drainers_of(self.registry), self.topic)
                outage.over()
                behind = [d.node_id for d in drainers if d.state is not State.OFFLINE and d.max_commit_ts < ts]
                if not behind:
                    waiting.over()
                    return
                waiting.failed(drainers=behind)
            except LogBroken:
                raise
            except BinlogError as error:
                outage.failed(error=error)
            await asyncio.sleep(PASSED_POLL_S)
