"""Running one DDL: P, then its commit_ts, then the published job, then C, in this order and no other.

P first, so that from before the job is visible until its commit is stored the pump's resolved ts stays below it.
The commit_ts before the job, so that whoever sees the job and writes rows in its schema commits later than the DDL.
The job before C, so that no drainer meets a DDL binlog whose job nobody has.

A death between P and the job leaves a pending prewrite and no job: settle it by rollback. A death between the job
and C leaves a pending prewrite whose commit_ts is the job's FinishedTS: settle it by committing at that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from binlog.cluster.kv import Compare, Etcd, Put
from binlog.cluster.published_jobs import JOB_BYTES_MAX, PublishedJobs, key_of_version
from binlog.cluster.timestamp import TimestampSource
from binlog.errors import EtcdError
from binlog.runtime.crashpoint import crash_point
from binlog.runtime.log import get_logger
from binlog.tidb.job import ActionType, Job
from binlog.tidb.key import meta_hash_key
from binlog.tidb.table import DBInfo, TableInfo
from binlog.tidb.types import SchemaState

from pumpclient.client import PumpsClient
from pumpclient.payload import DdlFields
from pumpclient.sdk.catalog import Catalog
from pumpclient.sdk.delivered import begin, delivered, taken_back
from pumpclient.sdk.errors import BadDeclaration, DdlLockLost, DdlUndecided
from pumpclient.sdk.lease import Use, Writer, WriterLease
from pumpclient.sdk.lock import DdlLock, ddl_lock
from pumpclient.sdk.underway import UnderWay

log = get_logger(__name__)

CONFIRM_TRIES = 60
CONFIRM_PAUSE_S = 1.0
NO_STATE = frozenset(
    {ActionType.DROP_SCHEMA, ActionType.DROP_TABLE, ActionType.DROP_COLUMN, ActionType.DROP_INDEX}
    | {ActionType.MULTI_SCHEMA_CHANGE}
)


@dataclass(frozen=True, slots=True)
class Statement:
    """One DDL, planned against the schema at the moment when it holds the lock."""

    type: ActionType
    query: str
    schema: str
    schema_id: int
    table_id: int = 0
    table_name: str = ""
    table: TableInfo | None = None
    database: DBInfo | None = None

    @property
    def schema_state(self) -> SchemaState:
        """0 for every drop and multi-schema change, else public (X-06)."""
        return SchemaState.NONE if self.type in NO_STATE else SchemaState.PUBLIC


@dataclass(slots=True)
class Planning:
    """What a plan may use: the current catalog, the statement's start_ts, and fresh ids."""

    catalog: Catalog
    start_ts: int
    next_id: Callable[[], Awaitable[int]]


Plan = Callable[[Planning], Awaitable[Statement]]


