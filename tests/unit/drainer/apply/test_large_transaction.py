"""Large transactions: pulled into a file, applied in pieces, and the outcome is that of any other way."""

from __future__ import annotations

import contextlib
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from binlog import envelope
from binlog.errors import BinlogError, DecodeError, PumpUnavailable
from binlog.pb import pump_ext_pb2 as ext
from binlog.runtime.security import Security
from hypothesis import given
from hypothesis import strategies as st

import drainer.pipeline as pipeline_module
from drainer.apply.batch_planner import Mode, PlannedBatch
from drainer.apply.in_driver import LargePuller, sections
from drainer.apply.progress import Progress
from drainer.batch.served import ServedBinlog
from drainer.batch.work import SegmentWork
from drainer.pipeline import Pipeline, return_freed_memory
from drainer.pumps.client import PART_BYTES_MAX, PartJoiner, cut_into_parts
from drainer.pumps.pull import NotServed, Spool, pull
from drainer.pumps.watermark import PumpRange
from drainer.schema.history.base import JobHistory
from drainer.schema.history.sources import parse_jobs
from drainer.schema.state import Schema
from drainer.schema.steps import Rows
from tests.support.capture import GOLDEN, CaptureSet
from tests.support.examples import FEW
from tests.support.local_batch import LocalBatch
from tests.support.memory_sink import MemorySink, Store
from tests.support.stub_pump import StubPump
from tests.unit.drainer.test_pipeline import CUT, WHO, StubProvider
from tests.unit.tidb.damage import survives

MIB = 1 << 20
BASE = 1 << 60


