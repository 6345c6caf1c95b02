"""A pump joins and leaves the cluster: whom it notifies, what it waits for, the state that it registers in the end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

import grpc
from binlog.cluster import tso
from binlog.cluster.registry import Event, NodeStatus, Registry, State
from binlog.cluster.timestamp import TimestampSource
from binlog.errors import BinlogError, LogBroken, TimestampUnavailable
from binlog.pb import cistern_pb2
from binlog.runtime.channel import open_channel, stub_of
from binlog.runtime.log import Outage, get_logger
from binlog.runtime.security import Security
from grpc import aio

from pump.cluster.node import Node
from pump.errors import NotifyFailed
from pump.store.store import Store
from pump.tasks.gc import Topic, drainers_of, readers

PASSED_POLL_S = 1.0
SEAL_S = 5.0  # for writes that were accepted before the store was sealed
READ_WAIT_S = 5.0  # for online drainers to read the last binlogs, so that they do not wait for this pump's next start
READ_POLL_S = 0.1
DEADLINE_S = 10.0  # for a drainer's answer to a notification, over all TRIES
TRIES = 3
STALE_S = 30.0

_log = get_logger("pump")


async def notify_drainers(registry: Registry, security: Security | None, *, now_ts: int, pause_s: float = 1.0) -> None:
    """Call Cistern.Notify of every online drainer, except those that read topics, and may stand anywhere (`P-LC-05`):
    Go drainers seldom list the pumps by themselves.

    Raises NotifyFailed if a drainer with a fresh record does not accept the call. A drainer that has not written its
    record for STALE_S is dead although its record says `online`. It must not keep pumps from starting (L-20), so it is
    only logged.
    """
    drainers = [record.status for record in (await registry.list("drainers")).nodes]
    online = [status for status in drainers if status.state is State.ONLINE and not status.reads_topics]
    failures = await asyncio.gather(*(_notify(status, security, pause_s) for status in online))
    for status, failure in zip(online, failures, strict=True):
        if failure is None:
            _log.info("drainer notified", drainer=status.node_id, host=status.host)
            continue
        if not is_stale(status, now_ts):
            raise NotifyFailed(f"fail to notify all living drainer: {status.node_id} at {status.host}: {failure}")
        age_s = _age_s(status, now_ts)
        _log.warning("an online drainer does not answer", drainer=status.node_id, age_s=int(age_s), reason=failure)


def is_stale(status: NodeStatus, now_ts: int) -> bool:
    """Return whether the last heartbeat is so old that the process must have ended."""
    return _age_s(status, now_ts) > STALE_S


def _age_s(status: NodeStatus, now_ts: int) -> float:
    return (tso.physical_ms(now_ts) - tso.physical_ms(status.update_ts)) / 1000


async def _notify(status: NodeStatus, security: Security | None, pause_s: float) -> str | None:
    """Notify one drainer. Return None, or why it failed."""
    failure = "no answer"
    deadline_s = asyncio.get_running_loop().time() + DEADLINE_S
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(pause_s * 2 ** (attempt - 1))
        left_s = deadline_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            break
        try:
            async with open_channel(status.host, security) as channel:
                stub = stub_of(channel, cistern_pb2.DESCRIPTOR, "Cistern")
                await stub.Notify(cistern_pb2.NotifyReq(), timeout=min(left_s, DEADLINE_S / TRIES))
                return None
        except aio.AioRpcError as error:
            failure = f"{error.code().name}: {error.details()}"
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return None  # it is alive and does not need the notification
    return failure


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
