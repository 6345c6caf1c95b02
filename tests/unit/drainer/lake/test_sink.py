"""Which table of a lake a DDL and rows belong to, without Spark: by upstream's ids, whatever becomes of names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from binlog.tidb.job import ActionType
from binlog.tidb.table import TableInfo

from drainer.batch.work import Pieces
from drainer.lake.control import MirrorVersion
from drainer.lake.section import LakeSection
from drainer.lake.sink import LakeSink
from drainer.lake.tables import Entry, Registry
from drainer.schema.steps import Ddl, Located, TableChange
from drainer.sink.base import NO_QUESTION, SCHEMA_ID, FirstStart, TableLoad
from drainer.sink.document_position import Document, DocumentPositionStore
from drainer.sink.errors import DestinationDown, DestinationRefused, PositionMoved
from tests.support.change_replay import WHO
from tests.support.row_case import INT, table
from tests.support.schema_case import job


class World:
    """A sink whose tables and control table are in memory. `fails`: making a mirror fails."""

    def __init__(self, directory: Path) -> None:
        self.document, self.versions, self.ts, self.fails = Document(), list[MirrorVersion](), 0, False
        self.loaded = dict[int, int]()
        self._directory = directory
        self.open()

    def open(self, first: FirstStart = NO_QUESTION) -> None:
        self.sink = LakeSink(LakeSection(dir=str(self._directory)))
        self.sink.session = mock.Mock()
        merger = SimpleNamespace(lock=Lock(), merge=lambda *_: None, raise_error=lambda: None, close=lambda: None)
        made = {
            "Delta": mock.Mock(),
            "Control": lambda *_: self,
            "Tables": lambda *_: self,
            "Merger": lambda *_: merger,
        }
        with ExitStack() as stack:
            for name, one in made.items():
                stack.enter_context(mock.patch(f"drainer.lake.sink.{name}", one))
            self.sink.open(WHO, 0, first)

    @contextmanager
    def transaction(self, versions: Sequence[MirrorVersion] = ()) -> Iterator[DocumentPositionStore]:
        store = DocumentPositionStore(deepcopy(self.document), "x")
        yield store
        self.document = store.document
        self.versions += versions

    def define_mirror(self, entry: Entry, *_: object) -> int:
        if self.fails:
            raise DestinationDown("full")
        return self.ts

    def version(self, entry: Entry) -> int:
        return self.ts

    def ranges(self, entry: Entry) -> int:
        return self.loaded.get(entry.table_id, 0)

    def add_range(self, entry: Entry, number: int, actions: Sequence[object]) -> None:
        self.loaded[entry.table_id] = number + 1

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None

    def ddl(self, kind: ActionType, *changes: tuple[TableInfo | None, TableInfo | None]) -> None:
        self.ts += 10
        found = tuple(TableChange(*(one and Located(one.id, "s", one) for one in pair)) for pair in changes)
        self.sink.ddl(Ddl(job(self.ts, kind, self.ts), self.ts, False, "s", "", (), "", self.ts, found))

    @property
    def tables(self) -> dict[str, tuple[str, bool]]:
        """By name the path under the schema, and whether there is a mirror; as a restart finds them."""
        found = Registry(self.document.notes).tables.values()
        return {one.table: (one.path.removeprefix("s/"), one.mirrored) for one in found}

    @property
    def shown(self) -> dict[str, str]:
        """What `at` shows: the name of each mirror by its path."""
        newest = {one.path.removeprefix("s/"): one for one in self.versions}
        return {path: one.table for path, one in newest.items() if one.version >= 0}


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


def test_tables_that_exchange_names_at_once_keep_their_mirrors(both: World) -> None:
    both.ddl(ActionType.RENAME_TABLES, (A, replace(A, name="b")), (B, replace(B, name="a")))
    assert both.tables == {"b": ("a", True), "a": ("b", True)}


def test_table_with_the_name_of_one_that_left_unseen_has_files_of_its_own(both: World) -> None:
    both.ddl(ActionType.CREATE_TABLE, (None, named("a", 3)))  # the first one got a name that is filtered
    assert both.tables == {"a": ("a-3", True), "b": ("b", True)}
    assert both.shown == {"a-3": "a", "b": "b"}


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
    both.fails = True
    with pytest.raises(DestinationDown):
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
    assert set(Registry(both.document.notes).dropped) == {1}
    assert both.tables == {"a": ("a", True), "b": ("b", True)}


@pytest.fixture
def loading(tmp_path: Path) -> Iterator[World]:
    """Both tables are created for a first load, and listed."""
    made = World(tmp_path)
    made.sink.close(clean=True)
    made.document = Document()
    made.open(FirstStart(loads=True))
    made.ddl(ActionType.CREATE_TABLES, (None, A), (None, B))
    made.sink.put_loads([TableLoad(1), TableLoad(2)], done=TableLoad(SCHEMA_ID, ()))
    made.sink.put_loads([TableLoad(1, (("5",),)), TableLoad(2, ())])
    yield made
    made.sink.close(clean=True)


def load(world: World, table_id: int, number: int) -> None:
    world.sink.apply_pieces(Pieces(world.ts, world.ts, lambda: (), (table_id, 0, number)), 1)


def test_mirrors_are_shown_when_all_tables_are_loaded_and_not_before(loading: World) -> None:
    for table_id, number in ((1, 0), (1, 1), (2, 0)):
        assert loading.versions == []
        load(loading, table_id, number)
    assert [one.left for one in loading.sink.loads()] == [0, 0, 0], "histories have counted them"
    assert loading.document.is_loading, "the control table has not"
    ended = [TableLoad(table_id, (), 1) for table_id in (SCHEMA_ID, 1, 2)]
    loading.sink.put_loads(ended)
    assert {(one.until_ts, one.path) for one in loading.versions} == {(loading.ts, "s/a"), (loading.ts, "s/b")}
    loading.sink.put_loads(ended)
    assert len(loading.versions) == 2, "and once"


def test_range_that_is_not_the_next_one_of_its_table_is_not_written(loading: World) -> None:
    load(loading, 1, 0)
    for number in (0, 2):
        with pytest.raises(PositionMoved, match=f"range {number} of s.a is not the next"):
            load(loading, 1, number)
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