def binlog(start_ts: int, commit_ts: int, size: int = 100, **fields: int) -> bytes:
    """One row of `size` bytes of table 1."""
    row = bytes(n % 251 for n in range(1009)) * (size // 1009 + 1)
    table = b"\x08\x01\x12" + envelope.encode_varint(size) + row[:size] + b"\x38\x00"
    value = b"\x08\x05\x12" + envelope.encode_varint(len(table)) + table
    return envelope.encode_binlog(
        tp=1, start_ts=start_ts, commit_ts=commit_ts, prewrite_key=b"k", prewrite_value=value, **fields
    )


@pytest.fixture
def pump() -> Iterator[StubPump]:
    made = StubPump()
    made.resolve(1 << 62)
    yield made
    made.stop()


@pytest.fixture
def go_pump() -> Iterator[StubPump]:
    made = StubPump(extension=False)
    yield made
    made.stop()


def range_of(pump: StubPump, name: str = "p", *, extension: bool = True, until_ts: int = 1 << 61) -> PumpRange:
    return PumpRange(name, pump.host, extension, 0, until_ts)


def plan_of(*ranges: PumpRange, until_ts: int, holders: tuple[str, ...]) -> PlannedBatch:
    return PlannedBatch(0, until_ts, Mode.LARGE, (), 1, large=ranges, holders=holders)


PULLER = LargePuller(1, Security())


# --- parts ------------------------------------------------------------------------------------------------------


def test_part_joiner_joins_parts_of_binlog() -> None:
    small, large = binlog(1, 2), binlog(3, 4, 5000)
    joiner = PartJoiner()
    messages = [ext.PullRangeResp(payloads=[small, small]), *cut_into_parts(large, 4, 999)]
    found = [joiner.add(message.SerializeToString()) for message in messages]
    assert found[0] == [small, small] and found[1:-1] == [[]] * (len(messages) - 2) and found[-1] == [large]
    joiner.end()


def test_part_joiner_refuses_parts_out_of_sequence() -> None:
    parts = [message.SerializeToString() for message in cut_into_parts(binlog(3, 4, 5000), 4, 999)]
    for order in ([parts[1]], [parts[0], parts[2]], [parts[0], parts[0]]):
        joiner = PartJoiner()
        with pytest.raises(DecodeError, match="commit_ts 4"):
            for message in order:
                joiner.add(message)
    for nothing in (lambda j: j.add(ext.PullRangeResp(payloads=[b"x"]).SerializeToString()), lambda j: j.end()):
        joiner = PartJoiner()
        joiner.add(parts[0])
        with pytest.raises(DecodeError, match="the remaining parts are missing"):
            nothing(joiner)


def test_pull_yields_no_value_above_part_from_any_pump(pump: StubPump, go_pump: StubPump) -> None:
    """What `pull` yields goes through the JVM."""
    large = binlog(BASE + 3, BASE + 4, 3 * PART_BYTES_MAX + 5)
    ddl = binlog(BASE + 5, BASE + 6, 3 * PART_BYTES_MAX, ddl_job_id=7)
    for made, extension in ((pump, True), (go_pump, False)):
        made.put(binlog(BASE + 1, BASE + 2), large, ddl)
        wanted = range_of(made, extension=extension, until_ts=BASE + 6)
        messages = list(pull(wanted, cluster_id=1, security=Security()))
        assert max(map(len, messages)) < PART_BYTES_MAX + 1000
        joiner = PartJoiner()
        found = [payload for message in messages for payload in joiner.add(message)]
        assert found == [binlog(BASE + 1, BASE + 2), large, ddl]


# --- the spool --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extension", [True, False], ids=["ours", "Go's"])
def test_large_pull_spools_range_into_unnamed_file(extension: bool, tmp_path: Path) -> None:
    """Pumps of ours serve it in parts, those of the original whole."""
    made = StubPump(extension=extension)
    made.resolve(BASE + 9)
    large = binlog(BASE + 3, BASE + 4, 2 * PART_BYTES_MAX)
    made.put(binlog(BASE + 1, BASE + 2), large, binlog(BASE + 5, BASE + 6))
    wanted = range_of(made, extension=extension, until_ts=BASE + 6)
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path)
    progress = Progress()
    try:
        with PULLER(plan_of(wanted, until_ts=BASE + 4, holders=("p",)), progress) as found:
            assert list(tmp_path.iterdir()) == []
            assert [(one.commit_ts, one.start_ts, one.is_large) for one in found] == [
                (BASE + 2, BASE + 1, False), (BASE + 4, BASE + 3, True), (BASE + 6, BASE + 5, False)
            ]  # fmt: skip
            assert bytes(found[1].payload) == large
    finally:
        tempfile.tempdir = before
        made.stop()
    assert progress.step == ""


def test_large_pull_without_announced_transaction_raises_not_served(pump: StubPump) -> None:
    pump.put(binlog(1, 3))
    wanted = range_of(pump)
    with (
        pytest.raises(NotServed, match=r"pump p .*commit_ts 4"),
        PULLER(plan_of(wanted, until_ts=4, holders=("p",)), Progress()),
    ):
        pass


def test_large_pull_that_breaks_off_raises_pump_unavailable(pump: StubPump) -> None:
    pump.put(binlog(1, 2), binlog(3, 4, PART_BYTES_MAX * 2))
    pump.failing_pulls = 1
    with pytest.raises(PumpUnavailable), PULLER(plan_of(range_of(pump), until_ts=4, holders=("p",)), Progress()):
        pass


def test_empty_spool_has_no_binlogs() -> None:
    with contextlib.closing(Spool()) as spool:
        assert list(spool.binlogs(10)) == []


def test_damaged_message_into_spool_raises_only_decode_error() -> None:
    messages = [m.SerializeToString() for m in cut_into_parts(binlog(3, 4, 400), 4, 150)]

    def take(data: bytes) -> None:
        with contextlib.closing(Spool()) as spool:
            begin = spool.take("p", messages[0], 0)
            spool.take("p", data, begin)

    survives(take, messages[1])


# --- sections ---------------------------------------------------------------------------------------------------


def merged(commit_ts: int, start_ts: int = 1, *, large: bool = False) -> ServedBinlog:
    return ServedBinlog(commit_ts, start_ts, "p", memoryview(b"large") if large else b"small")


