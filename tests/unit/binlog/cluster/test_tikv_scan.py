"""Scans of TiKV's keys over regions, locks and errors."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from binlog.cluster.tikv import StoreUnavailable, TiKVScan
from binlog.tidb.key import META_HASH, meta_hash_key, meta_prefix

from tests.support.stub_tikv import ScannedTiKV

READ_TS = 500
HASH = b"DBs"
KEYS = [meta_hash_key(HASH, f"DB:{n}".encode()) for n in range(100, 120)]


@pytest.fixture
async def tikv() -> AsyncIterator[ScannedTiKV]:
    stub = await ScannedTiKV.start()
    stub.data = {key: key[-4:] for key in KEYS}
    stub.data |= {meta_hash_key(name, b"DB:1"): b"other" for name in (b"DBr", b"DBt")}
    yield stub
    await stub.close()


async def scanned(tikv: ScannedTiKV, *, page_keys: int = 7, retry_for_s: float = 10.0) -> list[bytes]:
    scan = TiKVScan([tikv.addr], None, READ_TS, page_keys=page_keys, retry_for_s=retry_for_s)
    try:
        return [key for key, _ in await scan.scan(meta_prefix(HASH, META_HASH))]
    finally:
        await scan.close()


@pytest.mark.parametrize("splits", [[], [KEYS[5]], [b"a", KEYS[0], KEYS[7], KEYS[8] + b"\0", KEYS[19], b"z"]])
@pytest.mark.parametrize("page_keys", [1, 7, 20, 1000])
async def test_scan_returns_every_key_of_the_prefix_once(
    tikv: ScannedTiKV, splits: list[bytes], page_keys: int
) -> None:
    tikv.splits = splits
    assert await scanned(tikv, page_keys=page_keys) == KEYS
    assert {ts for ts, _ in tikv.scanned} == {READ_TS}


@pytest.mark.parametrize("refusal", ["region", "split", "lock", "pair", "gone"])
async def test_refused_scan_looks_up_the_region_and_goes_on_where_it_was(tikv: ScannedTiKV, refusal: str) -> None:
    tikv.splits_later = [KEYS[9]]
    tikv.refusals = ["", refusal, refusal]
    assert await scanned(tikv) == KEYS
    assert tikv.located >= 2
    assert [key for _, key in tikv.scanned].count(KEYS[0]) <= 1


@pytest.mark.parametrize(
    ("refusal", "text"),
    [("region", "epoch not match"), ("lock", "locked by the transaction of start_ts 77"), ("gone", "is restarting")],
)
async def test_scan_gives_up_at_the_deadline_with_the_reason(tikv: ScannedTiKV, refusal: str, text: str) -> None:
    tikv.refusals = [refusal] * 100
    with pytest.raises(StoreUnavailable, match=text):
        await scanned(tikv, retry_for_s=0.2)
