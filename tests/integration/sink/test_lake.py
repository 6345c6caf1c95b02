"""A lake of Delta tables, with Spark and Delta: exactly once, killed among commits; a consistent state at every TSO."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from binlog.cluster import tso

from drainer.lake import merging
from drainer.lake.at import NotThere, at
from drainer.lake.control import control_path
from drainer.lake.sink import LakeSink
from drainer.sink.errors import DestinationRefused, LockHeld
from tests.support.change_replay import WHO
from tests.support.killing import Killed
from tests.support.lake_case import Partitions, Story, delta_session, lake
from tests.support.schema_case import ts

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1200)]

STORY = Story(7)
EDGES = [*sorted(STORY.states)[2:-1:4], max(STORY.states)]
MODULES = [
    f"drainer.{name}"
    for name in ("lake.control", "lake.history", "lake.merging", "lake.sink", "lake.tables", "ranges.load")
]


@pytest.fixture(scope="module")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with delta_session(tmp_path_factory.mktemp("delta")) as session:
        yield session


@contextlib.contextmanager
def dies_at(point: str) -> Iterator[None]:
    """The work within ends at the n-th time that it passes a crash point, `name:n`, as if the process were killed."""
    wanted, _, number = point.partition(":")
    left = Counter({wanted: int(number or 1)})

    def pass_point(name: str) -> None:
        left[name] -= 1
        if name == wanted and left[name] == 0:
            raise Killed

    with contextlib.ExitStack() as stack:
        for module in MODULES:
            stack.enter_context(mock.patch(f"{module}.crash_point", pass_point))
        yield
    assert left[wanted] <= 0, f"{point} is not passed"


def live(spark: Any, directory: Path | str, edges: list[int]) -> None:
    sink = lake(directory, spark)
    try:
        STORY.replay(Merging(sink), edges)
    finally:
        sink.close(clean=False)


class Merging:
    """Merges after every batch that executors have written, before the next one."""

    def __init__(self, sink: LakeSink) -> None:
        self._sink = sink

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def commit(self, *args: Any) -> None:
        self._sink.commit(*args)
        self._sink.merge_now()


def state(tables: dict[Any, Any]) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of `orders` in the order id, name, qty, and those of the others."""
    found = {}
    for (_, name), rows in tables.items():
        columns = ["id", "title" if "title" in rows.columns else "name", "qty"] if name == "orders" else ["a", "b"]
        shown = [column for column in columns if column in rows.columns]
        found[name] = sorted(tuple(row) for row in rows.select(*shown).collect())
    return found


def places(spark: Any, directory: Path) -> list[tuple[int, int]]:
    paths = [directory / "shop" / f"{name}__changes" for name in ("orders", "notes")]
    rows = [row for path in paths for row in spark.read.format("delta").load(str(path)).collect()]
    return sorted((row.commit_ts, row.place) for row in rows)


@pytest.fixture(scope="module")
def whole(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The story in one life."""
    directory = tmp_path_factory.mktemp("whole")
    live(spark, directory, EDGES)
    return directory


def test_lake_is_as_upstream_was_at_every_tso(spark: Any, whole: Path) -> None:
    for commit_ts in sorted(STORY.states)[6::5]:
        if commit_ts <= EDGES[-1]:
            assert state(at(spark, whole, commit_ts)) == STORY.states[commit_ts], commit_ts
    with pytest.raises(NotThere, match="position"):
        at(spark, whole, EDGES[-1] + 1)


@pytest.mark.parametrize(
    "point",
    [
        "lake.history_committed",
        "lake.columns_added",
        "lake.columns_filled",
        "lake.truncating",
        "lake.emptied",
        "lake.merged",
    ],
)
def test_lake_of_a_killed_drainer_has_every_change_once(spark: Any, whole: Path, tmp_path: Path, point: str) -> None:
    """Every crash point: tests/unit/drainer/lake/test_kills.py."""
    with dies_at(point), contextlib.suppress(Killed):
        live(spark, tmp_path, EDGES)
    live(spark, tmp_path, [edge + 1 for edge in EDGES[:-1:2]] + EDGES[-1:])  # batches end elsewhere now
    assert places(spark, tmp_path) == places(spark, whole)
    assert state(at(spark, tmp_path, EDGES[-1])) == STORY.states[EDGES[-1]]


def files(directory: Path) -> int:
    return len(list(directory.rglob("*.parquet")))


def test_maintained_lake_has_fewer_files_and_no_old_changes_and_the_same_rows(spark: Any, tmp_path: Path) -> None:
    live(spark, tmp_path, EDGES)
    first, last = sorted(STORY.states)[-3], EDGES[-1]
    before = state(at(spark, tmp_path, first))
    sink = lake(tmp_path, spark, compaction_share=1.0, history=("*.notes",))
    sink.open(WHO, 1)
    sink.merge_now()
    sink.advance(now_ts := tso.compose(int(time.time() * 1000) + 3_600_000), 9)
    paths = [tmp_path / "shop" / name for name in ("orders", "orders__changes", "notes", "notes__changes")]
    control = control_path(tmp_path, WHO.changefeed)
    merger = sink._merging()
    merger._tables.delta.new_files.update(dict.fromkeys([*paths, control], merging._FILES_MIN))
    merger._keep = timedelta(0)
    kept = spark.read.format("delta").load(str(paths[3])).count()
    for _ in range(8):  # old files of one table each time
        sink.maintain_now()
    sink.close(clean=True)
    assert max(files(path) for path in paths) == 1
    assert state(at(spark, tmp_path, now_ts)) == STORY.states[last]
    assert before == STORY.states[first]
    versions = Counter(row.path for row in spark.read.format("delta").load(str(control)).collect())
    assert versions["shop/orders"] == 2, "at() needs one, and VACUUM of the mirror has recorded another"
    left = [spark.read.format("delta").load(str(path)).count() for path in (paths[1], paths[3])]
    assert left == [0, kept], "changes that the mirror has are removed, if the table's history is not kept"
    with pytest.raises(NotThere, match="have been removed"):
        at(spark, tmp_path, first)


def test_second_drainer_is_refused_while_the_first_one_runs(spark: Any, tmp_path: Path) -> None:
    first, second = lake(tmp_path, spark), lake(tmp_path, spark)
    first.open(WHO, 1)
    with pytest.raises(LockHeld):
        second.open(WHO, 1)
    first.close(clean=True)
    second.open(WHO, 1)
    second.close(clean=True)


def test_table_of_another_owner_is_not_written_to(spark: Any, tmp_path: Path) -> None:
    spark.range(1).write.format("delta").save(str(tmp_path / "shop" / "orders"))
    with pytest.raises(DestinationRefused, match="move it away"):
        live(spark, tmp_path, EDGES)


@pytest.mark.parametrize("point", ["", "lake.exchanged", "lake.partitions_removed", "lake.partitions_removed:2"])
def test_rows_of_partitions_are_exchanged_and_removed(spark: Any, tmp_path: Path, point: str) -> None:
    story = Partitions()
    for dies in [dies_at(point), contextlib.nullcontext()] if point else [contextlib.nullcontext()]:
        with dies, contextlib.suppress(Killed):
            sink = lake(tmp_path, spark)
            try:
                story.replay(sink)
            finally:
                sink.close(clean=False)

    def shown(commit_ts: int) -> dict[str, list[tuple[int, str]]]:
        return {name: sorted(map(tuple, rows.collect())) for (_, name), rows in at(spark, tmp_path, commit_ts).items()}

    assert shown(ts(8)) == story.rows_before_last_ddl
    assert shown(ts(11)) == story.rows