def test_sections_separate_large_transactions_from_the_rest() -> None:
    """What has the commit_ts of a large one goes with it (X-15); the rest is as it was."""
    small, large = merged, lambda ts, start=1: merged(ts, start, large=True)
    rows = Rows(0, 99, (small(1), small(2), large(3), small(3, 2), small(4), large(5), large(6)), None)  # type: ignore[arg-type]
    found = [(s.after_ts, s.until_ts, len(s.binlogs), s.large) for s in sections(rows)]
    assert found == [(0, 2, 2, False), (2, 3, 2, True), (3, 4, 1, False), (4, 5, 1, True), (5, 99, 1, True)]
    rows = Rows(0, 99, (small(1), small(2)), None)  # type: ignore[arg-type]
    assert [(s.after_ts, s.until_ts, len(s.binlogs), s.large) for s in sections(rows)] == [(0, 99, 2, False)]


# --- the whole way ----------------------------------------------------------------------------------------------


class Recording:
    """A recording of a real TiDB, and what an ordinary batch of all of it leaves."""

    def __init__(self, name: str) -> None:
        capture = CaptureSet(GOLDEN / name)
        self.begin, self.end = capture.meta["scenario_start_ts"], capture.meta["scenario_end_ts"]
        self.jobs = parse_jobs(capture.jobs_text.decode(), "recording")
        self.binlogs = [p for p in capture.binlogs if self.begin < envelope.scan(p).commit_ts <= self.end]
        self.whole = Store()
        run = self.start(self.whole, 0)
        run.run(
            PlannedBatch(self.begin, self.end, Mode.DRIVER, (), 1), LocalBatch([self.binlogs], self.begin, self.end)
        )

    def start(self, store: Store, large_bytes_min: int, piece_bytes_max: int = 1) -> Pipeline:
        destination = MemorySink(store)
        position = destination.open(WHO, self.begin)
        done = None if position.fresh else destination.job_done
        schema = Schema.open(JobHistory(self.jobs), position_ts=position.commit_ts, job_done=done)

        @contextlib.contextmanager
        def pull_large(plan: PlannedBatch, _progress: Progress) -> Iterator[list[ServedBinlog]]:
            found = []
            for payload in self.binlogs:
                scanned = envelope.scan(payload)
                if plan.after_ts < scanned.commit_ts <= plan.until_ts:
                    large = len(payload) > large_bytes_min and not scanned.ddl_job_id
                    view = memoryview(payload) if large else payload
                    found += [ServedBinlog(scanned.commit_ts, scanned.start_ts, pump, view) for pump in ("a", "b")]
            yield found

        return Pipeline(
            destination,
            StubProvider(schema),
            CUT,
            position_ts=position.commit_ts,
            pull_large=pull_large,
            piece_bytes_max=piece_bytes_max,
        )


RECORDINGS = [Recording(name) for name in ("keys", "types", "ddl")]


@FEW
@given(st.sampled_from(RECORDINGS), st.sampled_from([0, 150, 1000]), st.sampled_from([1, 300, 5000]), st.data())
def test_large_transactions_in_pieces_give_rows_of_the_whole(
    recording: Recording, large: int, piece: int, data: st.DataObject
) -> None:
    """DDL in the way, every schema version, tables with and without keys, each transaction on two pumps (rule 19)."""
    commits = [envelope.scan(p).commit_ts for p in recording.binlogs]
    cuts = data.draw(st.sets(st.sampled_from(commits), max_size=3))
    store = Store()
    pipeline = recording.start(store, large, piece)
    after_ts = recording.begin
    for until_ts in sorted({*cuts, recording.end}):
        if until_ts > after_ts:
            pipeline.run(PlannedBatch(after_ts, until_ts, Mode.LARGE, (), 1), LocalBatch([], 0, 0))
            after_ts = until_ts
    assert (store.rows, store.commit_ts, store.jobs) == (
        recording.whole.rows, recording.whole.commit_ts, recording.whole.jobs
    )  # fmt: skip
    for bags in (store.bags, recording.whole.bags):
        for bag in bags.values():
            bag.sort(key=repr)
    assert {k: v for k, v in store.bags.items() if v} == {k: v for k, v in recording.whole.bags.items() if v}
    assert pipeline.progress.duplicates
    assert any(entry[0] == "pieces" for entry in store.log)
    assert pipeline.progress.step == "" and pipeline.progress.batches["large"]


