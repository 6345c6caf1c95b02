"""A small store, and what a start on a damaged copy of it recovers and says."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import structlog
from binlog.errors import BinlogError

from pump.index.leveldb import IndexOptions
from pump.store.group_commit import StoreOptions
from pump.store.store import Store
from tests.crash.journal import Journal, Served, Transaction
from tests.unit.pump.build import SetClock, copy_running

FAR = 1 << 40
STEPS = [[10, -11, 12], [20, -12, 13, 14], [15, -14, 16], [-10, 17, 18, -18]]  # start_ts, or minus: it ends
COMMIT_AFTER = 100
ENDED = sorted(COMMIT_AFTER - each for step in STEPS for each in step if each < 0)
FILE_BYTES_MAX = 300  # of the value log: some five records
OPTIONS = StoreOptions(
    file_bytes_max=FILE_BYTES_MAX, checkpoint_bytes=1 << 30, index=IndexOptions(write_buffer_bytes=64 << 10)
)


async def small_store(directory: Path) -> Journal:
    """`directory` as SIGKILL leaves it: files of the log before and behind the last checkpoint, prewrites in each that
    are pending, rolled back, committed in the same file and in a later one."""
    journal, running = Journal("small"), directory.with_name("running")
    running.mkdir()
    for number, part in enumerate((STEPS[:2], STEPS[2:])):
        store = Store(running, SetClock(1000 * (number + 1)), OPTIONS)
        await store.open()
        await store.serve()
        for batch in part:
            await _write(store, journal, batch)
        if number:
            copy_running(running, directory)
        await store.close()
    return journal


async def _write(store: Store, journal: Journal, batch: list[int]) -> None:
    """Acknowledged one after the other. -14 rolls back; the others commit at 100 above."""
    for each in batch:
        if each > 0:
            sent = journal.begin(each)
            assert await store.writes.write([sent.prewrite]) == [None]
            sent.prewrite_acked = True
            continue
        sent = journal.sent.get(-each) or await _begun(store, journal, -each)
        sent.commit_ts = 0 if each == -14 else COMMIT_AFTER - each
        assert await store.writes.write([sent.outcome]) == [None]
        sent.outcome_acked = True


async def _begun(store: Store, journal: Journal, start_ts: int) -> Transaction:
    await _write(store, journal, [start_ts])
    return journal.sent[start_ts]


@dataclass
class Judged:
    """What a start on a damaged store came to. `named`: every error that was raised or logged; `started`: it serves."""

    named: list[str] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    pending: set[int] = field(default_factory=set)
    started: bool = False

    def names(self, directory: Path) -> bool:
        """Some error says which file, or which directory, of this store it is about."""
        return any(str(directory) in error for error in self.named)


async def judged(directory: Path) -> Judged:
    """Start the store, read all of it, close it."""
    found = Judged()
    store = Store(directory, SetClock(FAR), OPTIONS)
    with structlog.testing.capture_logs() as lines:
        try:
            await store.open()
        except BinlogError as error:
            found.named.append(str(error))
            return found
        try:
            await store.serve()
            found.started = True
            found.pending = {entry.start_ts for entry in store.pending.first(1000)}
            found.named += [str(error) for error in store.damage]
            store.resolver.ts = FAR
            found.served, errors = await _read(store)
            found.named += errors
        finally:
            await store.close()
    found.named += [str(line) for line in lines if line["log_level"] == "error"]
    return found


async def _read(store: Store) -> tuple[list[Served], list[str]]:
    """Everything, and what was wrong. First in one pull; where that fails one by one, for what lies behind it."""
    try:
        return await _pulled(store, 0, FAR), []
    except BinlogError as error:
        served, errors = [], [str(error)]
    for ts in ENDED:
        try:
            served += await _pulled(store, ts - 1, ts)
        except BinlogError as error:
            errors.append(str(error))
    return served, errors


async def _pulled(store: Store, after_ts: int, until_ts: int) -> list[Served]:
    chunks = store.reads.pull(after_ts, until_ts, bytes_max=1000, fakes=False)
    return [Served.of(each.payload) async for chunk in chunks for each in chunk]