@dataclass(slots=True)
class DdlRunner:
    """Runs statements one after the other over all services that share the etcd."""

    etcd: Etcd
    jobs: PublishedJobs
    client: PumpsClient
    timestamps: TimestampSource
    catalog: Catalog
    refresh: Callable[[], Awaitable[None]]
    owner: str
    lease: WriterLease
    under_way: UnderWay
    _own: asyncio.Lock = field(default_factory=asyncio.Lock)
    _rests: set[asyncio.Future[Job]] = field(default_factory=set)

    async def run(self, plan: Plan) -> Job:
        """The job as published. Whatever `plan` raises; DdlLockTimeout, DdlLockLost, DdlUndecided, pump errors."""
        async with contextlib.AsyncExitStack() as held:
            with self.under_way.entered("a DDL statement"):
                await held.enter_async_context(self._own)
                lock = await held.enter_async_context(ddl_lock(self.etcd, self.owner))
                rest = asyncio.ensure_future(self._publish_and_commit(*await self._prewrite(plan, lock)))
            # From here on a cancelled caller changes nothing: the statement is carried through, or rolled back.
            self._rests.add(rest)
            rest.add_done_callback(self._rests.discard)
            try:
                with self.under_way.deciding():
                    return await asyncio.shield(rest)
            except asyncio.CancelledError:
                if not rest.cancelled():
                    raise
                raise DdlUndecided("the service was closed while a DDL statement was being published") from None

    async def _prewrite(self, plan: Plan, lock: DdlLock) -> tuple[Job, DdlLock, Use, DdlFields, str]:
        await self.refresh()
        start_ts = await self.timestamps.get()
        statement = await plan(Planning(self.catalog, start_ts, self._next_id))
        job_id = await self._next_id()
        version = await self.jobs.next_schema_version()
        job = _job(statement, job_id=job_id, version=version, start_ts=start_ts)
        if len(job.dump()) + 64 > JOB_BYTES_MAX:
            raise BadDeclaration(f"the job of {statement.query[:60]}… is larger than etcd takes")
        ddl = DdlFields(job_id, statement.query.encode(), int(statement.schema_state))
        use = await self.lease.enter()
        try:
            pump = await self.client.write_ddl_prewrite(start_ts, _meta_key(statement), ddl, writer=use.writer.id)
        except BaseException:
            self.client.when_ended(start_ts, use.end)
            raise
        crash_point("sdk.ddl_after_prewrite")
        return job, lock, use, ddl, pump

    async def _publish_and_commit(self, job: Job, lock: DdlLock, use: Use, ddl: DdlFields, pump: str) -> Job:
        try:
            return await self._carry_through(job, lock, use.writer, ddl, pump)
        finally:
            self.client.when_ended(job.start_ts, use.end)

    async def _carry_through(self, job: Job, lock: DdlLock, writer: Writer, ddl: DdlFields, pump: str) -> Job:
        try:
            commit_ts = await self.timestamps.get()
        except BaseException:
            await taken_back(self.client.rollback(job.start_ts), self.client.limits)
            raise
        job = replace(job, finished_ts=commit_ts)
        # Once that is begun nothing but its answer ends the statement: without one the pumps decide, by the job.
        if not await self._publish(job, lock, writer):
            await taken_back(self.client.rollback(job.start_ts), self.client.limits)
            raise DdlLockLost(
                f"the DDL lock, or this writer's lease, was lost before job {job.id} was published: {job.query}"
            )
        crash_point("sdk.ddl_after_publish")
        delivery = begin(self.client.commit(job.start_ts, commit_ts, ddl))
        await delivered(delivery, self.client.limits, start_ts=job.start_ts, commit_ts=commit_ts, pump=pump)
        self.catalog.apply(job)
        log.info("DDL done", job=job.id, version=job.schema_version, commit_ts=commit_ts, query=job.query)
        return job

    async def abandon(self) -> None:
        """Stop statements that are being published; the pumps decide, by the job, when the writer's lease has ended."""
        rests = list(self._rests)
        for rest in rests:
            rest.cancel()
        await asyncio.gather(*rests, return_exceptions=True)

    async def _publish(self, job: Job, lock: DdlLock, writer: Writer) -> bool:
        key, text = key_of_version(job.schema_version), job.dump()
        # A writer whose lease has ended publishes nothing, whatever it believes: the pumps may have rolled it back.
        conditions = [lock.condition, writer.condition, Compare(key, mod_revision=0)]
        try:
            return await self.etcd.txn(conditions, [Put(key, text)]) is not None
        except EtcdError as error:
            log.warning(
                "no answer to publishing a DDL job; checking whether it is in etcd", job=job.id, error=str(error)
            )
        for _ in range(CONFIRM_TRIES):
            try:
                # Repeating the transaction is safe: it can only succeed once, and its key says by whom.
                if await self.etcd.txn(conditions, [Put(key, text)]) is not None:
                    return True
                there = await self.etcd.get(key)
                return there is not None and there.value == text
            except EtcdError:
                await asyncio.sleep(CONFIRM_PAUSE_S)
        raise DdlUndecided(
            f"etcd did not say whether job {job.id} (version {job.schema_version}) is published; its prewrite "
            f"{job.start_ts} is pending: the pumps commit it at {job.finished_ts} if the job is there, else roll it "
            "back, within seconds: the lease of this writer is ended"
        )

    async def _next_id(self) -> int:
        return (await self.jobs.next_ids(1))[0]


def _job(statement: Statement, *, job_id: int, version: int, start_ts: int) -> Job:
    return Job(
        id=job_id,
        type=statement.type,
        schema_state=statement.schema_state,
        schema_id=statement.schema_id,
        table_id=statement.table_id,
        schema_name=statement.schema,
        table_name=statement.table_name,
        query=statement.query,
        schema_version=version,
        start_ts=start_ts,
        real_start_ts=start_ts,
        table_info=statement.table,
        db_info=statement.database,
    )


def _meta_key(statement: Statement) -> bytes:
    """TiDB's own meta key of what the statement changes: the databases, or the tables of one."""
    if statement.type in (ActionType.CREATE_SCHEMA, ActionType.DROP_SCHEMA):
        return meta_hash_key(b"DBs", f"DB:{statement.schema_id}".encode())
    return meta_hash_key(f"DB:{statement.schema_id}".encode(), f"Table:{statement.table_id}".encode())
