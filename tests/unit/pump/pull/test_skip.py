"""An operator's way on behind a binlog whose bytes are lost: it alone is skipped, loudly, and keeps its place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import structlog
from binlog.envelope import scan
from binlog.errors import PurgedPosition
from binlog.pb.pump_ext_pb2 import WatermarkReq, WatermarkResp
from prometheus_client import REGISTRY

from pump.errors import DamagedRecord, NoSuchBinlog, NotDamaged
from pump.pull import BinlogPart
from pump.store.store import Store
from tests.unit.pump.build import SetClock, binlogs_of, commit, merged, opened, prewrite, write
from tests.unit.pump.store.test_damage import FAR, damage, left_behind

LARGE = b"\x08\x01\x12\x64" + b"r" * 100


def counted() -> float:
    return REGISTRY.get_sample_value("binlog_pump_passed_over_binlogs_count_total") or 0.0


async def three(tmp_path: Path, *, job: int = 0) -> Path:
    """A closed store with commits at 20, 40 and 60; the prewrite of the second one is damaged."""
    async with opened(tmp_path / "a", SetClock(FAR)) as store:
        await write(store, prewrite(10), commit(10, 20), prewrite(30, job=job), commit(30, 40))
        await write(store, prewrite(50), commit(50, 60))
    damage(tmp_path / "a", prewrite(30, job=job))
    return tmp_path / "a"


async def test_damaged_binlog_is_skipped_by_command_and_keeps_its_commit_ts(tmp_path: Path) -> None:
    directory = await three(tmp_path)
    before = counted()
    for start in range(3):
        async with opened(directory, SetClock(FAR)) as store:
            store.resolver.ts = FAR
            plan = await store.reads.count(0, FAR)
            if not start:
                with pytest.raises(DamagedRecord, match=r"byte \d+: .*the binlog of commit_ts 40 needs it"):
                    await binlogs_of(store)
                shown = await store.reads.skip_binlog(40, dry_run=True)
                with pytest.raises(DamagedRecord):
                    await binlogs_of(store)
                with structlog.testing.capture_logs() as lines:
                    assert await store.reads.skip_binlog(40, dry_run=False) == shown
                assert [(line["log_level"], line["commit_ts"]) for line in lines] == [("error", 40)]
                assert (shown.start_ts, shown.ddl_job_id) == (30, 0)
                assert "byte" in shown.why
            served = await binlogs_of(store)
            assert (served[0], served[2]) == (merged(10, 20), merged(50, 60))
            empty = scan(served[1])
            assert (empty.start_ts, empty.commit_ts, empty.value_end - empty.value_at) == (30, 40, 0)
            assert plan.batch_count == (await store.reads.count(0, FAR)).batch_count == 3, (
                "what was planned of the range stays right"
            )
            assert (await store.reads.count(0, FAR)).batch_bytes == sum(map(len, served))
            assert store.reads.outcome(30) == 0, "no evidence for other pumps: they may have its rows"
            assert store.reads.outcome(10) == 20
    assert counted() == before + 1
    async with opened(directory, SetClock(FAR)) as store:
        assert (await store.reads.skip_binlog(40, dry_run=False)).why == "", "done already"


async def test_skipped_damaged_ddl_keeps_its_job_id(tmp_path: Path) -> None:
    async with opened(await three(tmp_path, job=7), SetClock(FAR)) as store:
        store.resolver.ts = FAR
        assert (await store.reads.skip_binlog(40, dry_run=False)).ddl_job_id == 7
        plan = await store.reads.plan(
            0, FAR, WatermarkReq(batch_bytes_max=1 << 20, stop_at_schema=True, schema_version=99)
        )
        assert (plan.stop, plan.stop_ts) == (WatermarkResp.DDL, 40), "a batch still ends before it"
        found = scan((await binlogs_of(store))[1])
        assert (found.ddl_job_id, found.commit_ts) == (7, 40)


async def test_skip_of_readable_unknown_or_purged_binlog_is_refused(tmp_path: Path) -> None:
    async with opened(await three(tmp_path), SetClock(FAR)) as store:
        store.resolver.ts = FAR
        for commit_ts in (20, 60):
            with pytest.raises(NotDamaged, match=f"commit_ts {commit_ts} is readable.*ignore-txn-commit-ts"):
                await store.reads.skip_binlog(commit_ts, dry_run=False)
        for ts in (30, 41, await store.writes.write_fake()):
            with pytest.raises(NoSuchBinlog, match=f"commit_ts {ts} "):
                await store.reads.skip_binlog(ts, dry_run=False)
        with pytest.raises(DamagedRecord):
            await binlogs_of(store)
        store.index.save_purged(50)
        with pytest.raises(PurgedPosition):
            await store.reads.skip_binlog(40, dry_run=False)


async def test_skip_works_for_commit_whose_prewrite_position_is_unknown(tmp_path: Path) -> None:
    """The entry that recovery made, with nothing but a place."""
    here = await left_behind(tmp_path, prewrite(10), commit(10, 20), after=(prewrite(30), commit(30, 40)))
    damage(here, prewrite(30))
    for _ in range(2):
        async with opened(here, SetClock(FAR)) as store:
            store.resolver.ts = FAR
            await store.reads.skip_binlog(40, dry_run=False)
            assert [scan(payload).commit_ts for payload in await binlogs_of(store)] == [20, 40]
    shutil.rmtree(here / "kv")
    async with opened(here, SetClock(FAR)) as store:
        store.resolver.ts = FAR
        with pytest.raises(DamagedRecord):  # an index that is made anew knows nothing of it
            await binlogs_of(store)


async def test_skip_works_if_prewrite_and_commit_are_both_damaged(tmp_path: Path) -> None:
    directory = await three(tmp_path)
    damage(directory, commit(30, 40))
    async with opened(directory, SetClock(FAR)) as store:
        store.resolver.ts = FAR
        await store.reads.skip_binlog(40, dry_run=False)
        assert [scan(payload).start_ts for payload in await binlogs_of(store)] == [10, 30, 50]


async def parts(store: Store) -> list[int]:
    found: list[int] = []
    async for chunk in store.reads.pull(0, FAR, bytes_max=1000, part_bytes_max=64):
        found += [chunk.commit_ts] if isinstance(chunk, BinlogPart) else [served.commit_ts for served in chunk]
    return list(dict.fromkeys(found))


async def test_skip_works_for_binlog_served_in_parts(tmp_path: Path) -> None:
    async with opened(tmp_path / "a", SetClock(FAR)) as store:
        await write(store, prewrite(10), commit(10, 20), prewrite(30, row=LARGE), commit(30, 40))
    damage(tmp_path / "a", prewrite(30, row=LARGE))
    async with opened(tmp_path / "a", SetClock(FAR)) as store:
        store.resolver.ts = FAR
        with pytest.raises(DamagedRecord, match="commit_ts 40 needs it"):
            await parts(store)
        await store.reads.skip_binlog(40, dry_run=False)
        assert await parts(store) == [20, 40]
