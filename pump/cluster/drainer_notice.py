"""Notifies online drainers of a new pump (`P-LC-05`), because Go drainers seldom list the pumps by themselves."""

from __future__ import annotations

import asyncio

import grpc
from binlog.cluster import tso
from binlog.cluster.node import NodeStatus, State
from binlog.cluster.registry import Registry
from binlog.pb import cistern_pb2
from binlog.runtime.channel import open_channel, stub_of
from binlog.runtime.log import get_logger
from binlog.runtime.security import Security
from grpc import aio

from pump.errors import NotifyFailed

DEADLINE_S = 10.0
TRIES = 3
STALE_S = 30.0

_log = get_logger("pump.cluster.drainer_notice")


async def notify_drainers(registry: Registry, security: Security | None, *, now_ts: int, pause_s: float = 1.0) -> None:
    """Call Cistern.Notify of every online drainer, except those that read topics, and may stand anywhere.

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
