"""Which table of a lake a DDL and rows belong to, without Spark: by upstream's ids, whatever becomes of names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from unittest import mock

import pytest
from binlog.cluster import tso
from binlog.tidb.job import ActionType
from binlog.tidb.table import PartitionDefinition, PartitionInfo, PartitionType, TableInfo

from drainer.batch.work import Pieces
from drainer.lake.at import newest
from drainer.lake.control import DOMAIN, Control, MirrorVersion, control_path
from drainer.lake.delta import File, txn_action
from drainer.lake.section import LakeSection
from drainer.lake.sink import LakeSink
from drainer.lake.tables import Entry, Registry
from drainer.row.partition import PartitionUnknown
from drainer.schema.steps import Ddl, Located, TableChange
from drainer.sink.base import NO_QUESTION, SCHEMA_ID, FirstStart, TableLoad
from drainer.sink.errors import DdlFailed, DestinationDown, DestinationRefused, Fenced, PositionMoved
from tests.support.change_replay import WHO
from tests.support.killing import killed_at
from tests.support.memory_delta import MemoryDelta
from tests.support.row_case import INT, table
from tests.support.schema_case import job


class World:
    """A lake of which Delta is in memory. `merges`: (path, up to which TSO) of the merges that a DDL needs."""

    def __init__(self, directory: Path, first: FirstStart = NO_QUESTION) -> None:
        self.delta, self.ts, self.directory = MemoryDelta(), 0, directory
        self.merges = list[tuple[str, int]]()
        self.open(first)

    def open(self, first: FirstStart = NO_QUESTION) -> None:
        self.sink = LakeSink(LakeSection(dir=str(self.directory), mirror=("*.*", "!s.log*")))
        self.sink.session = mock.Mock()
        calls = {"raise_error": lambda: None, "close": lambda: None, "merge": self._merge}
        with ExitStack() as stack:
            for name, one in {"Delta": self.delta, "Merger": SimpleNamespace(lock=Lock(), **calls)}.items():
                stack.enter_context(mock.patch(f"drainer.lake.sink.{name}", mock.Mock(return_value=one)))
            self.sink.open(WHO, 0, first)

    def _merge(self, entry: Entry, until_ts: int) -> MirrorVersion | None:
        if self.delta.state(self.directory / entry.path) is None or (entry.path, until_ts) in self.merges:
            return None
        self.merges.append((entry.path, until_ts))
        return MirrorVersion(until_ts, entry.path, *entry.name, 0)

    def ddl(self, kind: ActionType, *changes: tuple[TableInfo | None, TableInfo | None]) -> None:
        self.ts += 10
        found = tuple(TableChange(*(one and Located(one.id, "s", one) for one in pair)) for pair in changes)
        self.sink.ddl(Ddl(job(self.ts, kind, self.ts), self.ts, False, "s", "", (), "", self.ts, found))

    @property
    def registry(self) -> Registry:
        """As a restart finds it."""
        _, text = self.delta.domain(control_path(self.directory, WHO.changefeed), DOMAIN)
        return Registry(json.loads(text or "")["notes"])

    @property
    def tables(self) -> dict[str, tuple[str, bool]]:
        """By name the path under the schema, and whether there is a mirror."""
        return {one.table: (one.path.removeprefix("s/"), one.mirrored) for one in self.registry.tables.values()}

    @property
    def shown(self) -> dict[str, str]:
        """What `at` shows: the name of each mirror by its path."""
        path = control_path(self.directory, WHO.changefeed)
        rows = [MirrorVersion(**row) for row in self.delta.rows(path)]
        return {one.path.removeprefix("s/"): one.table for one in newest(rows)}  # type: ignore[arg-type]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.sink.close(clean=True)


def named(name: str, table_id: int) -> TableInfo:
    return table([("id", INT)], handle="id", table_id=table_id, name=name)


A, B = named("a", 1), named("b", 2)


@pytest.fixture
def both(world: World) -> World:
    world.ddl(ActionType.CREATE_TABLES, (None, A), (None, B))
    assert world.tables == {"a": ("a", True), "b": ("b", True)}
    return world


def test_tables_that_exchange_names_over_a_third_one_keep_their_mirrors(both: World) -> None:
    third = replace(A, name="tmp")
    both.ddl(ActionType.RENAME_TABLES, (A, third), (B, replace(B, name="a")), (third, replace(A, name="b")))
    assert both.tables == {"b": ("a", True), "a": ("b", True)}
    assert both.shown == {"a": "b", "b": "a"}


def test_table_that_is_renamed_at_the_tso_of_its_last_merge_has_one_name(both: World) -> None:
    both.ts -= 10
    both.ddl(ActionType.RENAME_TABLE, (A, replace(A, name="c")))  # early
    rows = both.delta.rows(control_path(both.directory, WHO.changefeed))
    versions = {(row["until_ts"], row["table"]): row["version"] for row in rows if row["path"] == "s/a"}
    assert versions[10, "c"] > versions[10, "a"]


def test_tables_that_exchange_names_at_once_keep_their_mirrors(both: World) -> None:
    both.ddl(ActionType.RENAME_TABLES, (A, replace(A, name="b")), (B, replace(B, name="a")))
    assert both.tables == {"b": ("a", True), "a": ("b", True)}


def test_table_with_the_name_of_one_that_left_unseen_has_files_of_its_own(both: World) -> None:
    both.ddl(ActionType.CREATE_TABLE, (None, named("a", 3)))  # the first one got a name that is filtered
    assert both.tables == {"a": ("a-3", True), "b": ("b", True)}
    assert both.shown == {"a-3": "a", "b": "b"}
    both.ddl(ActionType.RECOVER_TABLE, (None, replace(A, name="old")))
    assert both.tables["old"] == ("a", False)


def test_rows_of_a_table_that_came_unseen_are_not_those_of_the_one_that_had_its_name(both: World) -> None:
    both.sink._histories({("s", "a"): named("a", 3)})
    both.sink.advance(11, 1)
    assert both.tables == {"a": ("a-3", False), "b": ("b", True)}
    assert both.shown == {"b": "b"}
    both.ddl(ActionType.RENAME_TABLE, (named("a", 3), named("c", 3)))
    both.sink._histories({("s", "a"): A})
    both.sink.advance(30, 1)
    assert both.tables["a"] == ("a", False), "it lacks what was done to it under the other name"


def test_table_named_as_the_history_of_another_one_has_files_of_its_own(both: World) -> None:
    both.ddl(ActionType.CREATE_TABLE, (None, named("a__changes", 3)))
    both.ddl(ActionType.CREATE_TABLE, (None, named("c__changes", 4)))
    both.ddl(ActionType.CREATE_TABLE, (None, named("c", 5)))
    assert [path for path, _ in both.tables.values()] == ["a", "b", "a__changes-3", "c__changes", "c-5"]


def test_ddl_that_failed_half_way_is_repeated_with_the_tables_before_it(both: World) -> None:
    failing = mock.patch("drainer.lake.tables.Tables.define_mirror", side_effect=DestinationDown)
    with failing, pytest.raises(DestinationDown):
        both.ddl(ActionType.RENAME_TABLE, (A, replace(A, name="c")))
    both.sink._record_versions([])  # the thread that merges goes on for a while
    assert both.tables == {"a": ("a", True), "b": ("b", True)}


def test_truncate_that_is_repeated_after_a_crash_remembers_the_rows_of_the_old_table_only(both: World) -> None:
    again = replace(A, id=3)
    with mock.patch("drainer.lake.sink.LakeSink._move", side_effect=DestinationDown), pytest.raises(DestinationDown):
        both.ddl(ActionType.TRUNCATE_TABLE, (A, again))
    both.sink.close(clean=False)
    both.open()
    both.ddl(ActionType.TRUNCATE_TABLE, (A, again))
    assert set(both.registry.dropped) == {1}
    assert both.tables == {"a": ("a", True), "b": ("b", True)}


def test_only_tables_whose_first_row_is_seen_get_a_mirror_and_those_that_are_wanted(world: World) -> None:
    older = named("older", 7)
    world.ddl(ActionType.CREATE_TABLES, (None, A), (None, named("log1", 3)))
    world.ddl(ActionType.RENAME_TABLE, (older, replace(older, name="new")))
    assert world.tables == {"a": ("a", True), "log1": ("log1", False), "new": ("new", False)}
    world.ddl(ActionType.DROP_TABLE, (named("log1", 3), None))
    world.ddl(ActionType.DROP_TABLE, (A, None))
    assert world.shown == {}
    assert world.merges == [("s/a", 30)], "what it had before it was dropped"
    assert set(world.tables) == {"new"}


def test_dropped_table_that_comes_back_goes_on_where_it_was(both: World) -> None:
    both.ddl(ActionType.DROP_TABLE, (A, None))
    both.ddl(ActionType.CREATE_TABLE, (None, named("a", 3)))
    both.sink.close(clean=False)
    both.open()
    both.ddl(ActionType.RECOVER_TABLE, (None, replace(A, name="old")))
    assert both.tables == {"a": ("a-3", True), "b": ("b", True), "old": ("a", True)}
    assert both.shown == {"a": "old", "a-3": "a", "b": "b"}
    both.delta.read.assert_not_called()  # its rows are there
    with pytest.raises(DdlFailed, match="no mirror has them"):
        both.ddl(ActionType.RECOVER_TABLE, (None, named("unseen", 9)))


def test_rows_of_before_a_truncate_come_back_in_files_of_their_own(both: World) -> None:
    again = replace(A, id=3)
    both.delta.commit(both.directory / "s" / "a", [])  # a merge
    both.ddl(ActionType.TRUNCATE_TABLE, (A, again))
    assert (both.registry.dropped[1].version, both.registry.dropped[1].path) == (1, "s/a")
    both.ddl(ActionType.RECOVER_TABLE, (None, replace(A, name="old")))
    assert both.tables == {"a": ("a", True), "b": ("b", True), "old": ("old", True)}
    both.delta.read.assert_called_once_with(both.directory / "s" / "a", 1, both.delta.spark)
    assert not both.registry.dropped


def test_rows_of_before_a_truncate_are_remembered_as_long_as_their_files_are_kept(both: World) -> None:
    both.ddl(ActionType.DROP_TABLE, (B, None))
    both.ddl(ActionType.TRUNCATE_TABLE, (A, replace(A, id=3)))
    both.ts += tso.compose(7 * 86_400_000) - 10
    both.ddl(ActionType.TRUNCATE_TABLE, (replace(A, id=3), replace(A, id=4)))
    assert set(both.registry.dropped) == {1, 2, 3}
    both.ddl(ActionType.CREATE_TABLE, (None, named("c", 5)))
    assert set(both.registry.dropped) == {2, 3}, "each commit of the control table has them; the other has its path"
    with pytest.raises(DdlFailed, match="no mirror has them"):
        both.ddl(ActionType.RECOVER_TABLE, (None, replace(A, name="old")))


def test_table_that_comes_back_from_a_name_that_is_not_replicated_has_no_mirror(both: World) -> None:
    both.ddl(ActionType.RENAME_TABLE, (A, None))  # as Policy.shows_lost has it
    assert (both.tables, both.shown) == ({"b": ("b", True)}, {"b": "b"})
    both.sink._histories({("s", "a"): A})
    both.sink.advance(30, 1)
    assert both.tables["a"] == ("a", False)
    both.ddl(ActionType.RENAME_TABLE, (B, None))
    both.ddl(ActionType.RECOVER_TABLE, (None, B))  # it was dropped there
    assert both.tables["b"] == ("b", False)
    both.ddl(ActionType.CREATE_TABLE, (None, named("c", 5)))
    both.ddl(ActionType.DROP_TABLE, (named("c", 5), None))
    both.sink._histories({("s", "c"): named("c", 5)})  # how it came back was not seen
    both.sink.advance(both.ts + 1, 1)
    assert both.tables["c"] == ("c", False)


def test_what_came_before_a_ddl_is_merged_before_the_mirror_changes(both: World) -> None:
    wider = table([("id", INT), ("n", INT)], handle="id", table_id=1, name="a")
    both.sink.advance(15, 1)
    both.ddl(ActionType.ADD_COLUMN, (A, wider))
    assert both.merges == [("s/a", 15)]
    both.ddl(ActionType.MODIFY_TABLE_COMMENT, (wider, replace(wider, comment="x")))
    assert both.merges == [("s/a", 15)], "a lake has no comments"
    assert both.delta.committed(both.directory / "s" / "a", "") == 20
    states = [both.delta.state(both.directory / "s" / name) for name in ("a", "a__changes")]
    assert [[field.name for field in one.fields] for one in states if one] == [["id", "n"], ["id", "n"]]
    both.ddl(ActionType.DROP_COLUMN, (wider, A))
    states = [both.delta.state(both.directory / "s" / name) for name in ("a", "a__changes")]
    assert [[field.name for field in one.fields] for one in states if one] == [["id"], ["id", "n"]]
    ids = [field.id for one in states if one for field in one.fields]
    assert ids == [8, 9, 11], "before has the numbers between"
    assert [one.max_id for one in states if one] == [9, 11]


def test_ddl_that_is_repeated_after_its_commits_changes_nothing(both: World) -> None:
    wider = table([("id", INT), ("n", INT)], handle="id", table_id=1, name="a")
    with mock.patch("drainer.lake.sink.LakeSink._move", side_effect=DestinationDown), pytest.raises(DestinationDown):
        both.ddl(ActionType.ADD_COLUMN, (A, wider))
    paths = [both.directory / "s" / name for name in ("a", "a__changes")]
    before = [replace(one, version=0) for one in map(both.delta.state, paths) if one]
    both.sink.close(clean=False)
    both.open()
    both.ts -= 10
    both.ddl(ActionType.ADD_COLUMN, (A, wider))
    assert before == [replace(one, version=0) for one in map(both.delta.state, paths) if one]
    assert [len(both.delta.commits[path]) for path in paths] == [3, 2]
    assert both.sink.job_done(both.ts)
    assert not both.sink.job_done(5)


def test_drainer_whose_position_was_taken_writes_nothing(both: World) -> None:
    first = both.sink
    with mock.patch("drainer.lake.files.lock", lambda _: os.open(os.devnull, os.O_RDONLY)):
        both.open()
    before = {path: len(one) for path, one in both.delta.commits.items()}
    with pytest.raises(Fenced):
        first.advance(100, 1)
    with pytest.raises(Fenced):
        first._check(10, 20)
    with pytest.raises(PositionMoved):
        both.sink._check(9, 20)
    assert before == {path: len(one) for path, one in both.delta.commits.items()}
    first.close(clean=False)


def test_control_table_is_written_by_one_at_a_time_and_only_for_its_changefeed(both: World) -> None:
    control = both.sink._control
    with pytest.raises(Fenced), control.transaction() as store:
        both.delta.commit(control.path, [])
        store.document.notes = {"x": 1}
    with pytest.raises(DestinationRefused, match="position of changefeed 'default'"):
        Control(both.delta, both.directory, replace(WHO, cluster_id=2)).transaction().__enter__()  # type: ignore[arg-type]
    both.delta.commit(control.path, [{"domainMetadata": {"domain": DOMAIN, "configuration": "[]"}}])
    with pytest.raises(DestinationRefused, match="not written by this version"):
        control.transaction().__enter__()


def test_version_of_a_mirror_is_durable_before_it_is_recorded(both: World) -> None:
    """Spark does not sync what it writes."""
    control, order = both.sink._control.path, list[Path]()
    commit = both.delta.commit
    with (
        mock.patch.object(both.delta, "sync", order.append),
        mock.patch.object(
            both.delta, "commit", lambda path, *of, **to: (order.append(path), commit(path, *of, **to))[1]
        ),
    ):
        both.sink._record_versions([MirrorVersion(5, "s/a", "s", "a", 3), MirrorVersion(5, "s/gone", "s", "gone", -1)])
    assert order == [both.directory / "s/a", control]


def test_rows_of_a_batch_are_committed_once_however_the_next_batches_are_divided(both: World) -> None:
    path = both.directory / "s" / "a__changes"
    files = {("s", "a"): [File("x", 1, 1), File("y", 1, 1)]}
    both.sink._histories({("s", "a"): A})
    both.sink._commit_histories(dict(files), 20)
    assert [list(one) for one in both.delta.commits[path][-1]] == [["txn"], ["add"], ["add"]]
    both.sink._commit_histories(dict(files), 30)
    assert both.delta.committed(path, "") == 30
    both.sink.close(clean=False)  # before the position is stored
    both.open()
    assert both.sink._histories({("s", "a"): A})["s", "a"].committed_ts == 30
    both.delta.commit(path, [txn_action(both.sink._tables.app, 31)])
    with pytest.raises(Fenced):
        both.sink._commit_histories(dict(files), 40)


def later(world: World) -> tuple[LakeSink, Path, Path]:
    """The sink, which commits once an hour, and the paths of two histories."""
    world.sink._to = LakeSection(dir=str(world.directory), history_interval=timedelta(hours=1))
    world.sink._histories({("s", "a"): A, ("s", "b"): B})
    world.sink._hold([], world.ts + 1, 1)
    return world.sink, world.directory / "s" / "a__changes", world.directory / "s" / "b__changes"


def test_batches_of_an_interval_are_one_commit_that_comes_before_anything_else_is_changed(both: World) -> None:
    sink, path, _ = later(both)
    stored_ts, before = sink.commit_ts, len(both.delta.commits[path])
    for number in (2, 3):
        sink._check(both.ts + number - 1, both.ts + number)
        sink._hold([(("s", "a"), File(str(number), 1, 1))], both.ts + number, 1)
    sink.advance(both.ts + 4, 1)
    assert (len(both.delta.commits[path]), sink.commit_ts) == (before, stored_ts)
    both.ddl(ActionType.ADD_COLUMN, (A, replace(A, columns=(*A.columns, replace(A.columns[0], id=9, name="n")))))
    adds = [[one["add"]["path"] for one in commit if "add" in one] for commit in both.delta.commits[path][before:]]
    assert adds == [["2", "3"], []]
    sink.advance(both.ts + 1, 1)
    sink.close(clean=True)
    both.open()
    assert both.sink.commit_ts == both.ts + 1


def test_files_that_were_committed_before_an_error_are_not_committed_again(both: World) -> None:
    sink, first, second = later(both)
    sink._hold([(("s", "a"), File("x", 1, 1)), (("s", "b"), File("y", 1, 1))], both.ts + 2, 1)
    commit = both.delta.commit

    def failing(path: Path, *of: object, **to: object) -> int:
        if path == second:
            raise DestinationDown("full")
        return commit(path, *of, **to)  # type: ignore[arg-type]

    with mock.patch.object(both.delta, "commit", failing), pytest.raises(DestinationDown):
        sink._flush()
    sink._hold([(("s", "a"), File("z", 1, 1))], both.ts + 3, 1)
    sink._flush()
    adds = [
        [one["add"]["path"] for of in both.delta.commits[path] for one in of if "add" in one]
        for path in (first, second)
    ]
    assert adds == [["x", "z"], ["y"]]


def test_what_was_written_under_a_name_belongs_to_the_table_that_had_it(both: World) -> None:
    sink, first, _ = later(both)
    sink._hold([(("s", "a"), File("x", 1, 1))], both.ts + 2, 1)
    sink._histories({("s", "a"): replace(A, id=77)})
    assert [one["add"]["path"] for of in both.delta.commits[first] for one in of if "add" in one] == ["x"]


def parted(*ids: int) -> TableInfo:
    """A table with partitions of these ids."""
    found = tuple(PartitionDefinition(id_, f"p{n}", less_than=(f"{n}0",)) for n, id_ in enumerate(ids, 1))
    return replace(named("p", 3), partition=PartitionInfo(PartitionType.RANGE, "`id`", definitions=found))


@pytest.mark.parametrize("dies_at", range(5))
def test_exchange_that_runs_before_its_binlog_is_done_once(both: World, dies_at: int) -> None:
    """It has the commit_ts of the last rows then, up to which the mirrors have been merged."""
    both.ddl(ActionType.CREATE_TABLE, (None, parted(31, 32)))
    paths = [both.directory / "s" / name for name in ("a", "p")]
    for path in paths:
        both.delta.commit(path, [txn_action(both.sink._tables.app, both.ts)])
    changes = ((parted(31, 32), parted(1, 32)), (A, replace(A, id=31)))

    def delete(path: Path, _: str) -> None:
        assert path not in both.delta.written, "it has the other's rows"

    for nth in (dies_at, 99):
        both.ts -= 10
        deleting = mock.patch.object(both.delta, "delete", delete)
        with deleting, killed_at(nth, "drainer.lake.tables", "drainer.lake.sink"):
            both.ddl(ActionType.EXCHANGE_TABLE_PARTITION, *changes)
        both.sink.close(clean=False)
        both.open()
    assert both.delta.written == paths
    both.delta.read.assert_called_once_with(paths[0], 1, both.delta.spark)  # the version with its former rows
    assert {one.table: one.table_id for one in both.registry.tables.values()} == {"a": 31, "b": 2, "p": 3}


def test_partition_that_is_dropped_takes_its_rows_or_the_drainer_stops(both: World) -> None:
    both.ddl(ActionType.CREATE_TABLE, (None, parted(31, 32)))
    both.ddl(ActionType.CREATE_TABLE, (None, named("log1", 4)))
    path, dropped = both.directory / "s" / "p", (parted(31, 32), parted(32))
    merged = list[list[tuple[str, int]]]()
    with mock.patch.object(both.delta, "delete", side_effect=lambda *_: merged.append([*both.merges])) as deleted:
        both.ddl(ActionType.DROP_TABLE_PARTITION, dropped)
        assert deleted.mock_calls == [mock.call(path, "tidb_partitions_of_3(CAST(`id` AS STRING))")]
    assert merged == [[("s/p", 30)]], "rows that are merged later would stay"
    assert both.delta.committed(path, "") == 40
    belongs = both.delta.spark.udf.register.call_args.args[1]
    assert [belongs(key) for key in ("9", "10")] == [True, False]
    failing = mock.patch.object(both.delta, "delete", side_effect=PartitionUnknown("text under x"))
    with failing, pytest.raises(DdlFailed, match="text under x"):
        both.ddl(ActionType.TRUNCATE_TABLE_PARTITION, dropped)
    both.ts -= 10
    for other in (named("log1", 4), named("unseen", 5)):
        changes = ((parted(31, 32), parted(other.id, 32)), (other, replace(other, id=31)))
        with pytest.raises(DdlFailed, match="a table without a mirror"):
            both.ddl(ActionType.EXCHANGE_TABLE_PARTITION, *changes)


@pytest.fixture
def loading(tmp_path: Path) -> Iterator[World]:
    """Both tables are created for a first load, and listed."""
    made = World(tmp_path, FirstStart(loads=True))
    made.ddl(ActionType.CREATE_TABLES, (None, A), (None, B))
    made.sink.put_loads([TableLoad(1), TableLoad(2)], done=TableLoad(SCHEMA_ID, ()))
    made.sink.put_loads([TableLoad(1, (("5",),)), TableLoad(2, ())])
    yield made
    made.sink.close(clean=True)


def load(world: World, table_id: int, number: int) -> None:
    world.sink.apply_pieces(Pieces(world.ts, world.ts, lambda: (), (table_id, 0, number)), 1)


def test_mirrors_are_shown_when_all_tables_are_loaded_and_not_before(loading: World) -> None:
    for table_id, number in ((1, 0), (1, 1), (2, 0)):
        assert (loading.shown, loading.sink._live()[0]) == ({}, []), "nor are they maintained"
        load(loading, table_id, number)
    assert [one.left for one in loading.sink.loads()] == [0, 0, 0], "histories have counted them"
    ended = [TableLoad(table_id, (), 1) for table_id in (SCHEMA_ID, 1, 2)]
    loading.sink.put_loads(ended)
    assert loading.shown == {"a": "a", "b": "b"}
    histories = [loading.directory / "s" / name for name in ("a__changes", "b__changes")]
    assert [loading.delta.committed(path, loading.sink._tables.app) for path in histories] == [loading.ts] * 2
    assert [one.committed_ts for one in loading.sink._histories({("s", "a"): A, ("s", "b"): B}).values()] == [
        loading.ts
    ] * 2
    loading.sink.put_loads(ended)
    assert loading.merges == [("s/a", loading.ts), ("s/b", loading.ts)], "and once"


def test_range_that_is_not_the_next_one_of_its_table_is_not_written(loading: World) -> None:
    load(loading, 1, 0)
    for number in (0, 2):
        with pytest.raises(PositionMoved, match=f"range {number} of s.a is not the next"):
            load(loading, 1, number)
    with pytest.raises(Fenced):  # another drainer has loaded it since it was checked
        loading.sink._tables.add_range(loading.sink._registry.tables["s", "a"], 0, [])
    loading.sink.close(clean=False)
    loading.open()
    load(loading, 1, 1)
    with pytest.raises(DestinationRefused, match="table 7 was not created"):
        load(loading, 7, 0)


def test_table_of_which_upstream_has_dropped_the_rest_has_no_mirror(loading: World) -> None:
    load(loading, 1, 0)
    load(loading, 2, 0)
    loading.sink.put_loads([TableLoad(table_id, (), 1) for table_id in (SCHEMA_ID, 1, 2)])
    assert loading.tables == {"a": ("a", False), "b": ("b", True)}
    assert loading.shown == {"b": "b"}


def test_load_that_is_killed_when_its_mirrors_are_merged_ends_in_the_next_life(loading: World) -> None:
    for table_id, number in ((1, 0), (1, 1), (2, 0)):
        load(loading, table_id, number)
    ended = [TableLoad(table_id, (), 1) for table_id in (SCHEMA_ID, 1, 2)]
    with killed_at(3, "drainer.lake.sink"):
        loading.sink.put_loads(ended)
    loading.sink.close(clean=False)
    loading.open()
    assert (loading.shown, len(loading.merges)) == ({}, 2)
    loading.sink.put_loads(ended)
    assert (loading.shown, len(loading.merges)) == ({"a": "a", "b": "b"}, 2)


@pytest.mark.parametrize("there", ["", "__changes", "__changes/load", "nothing"])
def test_load_does_not_begin_over_rows_of_a_lake_whose_position_is_gone(loading: World, there: str) -> None:
    path, app = loading.directory / "s" / "a", loading.sink._tables.app
    history = path.with_name("a__changes")
    loading.sink.close(clean=True)
    del loading.delta.commits[control_path(loading.directory, WHO.changefeed)]
    if not there:
        del loading.delta.commits[history]
    elif there != "nothing":
        loading.delta.commit(history, [txn_action(app + there.removeprefix("__changes"), 1)])
    loading.open(FirstStart(loads=True))
    loading.ts = 0
    with (
        nullcontext() if there == "nothing" else pytest.raises(DestinationRefused, match="from before this first load")
    ):
        loading.ddl(ActionType.CREATE_TABLE, (None, A))
