"""Data-dirs of the Go pump: they open, serve what the recording says, and stay readable for the original (P-ST-*)."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import plyvel
import pytest
from binlog.envelope import scan

from pump.index import keys
from pump.log.record import Pointer
from tests.support.capture import GOLDEN, CaptureSet
from tests.unit.pump.build import SetClock, binlogs_of, commit, merged, opened, prewrite

TYPES = CaptureSet(GOLDEN / "types")
FAR = SetClock(1 << 60)


@pytest.fixture(params=["pump_data", "pump_data_reopened"])
def data_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN / "types" / f"{request.param}.tar.gz") as archive:
        archive.extractall(tmp_path)  # our own archive; `filter` is not in Python 3.11.2
    return tmp_path / str(request.param)


async def test_data_dir_of_go_pump_serves_recorded_binlogs_at_every_opening(data_dir: Path) -> None:
    """Byte for byte, in order, at the first opening and at the second."""
    first_ts = scan(TYPES.binlogs[0]).commit_ts - 1
    last_ts = scan(TYPES.binlogs[-1]).commit_ts
    wanted = [payload for payload in TYPES.binlogs if not scan(payload).is_fake]
    assert len(wanted) > 100
    for _ in range(2):
        async with opened(data_dir, FAR) as store:
            assert store.damage == []
            assert len(store.pending) == 0
            assert await binlogs_of(store, first_ts, last_ts) == wanted
            with_fakes = await binlogs_of(store, first_ts, last_ts, fakes=True)
            assert [p for p in with_fakes if p in set(TYPES.binlogs)] == TYPES.binlogs


async def test_lost_index_of_go_pump_data_dir_is_rebuilt_from_log(data_dir: Path) -> None:
    shutil.rmtree(data_dir / "kv")
    async with opened(data_dir, FAR) as store:
        wanted = [payload for payload in TYPES.binlogs if not scan(payload).is_fake]
        served = set(await binlogs_of(store))
        assert all(payload in served for payload in wanted)


async def test_keys_and_pointers_added_to_go_pump_data_dir_have_original_form(data_dir: Path) -> None:
    """`ts:` keys and pointers of the original's shape; head and handle name records of the log."""
    base = 1 << 59
    async with opened(data_dir, SetClock(base - 10)) as store:
        assert await store.writes.write([prewrite(base), commit(base, base + 1)]) == [None, None]
        store.resolver.advance(base + 5)
        assert (await binlogs_of(store))[-1] == merged(base, base + 1)
        assert store.log.tail.fid >= 1, "a file with a footer is never written again"
    with plyvel.DB(str(data_dir / "kv")) as db:
        head = Pointer.decode(db.get(keys.HEAD))
        assert Pointer.decode(db.get(keys.ts_key(base + 1))) == head
        assert len(db.get(keys.MAX_COMMIT)) == 8
        for key, value in db.iterator(prefix=keys.TS):
            assert len(key) == 11
            assert len(value) == 12


async def test_recorded_writes_make_same_log_records_and_binlogs(tmp_path: Path) -> None:
    """What TiDB sent, through our writer: the same records, hence the same bytes, as far as the set goes."""
    async with opened(tmp_path, SetClock(1), ts_ahead_max_s=0) as store:
        assert set(await store.writes.write(TYPES.writes)) == {None}
        found = [found.payload for _, found in store.log.scan(Pointer(0, 0))]
        assert found == TYPES.writes
        store.resolver.advance(1 << 60)
        wanted = [payload for payload in TYPES.binlogs if not scan(payload).is_fake]
        first_ts = scan(wanted[0]).commit_ts - 1
        assert await binlogs_of(store, first_ts) == wanted
        assert len(store.pending) == 0
