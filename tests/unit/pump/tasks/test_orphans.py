"""Prewrites whose writer is gone, where there is a TiKV to ask."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from binlog.cluster.registry import NodeStatus, Registry, State
from binlog.cluster.tikv import StoreUnavailable, TiKV
from binlog.cluster.tso import compose

from pump.store.store import Store
from pump.tasks.orphans import Orphans, Upstream
from tests.support.memory_etcd import MemoryEtcd
from tests.support.servers import free_port
from tests.unit.pump.build import SetClock, binlogs_of, commit, merged, opened, prewrite, write
from tests.unit.pump.tikv import StubTiKV

START, COMMIT = compose(1_000), compose(1_001)
PUT, ROLLED_BACK = 0, 3


@pytest_asyncio.fixture
async def tikv() -> AsyncIterator[StubTiKV]:
    stub = await StubTiKV.start()
    yield stub
    await stub.close()


def looking(
    store: Store, tikv: StubTiKV, *, trace_wait_s: float = 60, services: bool = False, etcd: MemoryEtcd | None = None
) -> Orphans:
    async def used() -> bool:
        return services

    upstream = Upstream(TiKV([tikv.addr]), SetClock(COMMIT), used)
    registry = Registry(etcd or MemoryEtcd())
    return Orphans(
        store, registry, None, node_id="p", cluster_id=1, age_s=0, upstream=upstream, trace_wait_s=trace_wait_s
    )


@pytest.mark.parametrize(
    ("writes", "locked", "alive", "given_up", "left"),
    [
        ([(PUT, START, COMMIT)], 0, False, False, 0),
        ([(1, START, COMMIT), (PUT, 5, 6)], 0, False, False, 0),
        ([(ROLLED_BACK, START, START)], 0, False, False, 0),
        ([(PUT, START + 1, COMMIT)], 0, False, False, 1),
        ([], START, True, True, 1),
        ([], START, False, False, 0),
        ([], START + 1, False, False, 1),
        ([], 0, False, False, 1),
        ([], 0, False, True, 0),
    ],
    ids=["committed", "deleted", "rolled back", "another's commit", "alive", "outlived lock", "another's lock",
         "no trace", "no trace for a minute"],
)  # fmt: skip
async def test_orphaned_prewrite_is_settled_by_tikv_state(
    tmp_path: Path,
    tikv: StubTiKV,
    writes: list[tuple[int, int, int]],
    locked: int,
    alive: bool,
    given_up: bool,
    left: int,
) -> None:
    tikv.writes, tikv.locked_ts, tikv.alive = writes, locked, alive
    async with opened(tmp_path) as store:
        await write(store, prewrite(START, key=b"t\x80key"))
        assert await looking(store, tikv, trace_wait_s=-1 if given_up else 60).poll() == left
        committed = writes[0][1:] == (START, COMMIT) if writes else False
        assert store.reads.outcome(START) == (COMMIT if committed and not left else 0)
        if tikv.asked_status:
            assert tikv.asked_status[0].rollback_if_not_exist == given_up
    assert tikv.keys[0].startswith(b"t\x80key\x00\x00\x00")  # PD keeps keys in their memcomparable form


@pytest.mark.parametrize("collect_at", ["", "MvccGetByKey", "KvCheckTxnStatus"])
@pytest.mark.parametrize(
    ("writes", "locked"),
    [([], 0), ([(ROLLED_BACK, START, START)], 0), ([], START)],
    ids=["no trace", "a rollback, perhaps of one that asked too late", "outlived lock"],
)
async def test_orphaned_prewrite_below_gc_safepoint_is_never_rolled_back(
    tmp_path: Path, tikv: StubTiKV, writes: list[tuple[int, int, int]], locked: int, collect_at: str
) -> None:
    """The pump was down for longer than TiKV keeps versions, or the safepoint passes while it asks: the commit may have
    been there. A safepoint read before TiKV's answer would be too old."""
    tikv.writes, tikv.locked_ts, tikv.collect_at, tikv.collected_ts = writes, locked, collect_at, START
    tikv.safepoint_ts = START - 1 if collect_at else START
    async with opened(tmp_path) as store:
        await write(store, prewrite(START))
        orphans = looking(store, tikv, trace_wait_s=-1)
        reached = collect_at != "KvCheckTxnStatus" or locked or not writes
        assert await orphans.poll() == (1 if reached else 0)
        if not reached:
            return  # the rollback was there before the safepoint moved
        assert [(entry.start_ts, entry.safepoint_ts) for entry in store.pending.below_safepoint()] == [(START, START)]
        if not locked and collect_at != "KvCheckTxnStatus":
            assert not tikv.asked_status, "asking would leave a rollback for the next one to believe"
        tikv.collect_at, tikv.writes = "", [(PUT, START, COMMIT)]
        asked = len(tikv.keys)
        assert await orphans.poll() == 1
        assert len(tikv.keys) == asked, "what TiKV has forgotten stays so, and others wait to be asked about"
        await store.writes.settle(START, COMMIT)
        assert not store.pending.below_safepoint()


