"""Jobs and counters in etcd."""

from __future__ import annotations

import asyncio

import pytest
from binlog.cluster.published_jobs import GLOBAL_ID_KEY, JOB_BYTES_MAX, PublishedJobs
from binlog.errors import EtcdError, RegistryConflict

from tests.support.memory_etcd import MemoryEtcd


async def test_jobs_come_in_version_order() -> None:
    jobs = PublishedJobs(MemoryEtcd())
    for version in (100, 9, 10):
        await jobs.publish(version, str(version).encode())
    assert await jobs.all() == [(9, b"9"), (10, b"10"), (100, b"100")]


async def test_published_job_can_be_repeated_but_not_changed() -> None:
    """A writer that does not know whether its publish arrived may repeat it; nobody may change it."""
    jobs = PublishedJobs(MemoryEtcd())
    revision = await jobs.publish(1, b"{}")
    assert await jobs.publish(1, b"{}") == revision
    with pytest.raises(RegistryConflict, match="already holds another job"):
        await jobs.publish(1, b"{ }")
    with pytest.raises(ValueError, match="over"):
        await jobs.publish(2, b"x" * (JOB_BYTES_MAX + 1))


async def test_counters_never_repeat_between_writers() -> None:
    etcd = MemoryEtcd()
    writers = [PublishedJobs(etcd) for _ in range(8)]
    ids = await asyncio.gather(*(w.next_ids(3) for w in writers for _ in range(5)))
    flat = [i for some in ids for i in some]
    assert sorted(flat) == list(range(1, 121))
    versions = await asyncio.gather(*(w.next_schema_version() for w in writers))
    assert sorted(versions) == list(range(1, 9))
    with pytest.raises(ValueError, match="at least one"):
        await writers[0].next_ids(0)


async def test_published_jobs_watch_returns_jobs_after_listing_revision() -> None:
    jobs = PublishedJobs(MemoryEtcd())
    await jobs.publish(1, b"a")
    _, revision = await jobs.listing()
    await jobs.publish(2, b"b")
    async for found in jobs.watch(revision):
        assert found == [(2, b"b")]
        break


async def test_invalid_id_counter_in_etcd_is_named() -> None:
    etcd = MemoryEtcd()
    await etcd.put(GLOBAL_ID_KEY, b"many")
    with pytest.raises(EtcdError, match="/ddl/global_id in etcd holds b'many'"):
        await PublishedJobs(etcd).next_ids(1)
