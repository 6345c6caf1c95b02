"""When mirrors are merged, and what becomes of errors, without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from binlog.cluster import tso

from drainer.lake.control import MirrorVersion
from drainer.lake.merging import Merger
from drainer.lake.mirror import Range
from drainer.lake.tables import Entry
from drainer.schema.filter import TablePatterns
from drainer.sink.errors import DestinationDown, Fenced

A, B = Entry("s", "a", "s/a", 1, mirrored=True), Entry("s", "b", "s/b", 2, mirrored=True)


class World:
    """Tables in memory: `done`, up to where each is committed. `act`: what a merge does first."""

    app = "app"

    def __init__(self) -> None:
        self.done = {"s/a": 10, "s/a__changes": 30, "s/b": 10, "s/b__changes": 30}
        self.entries, self.until_ts = [A, B], 20
        self.merged, self.recorded = list[tuple[str, Range]](), list[MirrorVersion]()
        self.act: Callable[[], object] = lambda: None
        self.delta: Any = self
        self.root, self.new_files = Path("lake"), dict[Path, int]()
        self.control, self.control_lock = Path("control"), threading.Lock()
        self.kept: TablePatterns | None = TablePatterns.parse(["*.*"], whose="", what="")
        self.forgotten, self.spark = list[tuple[str, int]](), mock.MagicMock()
        self.compacted, self.vacuumed = list[str](), list[tuple[str, int]]()

    def mirror_path(self, entry: Entry) -> Path:
        return self.root / entry.path

    def history_path(self, entry: Entry) -> Path:
        return self.root / f"{entry.path}__changes"

    def state(self, path: Path) -> Path:
        return path

    def committed(self, path: Path, app: str) -> int:
        return self.done[self.name(path)]

    def commit(self, path: Path, actions: Any, *, app: str, after: int) -> None:
        assert self.committed(path, app) == after
        self.done[self.name(path)] = actions[0]["txn"]["version"]

    def name(self, path: Path) -> str:
        return str(path.relative_to(self.root))

    def compact(self, path: Path) -> None:
        self.act()
        self.compacted.append(path.name)
        self.new_files.pop(path)

    def vacuum(self, path: Path, hours: int) -> None:
        assert self.control_lock.locked() == (path == self.control)  # a position that is stored meanwhile is refused
        self.vacuumed.append((path.name, hours))

    def forget(self, entry: Entry, until_ts: int) -> None:
        self.forgotten.append((entry.path, until_ts))

    def sync(self, path: Path) -> None:
        """Memory has nothing to sync."""

    def version(self, entry: Entry) -> int:
        return self.done[entry.path] + 1000

    def merge(self, delta: Any, app: str, path: Path, mirror: Path, history: Path, of: Range) -> None:
        self.merged.append((self.name(path), of))
        self.act()

    @contextmanager
    def merger(self, interval_s: float = 1e6, share: float = 1.0) -> Iterator[Merger]:
        opened, control = iter([0]), (self.control, self.control_lock)  # the position has moved since

        def due() -> tuple[list[Entry], int]:
            return self.entries, next(opened, self.until_ts)

        with mock.patch("drainer.lake.merging.merge", self.merge):
            upkeep = (control, share, timedelta(hours=1, minutes=1), self.kept)
            made = Merger(self, due, self.recorded.extend, interval_s, *upkeep)  # type: ignore[arg-type]
            yield made
            made.close()


def test_round_brings_every_mirror_to_the_position_and_says_so() -> None:
    world = World()
    world.done["s/b__changes"] = 10  # nothing is new
    with world.merger() as merger:
        merger.round()
        merger.round()
    assert world.merged == [("s/a", Range(10, 20))]
    assert world.recorded == [MirrorVersion(20, "s/a", "s", "a", 1020)]
    assert world.done["s/a"] == 20, "also if the statement had no effect"


def test_mirror_that_a_ddl_changed_meanwhile_waits_for_the_next_round() -> None:
    world = World()
    due = [([A, B], 20), ([A, B], 20), ([A], 20)]
    with world.merger() as merger, mock.patch.object(merger, "_due", side_effect=due):
        merger.round()
    assert [path for path, _ in world.merged] == ["s/a"]


def test_merge_beside_another_writer_is_repeated_unless_that_merges_too() -> None:
    world = World()
    world.act = mock.Mock(side_effect=[Fenced("OPTIMIZE"), None, Fenced("OPTIMIZE"), None])
    with world.merger() as merger:
        merger.round()
        assert [path for path, _ in world.merged] == ["s/a", "s/a", "s/b", "s/b"]

        def another() -> None:
            world.done["s/a"] = 21
            raise Fenced("another drainer")

        world.until_ts, world.act = 25, another
        with pytest.raises(Fenced, match="another drainer"):
            merger.round()
        world.act = mock.Mock(side_effect=Fenced("it never ends"))
        with pytest.raises(Fenced, match="never"):
            merger.round()


def test_error_of_the_thread_is_raised_by_the_next_batch_and_nothing_is_merged_any_more() -> None:
    world, failed = World(), threading.Event()

    def fail() -> None:
        failed.set()
        raise DestinationDown("full")

    world.act = fail
    with world.merger(0.001) as merger:
        assert failed.wait(10)
        merger._thread.join(10)
        with pytest.raises(DestinationDown, match="full"):
            merger.raise_error()
    assert len(world.merged) == 1


def test_round_ends_between_two_mirrors_when_it_is_to_end() -> None:
    world = World()
    with world.merger() as merger:
        world.act = merger.close
        merger.round()
        merger.raise_error()
    assert [path for path, _ in world.merged] == ["s/a"]


def test_tables_with_most_new_files_are_compacted_first_and_those_with_few_are_not() -> None:
    world = World()
    with world.merger() as merger:
        counts = {"s/a": 20, "s/a__changes": 500, "s/b": 19}
        world.new_files = {world.root / name: count for name, count in counts.items()} | {Path("control"): 30}
        merger.maintain()
    assert world.compacted == ["a__changes", "control", "a"]
    assert world.recorded == [MirrorVersion(10, "s/a", "s", "a", 1010)]  # at() reads what was compacted


def test_compaction_ends_when_its_share_of_the_time_is_spent() -> None:
    world = World()
    with world.merger(share=0.0) as merger:
        world.new_files = {world.root / "s/a": 100}
        merger.maintain()
    assert world.compacted == []


def test_table_that_cannot_be_compacted_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.act = mock.Mock(side_effect=[DestinationDown("no space"), None])
    with world.merger() as merger:
        world.new_files = {world.root / "s/a__changes": 50, world.root / "s/b__changes": 40}
        merger.maintain()
        merger.raise_error()
    assert world.compacted == ["b__changes"]
    assert "OPTIMIZE or VACUUM of a table failed" in caplog.text


@pytest.fixture
def kept(tmp_path: Path) -> World:
    """A lake of which the files are there, and the position is that of now."""
    world = World()
    world.root, world.control, world.until_ts = tmp_path, tmp_path / "control", tso.compose(int(time.time() * 1000))
    for name in ("s/a", "s/b__changes", "control"):
        (tmp_path / name).mkdir(parents=True)
    return world


def test_old_files_are_removed_of_one_table_after_each_merge_and_once_a_day(kept: World) -> None:
    kept.entries = [A, B, Entry("s", "c", "s/c", 3, mirrored=False)]  # it had a mirror once
    (kept.root / "s" / "c").mkdir()
    with kept.merger() as merger:
        for _ in range(5):
            merger.maintain()
    assert kept.vacuumed == [("control", 2), ("a", 2), ("b__changes", 2), ("c", 2)]
    oldest_ts = kept.until_ts - tso.compose(61 * 60_000)
    assert kept.recorded == [
        MirrorVersion(oldest_ts, "", "", "", -1),
        MirrorVersion(10, "s/a", "s", "a", 1010),  # others may have run OPTIMIZE, or a crash has come before it
    ]
    assert [f"until_ts <= {oldest_ts} " in call.args[0] for call in kept.spark.sql.mock_calls] == [True]


def test_files_of_no_table_stay_for_ever_where_more_are_due_than_merges_come_in_a_day(kept: World) -> None:
    with kept.merger() as merger, mock.patch("drainer.lake.merging.time.monotonic") as clock:
        for hour in range(0, 180, 30):
            clock.return_value = 1e6 + hour * 3600
            merger.maintain()
    assert [name for name, _ in kept.vacuumed] == ["control", "a", "b__changes"] * 2


def test_what_is_kept_ends_at_the_position(kept: World) -> None:
    kept.until_ts -= tso.compose(3 * 3_600_000)  # the drainer was down
    with kept.merger() as merger:
        merger.maintain()
    assert kept.vacuumed == [("control", 5)]


def test_mirror_that_a_ddl_may_have_changed_half_is_not_maintained(kept: World) -> None:
    with kept.merger() as merger:
        kept.new_files, merger._opened_ts = {kept.root / "s/a": 100}, kept.until_ts
        merger.maintain()
    assert (kept.compacted, kept.vacuumed, kept.recorded) == ([], [], [])


def test_old_changes_are_removed_up_to_a_recorded_version_of_the_mirror_if_there_is_one(tmp_path: Path) -> None:
    world, keep_ms = World(), 61 * 60_000
    world.root, world.until_ts = tmp_path, tso.compose(10 * keep_ms)
    world.kept = TablePatterns.parse(["*.b"], whose="", what="")
    world.entries = [A, B, Entry("s", "c", "s/c", 3, mirrored=False)]
    for entry in world.entries:
        world.history_path(entry).mkdir(parents=True)
    rows = world.spark.read.format.return_value.load.return_value.where
    recorded = rows.return_value.selectExpr.return_value.collect
    for found in (None, 7):
        recorded.return_value = [[found]]
        with world.merger() as merger:
            for _ in range(3):
                merger.maintain()
    old_ts = tso.compose(9 * keep_ms)
    assert world.forgotten == [("s/c", old_ts), ("s/a", 7), ("s/c", old_ts)]
    assert f"path = 's/a' AND version >= 0 AND until_ts <= {old_ts}" in rows.call_args.args[0]
