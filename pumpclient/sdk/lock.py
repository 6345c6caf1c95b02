"""The DDL lock: an etcd key under a lease that lets one service at a time run a DDL statement.

The lock works as a fencing token: a job is published in an etcd transaction, on the condition that the key still is as
this holder wrote it. So a holder whose lease expired while it was suspended cannot publish a job.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from binlog.cluster.etcd import Compare, Etcd, EventKind, Lease
from binlog.cluster.keepalive import Keep
from binlog.cluster.registry import ROOT
from binlog.cluster.tso import boot_clock_s
from binlog.errors import BinlogError
from binlog.runtime.log import get_logger

from pumpclient.sdk.errors import SdkError

log = get_logger(__name__)

LOCK_KEY = f"{ROOT}/ddl/lock"
LEASE_S = 15
WAIT_S = 60.0


class DdlLockTimeout(SdkError):
    """Other services held the DDL lock for longer than `wait_s`."""


@contextlib.asynccontextmanager
async def ddl_lock(etcd: Etcd, owner: str, keep: Keep, *, wait_s: float = WAIT_S) -> AsyncIterator[Compare]:
    """Wait for the lock, have `keep` renew it while it is held, and release it. Return the condition that a publishing
    transaction must compare. Raises DdlLockTimeout after `wait_s`, or EtcdError.
    """
    asked_s = boot_clock_s()
    lease = await etcd.lease(LEASE_S)
    kept = keep(lease, asked_s)
    try:
        try:
            async with asyncio.timeout(wait_s):
                revision = await _acquire(etcd, owner, lease)
        except TimeoutError:
            holder = await etcd.get(LOCK_KEY)
            name = holder.value.decode(errors="replace") if holder else "no service at present"
            raise DdlLockTimeout(f"the DDL lock was not free within {wait_s} s; {name} holds it") from None
        yield Compare(LOCK_KEY, mod_revision=revision)
    finally:
        kept.stop()
        try:
            await lease.revoke()
        except BinlogError as error:
            log.warning("cannot release the DDL lock; it expires with its lease", error=str(error))


async def _acquire(etcd: Etcd, owner: str, lease: Lease) -> int:
    while True:
        revision = await etcd.put_if(LOCK_KEY, owner.encode(), mod_revision=0, lease=lease.id)
        if revision is not None:
            return revision
        there = await etcd.get(LOCK_KEY)
        if there is not None:
            await _deleted(etcd, there.mod_revision)


async def _deleted(etcd: Etcd, revision: int) -> None:
    with contextlib.suppress(BinlogError):  # after a broken watch, the caller checks the lock again
        async for events in etcd.watch(LOCK_KEY, revision=revision):
            if any(event.kind is EventKind.DELETE for event in events):
                return
    await asyncio.sleep(0.05)
