"""What services with the embedded SDK, which have no TiKV and no TiDB, keep in etcd: their leases and their DDL jobs.

/tidb-binlog/v1/writers/<32 hex digits>   a JSON description for operators; removed with the writer's lease
/tidb-binlog/v1/ddl/jobs/%020d            schema_version → Job JSON as TiDB writes it
/tidb-binlog/v1/ddl/schema_version        the newest allocated schema version, decimal
/tidb-binlog/v1/ddl/global_id             the newest allocated table, database or job id, decimal

A writer's id is random and never reused, and its key is created before the first prewrite that names it: without the
key, the writer's lease has ended permanently (correctness rule 24: writers hold leases).
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterable

from binlog.cluster.etcd import Compare, Etcd, EventKind, Lease, Put
from binlog.cluster.registry import ROOT
from binlog.envelope import WRITER_BYTES
from binlog.errors import EtcdError, RegistryConflict
from binlog.runtime.log import get_logger
from binlog.tidb.job import Job

WRITERS_PREFIX = f"{ROOT}/writers/"

_log = get_logger(__name__)


async def register_writer(etcd: Etcd, lease: Lease) -> tuple[bytes, Compare] | None:
    """Register a new writer. Return its id, and a condition that makes an etcd transaction succeed only while its lease
    lasts.

    None if the key exists. With random ids of this length, the key then is from an earlier attempt of this call whose
    answer was lost.
    """
    writer = secrets.token_bytes(WRITER_BYTES)
    key = f"{WRITERS_PREFIX}{writer.hex()}"
    value = json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "ttl_s": lease.ttl_s}).encode()
    revision = await etcd.txn([Compare(key, mod_revision=0)], [Put(key, value, lease.id)])
    return None if revision is None else (writer, Compare(key, mod_revision=revision))


async def living_writers(etcd: Etcd) -> frozenset[bytes]:
    """Return the ids of all writers with a valid lease. Keys that do not end in an id are logged and left out."""
    kvs, _ = await etcd.range(WRITERS_PREFIX)
    found: list[bytes] = []
    for kv in kvs:
        try:
            found.append(bytes.fromhex(kv.key.removeprefix(WRITERS_PREFIX)))
        except ValueError:
            _log.warning(
                "ignoring an etcd key under the prefix of writer leases: it does not end in a writer id", key=kv.key
            )
    return frozenset(found)


JOBS_PREFIX = f"{ROOT}/ddl/jobs/"
SCHEMA_VERSION_KEY = f"{ROOT}/ddl/schema_version"
GLOBAL_ID_KEY = f"{ROOT}/ddl/global_id"
JOB_BYTES_MAX = 1 << 20  # etcd refuses requests above 1.5 MiB
ATTEMPTS_MAX = 100


def key_of_version(schema_version: int) -> str:
    """Return the key of a job. The version has twenty digits, so that keys sort by version."""
    return f"{JOBS_PREFIX}{schema_version:020d}"


class PublishedJobs:
    """The published jobs and the counters in etcd. An object keeps no state."""

    def __init__(self, etcd: Etcd) -> None:
        self._etcd = etcd

    async def all(self) -> list[tuple[int, bytes]]:
        """Return every job as (schema version, JSON), in ascending order."""
        return (await self.listing())[0]

    async def listing(self) -> tuple[list[tuple[int, bytes]], int]:
        """Return every job as `all` does, and the revision to watch from."""
        kvs, revision = await self._etcd.range(JOBS_PREFIX)
        return [(_version(kv.key), kv.value) for kv in kvs], revision

    async def used(self) -> bool:
        """Return whether a service with the embedded SDK has ever published a job."""
        return await self._etcd.get(GLOBAL_ID_KEY) is not None or await self._etcd.get(SCHEMA_VERSION_KEY) is not None

    async def finished(self, job_ids: Iterable[int]) -> dict[int, int]:
        """Return the FinishedTS of each published job, by its id. Nothing is read unless one of `job_ids` is not 0."""
        if not any(job_ids):
            return {}
        jobs = [Job.from_json(text) for _, text in await self.all()]
        return {job.id: job.finished_ts for job in jobs}

    async def next_schema_version(self) -> int:
        """Allocate a unique schema version. Numbers may be skipped, but are never repeated."""
        return await self._next(SCHEMA_VERSION_KEY)

    async def next_id(self) -> int:
        """Allocate an id of a table, a database or a job. They share one counter, as in TiDB."""
        return await self._next(GLOBAL_ID_KEY)

    async def watch(self, revision: int) -> AsyncIterator[list[tuple[int, bytes]]]:
        """Yield the jobs published after `revision`, as they arrive. Raises WatchBroken as `Etcd.watch` does."""
        async for events in self._etcd.watch(JOBS_PREFIX, revision=revision):
            jobs = [(_version(e.kv.key), e.kv.value) for e in events if e.kind is EventKind.PUT]
            if jobs:
                yield jobs

    async def _next(self, key: str) -> int:
        for _ in range(ATTEMPTS_MAX):
            kv = await self._etcd.get(key)
            number = 1 + (_number(key, kv.value) if kv is not None else 0)
            mod_revision = kv.mod_revision if kv is not None else 0
            if await self._etcd.put_if(key, str(number).encode(), mod_revision=mod_revision) is not None:
                return number
        raise RegistryConflict(f"key {key} in etcd: {ATTEMPTS_MAX} updates in a row lost against other writers")


def _number(key: str, value: bytes) -> int:
    if not value.isdigit():
        raise EtcdError(f"key {key} in etcd holds {value!r}, which is not a number")
    return int(value)


def _version(key: str) -> int:
    return _number(key, key.removeprefix(JOBS_PREFIX).encode())
