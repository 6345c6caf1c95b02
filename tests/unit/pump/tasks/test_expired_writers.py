"""Rule 24: prewrites whose writer's lease in etcd has ended are ended by the pump, and nothing else is."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest
from binlog.cluster.etcd import KV
from binlog.cluster.writers import WRITERS_PREFIX, key_of_version, living_writers, register_writer
from binlog.envelope import merge, scan, writer_of
from binlog.errors import EtcdError
from binlog.pb import pump_ext_pb2 as pb
from binlog.tidb.job import ActionType, Job

from pump.errors import RolledBack
from pump.rpc.extension_service import ExtService
from pump.rpc.methods import code_of
from pump.rpc.original_service import Gate
from pump.tasks.orphans import settle_expired
from tests.support.memory_etcd import MemoryEtcd
from tests.unit.pump.build import SetClock, binlogs_of, commit, opened, prewrite, refused, write

ABORTED = 10


async def living(etcd: MemoryEtcd) -> tuple[bytes, int]:
    """A registered writer's id, and its lease's."""
    lease = await etcd.lease(60)
    made = await register_writer(etcd, lease)
    assert made is not None
    return made[0], lease.id


async def test_prewrites_of_expired_writer_only_are_rolled_back(tmp_path: Path) -> None:
    etcd = MemoryEtcd()
    alive, _ = await living(etcd)
    dead, lease = await living(etcd)
    async with opened(tmp_path) as store:
        await write(store, prewrite(10, writer=alive), prewrite(20, writer=dead), prewrite(30))
        await write(store, prewrite(40, writer=dead))
        assert await settle_expired(store, etcd, age_s=0) == 0, "both live"
        etcd.expire(lease)
        assert await settle_expired(store, etcd, age_s=0) == 2
        assert [entry.start_ts for entry in store.pending.first(10)] == [10, 30]
        late = await refused(store, commit(20, 50))
        assert isinstance(late, RolledBack), "a writer that only slept is told so"
        assert code_of(late) == ABORTED
        assert isinstance(await refused(store, prewrite(40, writer=dead)), RolledBack), "a copy that comes late"
        await write(store, commit(10, 60))
        assert await settle_expired(store, etcd, age_s=0) == 0


async def test_writer_of_pending_prewrite_is_known_after_restart(tmp_path: Path) -> None:
    etcd = MemoryEtcd()
    alive, _ = await living(etcd)
    dead = secrets.token_bytes(16)
    async with opened(tmp_path) as store:
        await write(store, prewrite(10, writer=dead), prewrite(20, writer=alive), prewrite(30))
    async with opened(tmp_path) as store:
        assert {entry.start_ts: entry.writer for entry in store.pending.first(10)} == {10: dead, 20: alive, 30: b""}
        assert await settle_expired(store, etcd, age_s=0) == 1
        assert [entry.start_ts for entry in store.pending.first(10)] == [20, 30]
    async with opened(tmp_path) as store:
        assert [entry.start_ts for entry in store.pending.first(10)] == [20, 30]
        assert isinstance(await refused(store, commit(10, 50)), RolledBack)


async def test_no_prewrite_is_rolled_back_while_etcd_is_down(tmp_path: Path) -> None:
    etcd = MemoryEtcd()
    async with opened(tmp_path) as store:
        await write(store, prewrite(10, writer=secrets.token_bytes(16)))
        etcd.fail()
        with pytest.raises(EtcdError):
            await settle_expired(store, etcd, age_s=0)
        assert 10 in store.pending
        etcd.recover()
        assert await settle_expired(store, etcd, age_s=0) == 1
        assert 10 not in store.pending


class Meanwhile(MemoryEtcd):
    """Something happens after the writers were read and before the answer comes."""

    async def happens(self) -> None:
        """Set by the test."""

    async def range(self, prefix: str) -> tuple[list[KV], int]:
        answer = await super().range(prefix)
        if prefix == WRITERS_PREFIX:
            await self.happens()
        return answer


async def test_prewrite_of_writer_registered_during_check_is_kept(tmp_path: Path) -> None:
    etcd = Meanwhile()
    async with opened(tmp_path) as store:
        await write(store, prewrite(10, writer=secrets.token_bytes(16)))

        async def new_writer() -> None:
            writer, _ = await living(etcd)
            await write(store, prewrite(20, writer=writer))

        etcd.happens = new_writer  # type: ignore[method-assign]
        assert await settle_expired(store, etcd, age_s=0) == 1
        assert 10 not in store.pending
        assert 20 in store.pending


async def test_commit_during_expiry_check_wins_over_rollback(tmp_path: Path) -> None:
    etcd = Meanwhile()
    dead = secrets.token_bytes(16)
    async with opened(tmp_path) as store:
        await write(store, prewrite(10, writer=dead), prewrite(20, writer=dead))

        async def wakes() -> None:
            await write(store, commit(10, 30))

        etcd.happens = wakes  # type: ignore[method-assign]
        assert await settle_expired(store, etcd, age_s=0) == 1, "the other one"
        assert store.reads.outcome(10) == 30
        assert len(store.pending) == 0


async def test_commit_and_rollback_in_one_batch_have_one_outcome(tmp_path: Path) -> None:
    """Both are queued before the log's thread takes either: whichever is first refuses the other."""
    async with opened(tmp_path) as store:
        for number in range(20):
            start_ts, commit_ts = 100 + 10 * number, 105 + 10 * number
            await write(store, prewrite(start_ts, writer=secrets.token_bytes(16)))
            ends = [store.writes.write([commit(start_ts, commit_ts)]), store.writes.settle(start_ts, 0)]
            ends = ends if number % 2 else ends[::-1]
            results = await asyncio.gather(*ends, return_exceptions=True)
            errors = [e for r in results for e in (r if isinstance(r, list) else [r]) if isinstance(e, BaseException)]
            assert len(errors) == 1, results
            assert (store.reads.outcome(start_ts) == commit_ts) is not isinstance(errors[0], RolledBack)
            assert start_ts not in store.pending