class FailingStore(Store):
    """Fails once, at the so-many-eth piece that is written."""

    left = 3

    def _write(self, work: SegmentWork) -> int:
        self.left -= 1
        if self.left == 0:
            raise BinlogError("the test's server fails")
        return super()._write(work)


def test_large_transaction_that_fails_midway_leaves_nothing_and_is_repeated() -> None:
    recording = RECORDINGS[0]
    size, largest = max(
        (len(p), envelope.scan(p).commit_ts) for p in recording.binlogs if not envelope.scan(p).ddl_job_id
    )
    store = FailingStore()
    store.left = 1 << 60
    pipeline = recording.start(store, size - 1)
    pipeline.run(PlannedBatch(recording.begin, largest - 1, Mode.LARGE, (), 1), LocalBatch([], 0, 0))
    before = ({k: dict(v) for k, v in store.rows.items()}, {k: list(v) for k, v in store.bags.items()}, store.commit_ts)
    store.left = 3
    with pytest.raises(BinlogError, match="the test's server"):
        pipeline.run(PlannedBatch(largest - 1, largest, Mode.LARGE, (), 1), LocalBatch([], 0, 0))
    assert (store.rows, store.bags, store.commit_ts) == before
    assert pipeline.position_ts == largest - 1
    pipeline.run(PlannedBatch(largest - 1, recording.end, Mode.LARGE, (), 1), LocalBatch([], 0, 0))
    assert store.rows == recording.whole.rows


# What a large transaction leaves of memory in the driver.


BLOCK = 100_000  # below the size from which glibc maps each block by itself
BLOCKS = 64 * MIB // BLOCK


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim is a function of glibc")
def test_freed_memory_is_returned_to_system_while_some_is_in_use() -> None:
    return_freed_memory()
    before = resident_bytes()
    blocks = [b"x" * BLOCK for _ in range(BLOCKS)]
    assert resident_bytes() - before > 48 * MIB
    kept = blocks[::20]
    del blocks
    return_freed_memory()
    assert resident_bytes() - before < 32 * MIB
    assert len(kept) == len(range(0, BLOCKS, 20))


@pytest.mark.parametrize("fails", [False, True])
def test_driver_returns_memory_after_large_transaction(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """After its binlogs have been closed, whether it was applied or not."""
    events: list[str] = []
    monkeypatch.setattr(pipeline_module, "return_freed_memory", lambda: events.append("returned"))

    @contextlib.contextmanager
    def pull_large(_plan: Any, _progress: Any) -> Iterator[list[Any]]:
        try:
            if fails:
                raise OSError("no room for the file")
            yield []
        finally:
            events.append("closed")

    destination = MemorySink(Store())
    destination.open(WHO, initial_ts=0)
    provider = StubProvider(Schema.open(JobHistory([]), position_ts=0))
    pipeline = Pipeline(destination, provider, CUT, position_ts=0, pull_large=pull_large, piece_bytes_max=MIB)
    with contextlib.suppress(OSError):
        pipeline.run(PlannedBatch(0, 10, Mode.LARGE, (), 1), LocalBatch([], 0, 0))
    assert events == ["closed", "returned"]
    pipeline.run(PlannedBatch(pipeline.position_ts, 20, Mode.DRIVER, (), 1), LocalBatch([], 0, 0))
    assert events == ["closed", "returned"]