async def test_orphaned_prewrite_above_safepoint_is_rolled_back_and_found_commit_is_taken(
    tmp_path: Path, tikv: StubTiKV
) -> None:
    """The newest version of a row is kept, however old: a commit that is found is one."""
    tikv.safepoint_ts = START - 1
    async with opened(tmp_path) as store:
        await write(store, prewrite(START))
        assert await looking(store, tikv, trace_wait_s=-1).poll() == 0
        assert store.reads.outcome(START) == 0
    tikv.safepoint_ts = COMMIT + 1
    tikv.writes = [(PUT, START + 2, COMMIT)]
    async with opened(tmp_path) as store:
        await write(store, prewrite(START + 2))
        assert await looking(store, tikv, trace_wait_s=-1).poll() == 0
        assert store.reads.outcome(START + 2) == COMMIT


async def test_orphaned_prewrite_stays_pending_if_pd_returns_no_safepoint(tmp_path: Path, tikv: StubTiKV) -> None:
    tikv.tells_safepoint = False
    tikv.writes = [(ROLLED_BACK, START, START)]
    async with opened(tmp_path) as store:
        await write(store, prewrite(START))
        assert await looking(store, tikv).poll() == 1
        assert not store.pending.below_safepoint()


async def test_orphaned_prewrite_without_trace_stays_pending_where_services_write(
    tmp_path: Path, tikv: StubTiKV
) -> None:
    async with opened(tmp_path) as store:
        await write(store, prewrite(START))
        assert await looking(store, tikv, trace_wait_s=-1, services=True).poll() == 1
        assert not tikv.asked_status


async def test_orphan_check_goes_on_if_another_pump_does_not_answer(tmp_path: Path, tikv: StubTiKV) -> None:
    tikv.writes = [(PUT, START, COMMIT)]
    etcd = MemoryEtcd()
    await Registry(etcd).create("pumps", NodeStatus("other", f"127.0.0.1:{free_port()}", State.PAUSED))
    async with opened(tmp_path) as store:
        await write(store, prewrite(START))
        assert await looking(store, tikv, etcd=etcd).poll() == 0
        assert store.reads.outcome(START) == COMMIT


async def test_orphaned_prewrite_stays_pending_if_tikv_does_not_answer(tmp_path: Path, tikv: StubTiKV) -> None:
    client = TiKV([tikv.addr])
    tikv.region_error = "epoch not match"
    with pytest.raises(StoreUnavailable, match="epoch not match"):
        await client.outcome(b"k", START, now_ts=COMMIT, give_up=True)
    async with opened(tmp_path) as store:
        await write(store, prewrite(START))
        assert await looking(store, tikv).poll() == 1
    tikv.region_error, tikv.leader = "", False
    with pytest.raises(StoreUnavailable, match="no leader"):
        await client.outcome(b"k", START, now_ts=COMMIT, give_up=False)


async def test_late_commit_of_settled_orphan_with_same_ts_succeeds(tmp_path: Path, tikv: StubTiKV) -> None:
    tikv.writes = [(PUT, START, COMMIT)]
    clock = SetClock(START - 10)
    async with opened(tmp_path, clock=clock) as store:
        await write(store, prewrite(START))
        assert await looking(store, tikv).poll() == 0
        await write(store, commit(START, COMMIT))
        clock.ts = COMMIT + 10
        await store.resolver.refresh()
        assert await binlogs_of(store) == [merged(START, COMMIT)]