@pytest.mark.parametrize("published", [True, False])
async def test_expired_ddl_prewrite_is_settled_by_published_job(tmp_path: Path, published: bool) -> None:
    etcd = MemoryEtcd()
    job = Job(
        id=7, type=ActionType.CREATE_TABLE, schema_state=5, schema_id=1, table_id=2, schema_name="s", table_name="t",
        query="CREATE TABLE t (a INT);", schema_version=3, start_ts=10, real_start_ts=10, finished_ts=15,
    )  # fmt: skip
    if published:
        await etcd.put(key_of_version(3), job.dump())
    async with opened(tmp_path, SetClock(1000)) as store:
        await write(store, prewrite(10, job=7, writer=secrets.token_bytes(16)))
        assert await settle_expired(store, etcd, age_s=0) == 1
        assert store.reads.outcome(10) == (15 if published else 0)
        assert len(store.pending) == 0
        await store.resolver.refresh()
        assert [scan(payload).ddl_job_id for payload in await binlogs_of(store)] == [7] * published
        late = await refused(store, commit(10, 15))
        assert (late is None) if published else isinstance(late, RolledBack)


async def test_pulled_binlog_does_not_contain_writer(tmp_path: Path) -> None:
    """Byte for byte what it is without one: drainers read the same binlog."""
    writer = secrets.token_bytes(16)
    clock = SetClock(1 << 60)
    start_ts, commit_ts = (1 << 60) - 20, (1 << 60) - 10
    async with opened(tmp_path, clock, ts_ahead_max_s=0) as store:
        stored = prewrite(start_ts, writer=writer)
        assert writer_of(stored, scan(stored)) == writer
        await write(store, stored, commit(start_ts, commit_ts))
        await store.resolver.refresh()
        expected = merge(prewrite(start_ts), commit(start_ts, commit_ts))
        assert await binlogs_of(store) == [expected]
        assert merge(stored, commit(start_ts, commit_ts)) == expected


async def test_living_writers_ignores_invalid_key() -> None:
    etcd = MemoryEtcd()
    writer, _ = await living(etcd)
    await etcd.put(f"{WRITERS_PREFIX}not-hex", b"")
    assert await living_writers(etcd) == {writer}


async def test_watermark_names_oldest_pending_prewrite(tmp_path: Path) -> None:
    writer = secrets.token_bytes(16)
    async with opened(tmp_path) as store:
        gate = Gate(1, lambda: "")
        gate.closed = ""
        service = ExtService(store, gate, node_id="p", state=lambda: "online")

        assert not (await service.watermark(pb.WatermarkReq())).HasField("oldest_pending")
        start_ts = (await service.watermark(pb.WatermarkReq())).resolved_ts + 1
        await write(store, prewrite(start_ts, job=9, writer=writer), prewrite(start_ts + 5))
        found = await service.watermark(pb.WatermarkReq())
        assert found.resolved_ts == start_ts - 1
        oldest = found.oldest_pending
        assert (oldest.start_ts, oldest.ddl_job_id, oldest.writer) == (start_ts, 9, writer)
