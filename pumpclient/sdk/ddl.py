"""Runs one DDL statement under the DDL lock: prewrite, commit_ts, published job, commit, always in this order.

The prewrite is written first: while it is pending, the pump's resolved ts stays below it. It is pending from before
the job is visible until the commit is stored. The commit_ts is taken before the job is published: a service that reads
the job and writes rows with the new schema then gets a later commit_ts. The job is published before the commit is
written: otherwise a drainer could read a DDL binlog whose job does not exist.

If the service dies between the prewrite and the job, a pending prewrite without a job remains: it must be rolled back.
If it dies between the job and the commit, the pending prewrite must be committed at the job's FinishedTS.

The lock, an etcd key under a lease, lets one service at a time run a statement. It works as a fencing token: a job is
published in an etcd transaction, on the condition that the key still is as this holder wrote it. So a holder whose
lease expired while it was suspended cannot publish a job.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace

from binlog.cluster.etcd import Compare, Etcd, EventKind, Keep, Lease, Put
from binlog.cluster.registry import ROOT
from binlog.cluster.tso import boot_clock_s
from binlog.cluster.writers import JOB_BYTES_MAX, PublishedJobs, key_of_version
from binlog.errors import BinlogError, EtcdError
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger
from binlog.runtime.waiting import cancel
from binlog.tidb.job import ActionType, Job
from binlog.tidb.key import meta_hash_key
from binlog.tidb.types import SchemaState

from pumpclient.sdk.catalog import Catalog
from pumpclient.sdk.context import ServiceContext, begin
from pumpclient.sdk.errors import BadDeclaration, DdlLockLost, DdlUndecided, SdkError
from pumpclient.sdk.lease import Held
from pumpclient.writer import DdlFields

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


CONFIRM_TRIES = 60
CONFIRM_PAUSE_S = 1.0
# Schema state None (0): every drop, and multi-schema changes; that of other jobs is public.
NO_STATE = frozenset(
    {ActionType.DROP_SCHEMA, ActionType.DROP_TABLE, ActionType.DROP_COLUMN, ActionType.DROP_INDEX}
    | {ActionType.MULTI_SCHEMA_CHANGE}
)


@dataclass(slots=True)
class Planning:
    """The input of a plan: the current catalog, the statement's start_ts, and a source of new ids."""

    catalog: Catalog
    start_ts: int
    next_id: Callable[[], Awaitable[int]]


# Plans a statement while the DDL lock is held: a job without id, schema version, state and times.
MakeStatement = Callable[[Planning], Awaitable[Job]]


