"""How far a start has read: what is logged, when, and that it ends when it is asked to."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from pump.errors import Stopping
from pump.log.value_log import (
    CHECK_BYTES,
    CHECK_RECORDS,
    CHECKING,
    LOG_INTERVAL_S,
    READING,
    Reading,
    ReadingProgress,
)
from pump.status import starting_document, starting_page, starting_text
from pump.store.store import Store
from tests.unit.pump.build import HeldReading, SetClock, binlogs_of, commit, opened, prewrite, write


class Steps(ReadingProgress):
    """Remembers every look."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Reading] = []

    def reached(self, records: int, done_bytes: int, fid: int) -> None:
        super().reached(records, done_bytes, fid)
        assert self.now is not None
        self.seen.append(self.now)


def test_reading_progress_is_logged_once_per_interval(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    caplog.set_level("INFO")
    progress = ReadingProgress(clock=lambda: now_s)
    progress.begin(READING, 1000, 7)
    for number in range(4 * CHECK_RECORDS + 1):
        now_s += LOG_INTERVAL_S / CHECK_RECORDS / 2  # so that every second look is late enough
        progress.reached(number, number, 7)
    told = [text for record in caplog.records if READING in (text := record.getMessage())]
    assert len(told) == 2, told
    assert progress.now == Reading(READING, 4 * CHECK_RECORDS, 4 * CHECK_RECORDS, 1000, 7)
    assert progress.now.percent == 26


def test_reading_percent_is_0_when_there_is_nothing_to_read() -> None:
    assert Reading(CHECKING, 0, 0, 0, 0).percent == 0


def test_starting_pages_show_step_percent_and_file() -> None:
    assert starting_text(None) == "the pump is starting"
    assert starting_document("p1", None)["recovery"] is None
    reading = Reading(CHECKING, 128, 5_000, 10_000, 3)
    assert starting_text(reading) == "the pump is starting: checking the newest value log file, 50 %"
    assert starting_document("p1", reading)["recovery"] == {
        "step": CHECKING, "percent": 50, "records": 128, "bytes": 5_000, "ofBytes": 10_000, "fid": 3,
    }  # fmt: skip
    page = starting_page("p<1>", reading)
    assert "p&lt;1&gt;" in page and "50 %" in page and "file 000003" in page and "4.88 KiB" in page


async def filled(directory: Path, transactions: int = 400) -> None:
    """Several files and no index."""
    async with opened(directory, SetClock(100_000), file_bytes_max=10_000) as store:
        for at in range(transactions):
            await write(store, prewrite(10 * at + 1), commit(10 * at + 1, 10 * at + 5))
    shutil.rmtree(directory / "kv")


async def test_store_open_reports_checking_and_reading_steps(tmp_path: Path) -> None:
    """The newest file is checked before anything is indexed, which takes as long for each of its records."""
    await filled(tmp_path)
    store = Store(tmp_path, SetClock(100_000))
    store.reading = steps = Steps()
    assert not store.opened
    await store.open()
    assert store.opened
    await store.close()
    assert {seen.step for seen in steps.seen} == {CHECKING, READING}
    reading = [seen for seen in steps.seen if seen.step == READING]
    assert [seen.bytes for seen in reading] == sorted(seen.bytes for seen in reading)
    assert reading[0].of_bytes == reading[-1].of_bytes == store_bytes(tmp_path)
    assert 90 <= reading[-1].percent <= 100 and reading[-1].records == 800 // CHECK_RECORDS * CHECK_RECORDS
    assert reading[-1].fid > 0


def store_bytes(directory: Path) -> int:
    """Records only: each closed file has a footer of 12 bytes."""
    files = [path for path in (directory / "value").iterdir() if path.stat().st_size]
    return sum(path.stat().st_size for path in files) - 12 * (len(files) - 1)


async def test_reading_progress_counts_from_start_position_within_log(tmp_path: Path) -> None:
    async with opened(tmp_path, SetClock(100_000)) as store:
        await write(store, *(prewrite(ts) for ts in range(1, 1000)))
        await store.writes.settle(1, 2000)
        head = store.log.tail.size
        await write(store, prewrite(3000))
    store = Store(tmp_path, SetClock(100_000))
    store.reading = steps = Steps()
    await store.open()
    await store.close()
    last = steps.seen[-1]
    assert last.step == READING and 0 < last.of_bytes < store_bytes(tmp_path) and head > 0
    assert max(seen.percent for seen in steps.seen) <= 100


async def test_store_open_that_is_cancelled_stops_reading_and_loses_nothing(tmp_path: Path) -> None:
    await filled(tmp_path)
    store = Store(tmp_path, SetClock(100_000))
    store.reading = held = HeldReading()
    opening = asyncio.create_task(store.open())
    assert await asyncio.to_thread(held.reading.wait, 120)
    assert not store.opened
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(opening, 60)
    async with opened(tmp_path, SetClock(100_000)) as store:  # which LevelDB refuses while the first one has it
        assert len(await binlogs_of(store)) == 400


def test_reading_progress_raises_reading_stopped_after_stop() -> None:
    progress = ReadingProgress()
    progress.begin(READING, 1000, 0)
    progress.stop()
    progress.reached(1, 1, 0)  # between two looks
    with pytest.raises(Stopping):
        progress.reached(CHECK_RECORDS, 1, 0)


def test_reading_progress_polls_by_bytes_for_few_large_records() -> None:
    """A log may hold fewer records than are between two looks, of gigabytes."""
    progress = ReadingProgress()
    progress.begin(READING, 10 * CHECK_BYTES, 3)
    progress.reached(1, CHECK_BYTES - 1, 3)
    assert progress.now == Reading(READING, 0, 0, 10 * CHECK_BYTES, 3)
    progress.reached(2, CHECK_BYTES, 3)
    assert progress.now == Reading(READING, 2, CHECK_BYTES, 10 * CHECK_BYTES, 3)
    progress.reached(3, 2 * CHECK_BYTES - 1, 3)
    assert progress.now.records == 2
    progress.stop()
    with pytest.raises(Stopping):
        progress.reached(4, 2 * CHECK_BYTES, 3)


async def test_store_open_of_few_large_binlogs_reports_progress_and_can_be_stopped(tmp_path: Path) -> None:
    row = bytes(CHECK_BYTES)
    async with opened(tmp_path, SetClock(100_000)) as store:
        for at in range(3):
            await write(store, prewrite(10 * at + 1, row=row), commit(10 * at + 1, 10 * at + 5))
    shutil.rmtree(tmp_path / "kv")
    store = Store(tmp_path, SetClock(100_000))
    store.reading = steps = Steps()
    await store.open()
    await store.close()
    for step in (CHECKING, READING):
        assert len({seen.bytes for seen in steps.seen if seen.step == step}) == 3, "one look for each large one"
    shutil.rmtree(tmp_path / "kv")
    store = Store(tmp_path, SetClock(100_000))
    store.reading.stop()
    with pytest.raises(Stopping):
        await store.open()
    assert not store.opened
