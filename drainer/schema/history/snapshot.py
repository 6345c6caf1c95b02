"""The schema as TiKV's meta data had it at one ts, so that only the DDL jobs after it need to be read.

TiDB keeps the descriptions of databases and tables in hashes, and a schema version, under keys that begin with `m`; the
jobs that are running in a table of its own (TiDB before 6.2: in lists). docs/architecture.md says why they are read at
PD's GC safepoint, and which jobs' effects are in them: TiDB stores the `Diff` of a version with the effect in one
transaction.

A job that was running at the snapshot may have taken effect in part. That is of no importance if it succeeded well
before the position, because the job's own TableInfo then replaces the snapshot's, or if it had not begun. Of an ADD
INDEX, which may run for hours, what is not public is left out. Otherwise the snapshot cannot be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from binlog.cluster import tso
from binlog.cluster.pd import ask_first, gc_safepoint
from binlog.cluster.tikv import TiKVScan
from binlog.errors import BinlogError, DecodeError
from binlog.runtime.security import Security
from binlog.tidb import key
from binlog.tidb.job import ActionType, Job, JobState
from binlog.tidb.row import decode_typed_row
from binlog.tidb.table import DBInfo, TableInfo

from drainer.schema.catalog import MYSQL_SCHEMA, Catalog
from drainer.schema.history.base import JobHistory

# A TiDB writes rows with an older schema for at most its schema lease (45 s); ids and start_ts of jobs that are queued
# at the same time may be in another order.
SETTLED_MS = 60_000
_NOT_BEGUN = frozenset({JobState.NONE, JobState.QUEUEING})
_ADDS_INDEX = frozenset({ActionType.ADD_INDEX, ActionType.ADD_PRIMARY_KEY})
_JOB_TABLE = "tidb_ddl_job"
_JOB_LISTS = (b"DDLJobList", b"DDLJobAddIdxList")


class SnapshotUnusable(BinlogError):
    """The schema cannot be read from TiKV, or not used at a position: the DDL history is read instead."""


@dataclass(frozen=True, slots=True)
class SchemaSnapshot:
    """`version`: the schema version at `ts`; `tables`: (schema id, table); `running`: the jobs that had not ended."""

    ts: int
    version: int
    databases: tuple[DBInfo, ...]
    tables: tuple[tuple[int, TableInfo], ...]
    running: tuple[Job, ...] = ()
    settled_ms: int = SETTLED_MS

    def has(self, job: Job) -> bool:
        """Whether the job's effect is in the snapshot."""
        return job.took_effect and job.schema_version <= self.version

    def is_after(self, ts: int) -> bool:
        """Whether the snapshot is clearly later than `ts`."""
        return tso.physical_ms(ts) + self.settled_ms < tso.physical_ms(self.ts)

    def catalog(self) -> Catalog:
        """The catalog at `ts`."""
        made = Catalog()
        made.schemas.update((database.id, database) for database in self.databases)
        for schema_id, info in self.tables:
            made.put(schema_id, made.schemas[schema_id].name, self.version, info)
        return made

    def catalog_for(self, position_ts: int, history: JobHistory) -> Catalog:
        """The catalog before the first job of `history`, the jobs after the snapshot. Raises SnapshotUnusable where it
        does not serve for a schema at `position_ts`."""
        settled = position_ts - tso.compose(self.settled_ms)
        if self.ts > settled:
            raise SnapshotUnusable(f"TiKV no longer has the schema at {position_ts}: its GC has passed it")
        if any(job.type == ActionType.RECOVER_SCHEMA for job in history):
            raise SnapshotUnusable("a FLASHBACK DATABASE after it may have recovered tables dropped before it")
        unfinished = set()
        for job in self.running:
            ended = history.get(job.id)
            succeeded = ended is not None and ended.took_effect and 0 < ended.finished_ts <= settled
            if job.state in _NOT_BEGUN or succeeded:
                continue
            if job.type not in _ADDS_INDEX or job.state != JobState.RUNNING:
                raise SnapshotUnusable(f"DDL job {job.id} ({job.type.name}) had begun, and not ended long before")
            unfinished.add(job.table_id)
        tables = tuple((i, _public(info) if info.id in unfinished else info) for i, info in self.tables)
        return replace(self, tables=tables).catalog()


def _public(info: TableInfo) -> TableInfo:
    """The table without the index, and its hidden columns, that are being added."""
    return replace(info, columns=info.public_columns, indexes=tuple(index for index in info.indexes if index.is_public))


async def read_snapshot(pd_urls: Sequence[str], security: Security | None = None) -> SchemaSnapshot:
    """Read the schema at PD's GC safepoint. Raises SnapshotUnusable."""
    try:
        leader = await ask_first(pd_urls, security)
        safepoint_ts = await gc_safepoint(leader, security)
        if not safepoint_ts:
            raise SnapshotUnusable("PD has no GC safepoint yet")
        scan = TiKVScan(pd_urls, security, safepoint_ts)
        try:
            found = await _read(scan, safepoint_ts)
        finally:
            await scan.close()
        if await gc_safepoint(leader, security) != safepoint_ts:
            raise SnapshotUnusable("TiKV's GC began while the schema was read")
    except SnapshotUnusable:
        raise
    except BinlogError as error:
        raise SnapshotUnusable(str(error)) from error
    return found


async def _read(scan: TiKVScan, ts: int) -> SchemaSnapshot:
    version = await scan.scan(key.meta_prefix(b"SchemaVersionKey", key.META_STRING))
    if not version or not version[0][1].isdigit():
        raise DecodeError("schema version", offset=0, detail="TiKV has none, or not a number")
    number = int(version[0][1])
    if not await scan.scan(key.meta_prefix(b"Diff:%d" % number, key.META_STRING)):
        number -= 1  # TiDB from 6.2 on counts it in a transaction before the job's own, which had not been committed
    pairs = await scan.scan(key.meta_prefix(b"DBs", key.META_HASH))
    databases = tuple(DBInfo.from_json(value) for _, value in pairs)
    tables = []
    for database in databases:
        name = f"DB:{database.id}".encode()
        for at, value in await scan.scan(key.meta_prefix(name, key.META_HASH)):
            if key.meta_hash_field(at, name).startswith(b"Table:"):
                tables.append((database.id, TableInfo.from_json(value)))
    system = {database.id for database in databases if database.name.lower() == MYSQL_SCHEMA}
    jobs = [info for schema_id, info in tables if schema_id in system and info.name.lower() == _JOB_TABLE]
    lists = [await scan.scan(key.meta_prefix(name, key.META_LIST)) for name in _JOB_LISTS]
    running = [Job.from_json(value) for listed in lists for _, value in listed]
    running += await _stored_jobs(scan, jobs[0]) if jobs else ()
    return SchemaSnapshot(ts, number, databases, tuple(tables), tuple(running))


async def _stored_jobs(scan: TiKVScan, table: TableInfo) -> list[Job]:
    """The jobs in TiDB's table of running jobs."""
    column = next((column for column in table.columns if column.name.lower() == "job_meta"), None)
    found = []
    for _, value in await scan.scan(key.table_prefix(table.id) + key.RECORD):
        document = decode_typed_row(table, value).get(column.id) if column is not None else None
        if not isinstance(document, bytes):
            raise DecodeError(f"table {table.name}", offset=0, detail="a row without job_meta")
        found.append(Job.from_json(document))
    return found