@dataclass(slots=True)
class DdlRunner:
    """Runs DDL statements one after the other, across all services that share the etcd."""

    context: ServiceContext
    jobs: PublishedJobs
    refresh: Callable[[], Awaitable[None]]
    owner: str
    _own: asyncio.Lock = field(default_factory=asyncio.Lock)
    _rests: set[asyncio.Future[Job]] = field(default_factory=set)

    async def run(self, plan: MakeStatement) -> Job:
        """Run the statement and return the job as published.

        Raises the errors of `plan`, DdlLockTimeout, DdlLockLost, DdlUndecided, and errors of the pump client.
        """
        async with contextlib.AsyncExitStack() as held:
            with self.context.under_way.entered("a DDL statement"):
                await held.enter_async_context(self._own)
                lock = await held.enter_async_context(ddl_lock(self.context.etcd, self.owner, self.context.lease.keep))
                rest = asyncio.ensure_future(self._publish_and_commit(*await self._prewrite(plan, lock)))
            # From here on, cancelling the caller has no effect: the statement is completed or rolled back.
            self._rests.add(rest)
            rest.add_done_callback(self._rests.discard)
            try:
                with self.context.under_way.deciding():
                    return await asyncio.shield(rest)
            except asyncio.CancelledError:
                if not rest.cancelled():
                    raise
                raise DdlUndecided("the service was closed while a DDL statement was being published") from None

    async def _prewrite(self, plan: MakeStatement, lock: Compare) -> tuple[Job, Compare, Held, DdlFields, str]:
        await self.refresh()
        start_ts = await self.context.timestamps.get()
        planned = await plan(Planning(self.context.catalog, start_ts, self.jobs.next_id))
        job = replace(
            planned,
            id=await self.jobs.next_id(),
            schema_version=await self.jobs.next_schema_version(),
            schema_state=SchemaState.NONE if planned.type in NO_STATE else SchemaState.PUBLIC,
            start_ts=start_ts,
            real_start_ts=start_ts,
        )
        if len(job.dump()) + 64 > JOB_BYTES_MAX:
            raise BadDeclaration(f"the job of {job.query[:60]}… is larger than etcd accepts")
        ddl = DdlFields(job.id, job.query.encode(), int(job.schema_state))
        use = await self.context.lease.enter()
        try:
            pump = await self.context.client.write_prewrite(start_ts, _meta_key(job), None, writer=use.id, ddl=ddl)
        except BaseException:
            self.context.client.when_ended(start_ts, use.end)
            raise
        crash_point("sdk.ddl_after_prewrite")
        return job, lock, use, ddl, pump

    async def _publish_and_commit(self, job: Job, lock: Compare, use: Held, ddl: DdlFields, pump: str) -> Job:
        try:
            commit_ts = await self.context.commit_ts(job.start_ts)
            job = replace(job, finished_ts=commit_ts)
            # After this call only etcd's answer decides. Without an answer, the pumps settle the statement by its job.
            if not await self._publish(job, [lock, use.condition]):
                await self.context.taken_back(job.start_ts)
                raise DdlLockLost(
                    f"the DDL lock, or this writer's lease, was lost before job {job.id} was published: {job.query}"
                )
            crash_point("sdk.ddl_after_publish")
            delivery = begin(self.context.client.commit(job.start_ts, commit_ts, ddl))
            await self.context.delivered(delivery, start_ts=job.start_ts, commit_ts=commit_ts, pump=pump)
            self.context.catalog.apply(job)
            log.info("DDL done", job=job.id, version=job.schema_version, commit_ts=commit_ts, query=job.query)
            return job
        finally:
            self.context.client.when_ended(job.start_ts, use.end)

    async def abandon(self) -> None:
        """Stop statements that are being published. After the writer's lease, the pumps settle them by their jobs."""
        await cancel(*self._rests)

    async def _publish(self, job: Job, held: list[Compare]) -> bool:
        key, text = key_of_version(job.schema_version), job.dump()
        # A writer whose lease has ended must not publish: the pumps may have rolled the statement back.
        conditions = [*held, Compare(key, mod_revision=0)]
        try:
            return await self.context.etcd.txn(conditions, [Put(key, text)]) is not None
        except EtcdError as error:
            log.warning(
                "no answer to publishing a DDL job; checking whether it is in etcd", job=job.id, error=str(error)
            )
        for _ in range(CONFIRM_TRIES):
            try:
                # Repeating the transaction is safe: it succeeds at most once, and the key's value shows whose job it
                # is.
                if await self.context.etcd.txn(conditions, [Put(key, text)]) is not None:
                    return True
                there = await self.context.etcd.get(key)
                return there is not None and there.value == text
            except EtcdError:
                await asyncio.sleep(CONFIRM_PAUSE_S)
        raise DdlUndecided(
            f"etcd did not answer whether job {job.id} (version {job.schema_version}) is published; its prewrite "
            f"{job.start_ts} is pending: the pumps commit it at {job.finished_ts} if the job exists, else roll it "
            "back, within seconds, because the lease of this writer is revoked"
        )


def _meta_key(job: Job) -> bytes:
    """Return TiDB's meta key of what the job changes: the list of databases, or the tables of one database."""
    if job.type in (ActionType.CREATE_SCHEMA, ActionType.DROP_SCHEMA):
        return meta_hash_key(b"DBs", f"DB:{job.schema_id}".encode())
    return meta_hash_key(f"DB:{job.schema_id}".encode(), f"Table:{job.table_id}".encode())
