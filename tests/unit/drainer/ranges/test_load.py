"""A first load creates the tables and loads each range once, wherever it is interrupted."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from binlog.tidb.job import ActionType
from binlog.tidb.table import DBInfo
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.apply.progress import LoadProgress
from drainer.batch.work import Kind, Pieces
from drainer.ddl.mysql_tables import create_table
from drainer.ranges.load import PART_RANGES, TRIES_MAX, FirstLoad, creation, database, next_range, parts, shares
from drainer.ranges.upstream import DefinitionChanged, Range, SnapshotGone, Upstream, UpstreamDown
from drainer.schema.job_policy import RewriteRule, RewriteRules
from drainer.schema.steps import Ddl
from drainer.schema.view import SchemaView
from drainer.sink.base import SCHEMA_ID, FirstStart, Identity, TableLoad, unfinished
from drainer.sink.errors import DdlFailed, DestinationError, DestinationRefused, Fenced, PositionMoved
from drainer.sink.mysql.connection import ConnectionLost, ServerError
from drainer.sink.mysql.ddl.job_plan import JobPlan, Server, plan_of
from drainer.sink.sqlite.sink import SQLiteSink
from tests.support.killing import killed_at
from tests.support.row_case import view_of
from tests.support.row_changes import make_table
from tests.support.typed_columns import text_type
from tests.support.upstream_case import FakeUpstream

KINDS = [("id", FieldType(Tp.LONG, Flag.NOT_NULL)), ("name", text_type(Tp.VARCHAR))]
KEYED = replace(make_table("db", "keyed", KINDS, primary=["id"]).info, id=5)
BAG = replace(make_table("db", "bag", KINDS).info, id=6)
BOTH = view_of(KEYED, BAG)
ROWS = [(3, "c"), (1, "a"), (2, "b")]
TS = 42
FIRST = FirstStart((("db", "keyed"), ("db", "bag")), loads=True)


def upstream_of(*errors: DestinationError | None) -> FakeUpstream:
    return FakeUpstream({number: (b"%d" % number, name.encode()) for number, name in ROWS}, *errors)


def first_load(
    sink: SQLiteSink,
    upstream: FakeUpstream,
    view: SchemaView = BOTH,
    stop: threading.Event | None = None,
    databases: Sequence[DBInfo] = (),
    rewrite: RewriteRules | None = None,
    progress: LoadProgress | None = None,
) -> FirstLoad:
    schemas, stop = dict.fromkeys(view.tables, "up"), stop or threading.Event()
    return FirstLoad(
        sink,
        view,
        schemas,
        Upstream(upstream.connect),
        progress or LoadProgress(),
        schema_version=9,
        stop=stop,
        databases=databases,
        rewrite=rewrite or RewriteRules(),
        pause_s=0,
    )


@contextlib.contextmanager
def opened(path: Path) -> Iterator[SQLiteSink]:
    sink = SQLiteSink(path)
    try:
        assert sink.open(Identity(7, "main", "one"), TS, FIRST).commit_ts == TS
        yield sink
    finally:
        sink.close(clean=False)


def tables_in(path: Path) -> list[list[tuple[object, ...]]]:
    with contextlib.closing(sqlite3.connect(path)) as file:
        return [file.execute(f'SELECT * FROM "db.{name}" ORDER BY id').fetchall() for name in ("keyed", "bag")]


def test_first_load_killed_at_any_point_is_continued_and_loads_each_row_once(tmp_path: Path) -> None:
    for nth in itertools.count(1):
        path, killed = tmp_path / f"{nth}.sqlite", True
        with killed_at(nth, "drainer.sink.sqlite.file"), opened(path) as sink:
            first_load(sink, upstream_of()).run()
            killed = False
        upstream = upstream_of()
        with opened(path) as sink:
            assert first_load(sink, upstream).run()
            assert not unfinished(sink.loads(), BOTH.tables)
            assert sink.commit_ts == TS
        assert tables_in(path) == [sorted(ROWS), sorted(ROWS)]
        if not killed:
            assert upstream.read == 0
            break
    assert nth > 20, "opening, two tables, their list, two divisions and four ranges, each twice"


def test_stream_may_not_begin_while_a_range_is_missing(tmp_path: Path) -> None:
    with opened(tmp_path / "x") as sink:
        stop = threading.Event()
        load = first_load(sink, upstream_of(), stop=stop)
        steps = 0
        while unfinished(sink.loads(), BOTH.tables):
            assert sum(one.loaded for one in sink.loads()) < 5
            with mock.patch.object(stop, "is_set", side_effect=[False, False, True, True]):
                assert not load.run()
            steps += 1
        assert steps == 7, "the tables, two divisions, four ranges"
        assert tables_in(tmp_path / "x") == [sorted(ROWS), sorted(ROWS)]


def test_loads_begin_with_the_tables_themselves_and_end_with_those_that_are_replicated(tmp_path: Path) -> None:
    with opened(tmp_path / "x") as sink:
        assert sink.loads() == unfinished(sink.loads(), ()) == [TableLoad(SCHEMA_ID, ())]
    left = [TableLoad(6, (("2",),), 1), TableLoad(5)]
    assert unfinished([*left, TableLoad(7, (), 1), TableLoad(8), TableLoad(9)], (5, 6, 7, 9)) == [
        TableLoad(5),
        TableLoad(9),
        left[0],
    ], "what is not divided is first"


def test_progress_counts_all_ranges_before_the_first_is_loaded_and_rows_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each step is seen; a range that is read again after an error counts once."""
    seen: list[tuple[int, ...]] = []
    progress = LoadProgress(itertools.count().__next__)  # each reading a second after the one before

    def watch() -> None:
        seen.append((progress.divided, progress.ranges, progress.loaded, progress.rows))

    progress.watch = watch
    assert progress.phase() == ""
    lost = ConnectionLost("gone")
    caplog.set_level("INFO")
    with opened(tmp_path / "x") as sink:
        assert first_load(sink, upstream_of(None, None, lost, *[None] * 4, lost), progress=progress).run()
    assert next(one for one in seen if one[0] == 2) == (2, 4, 0, 0), "divided before anything is loaded"
    assert (progress.divided, progress.ranges, progress.loaded, progress.rows) == (2, 4, 4, 6)
    assert progress.bytes == 2 * sum(len(b"%d" % number) + len(name) + 2 for number, name in ROWS)
    assert (progress.phase(), progress.document()["secondsLeft"]) == ("", 0)
    lines = [record.message for record in caplog.records if "progress of the first load" in record.message]
    assert 0 < len(lines) < len(seen)
    assert "ranges=4" in lines[-1]


def test_time_left_is_that_of_the_ranges_left_and_counts_none_that_were_loaded_before() -> None:
    clock = mock.Mock(return_value=100.0)
    progress = LoadProgress(clock)
    progress.begin([TableLoad(5, (("2",), ("3",)), 2), TableLoad(6)])
    assert progress.phase() == "first load: 1 of 2 tables divided, 3 ranges"
    clock.return_value = 130.0
    progress.find(1)
    progress.find(7)
    progress.divide()
    assert [*progress.document().values()] == [2, 2, 10, 2, 0, 0, 0, None]
    clock.return_value = 140.0
    progress.read(500, 9000)
    progress.load()
    assert progress.phase() == "first load: 3 of 10 ranges"
    assert [*progress.document().values()] == [2, 2, 10, 3, 500, 9000, 50, 70]


def test_destination_that_has_a_table_is_refused(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "x")) as file:
        file.execute('CREATE TABLE "db.bag" (id)')
    refused = pytest.raises(DestinationRefused, match=r"1 of them are there, such as db\.bag: drop them")
    with refused, opened(tmp_path / "x"):
        pass
    sink = SQLiteSink(tmp_path / "x")
    assert sink.open(Identity(7, "main", "one"), TS).fresh, "nothing was stored"
    sink.close(clean=True)


def test_upstream_that_does_not_answer_is_asked_again_and_nothing_of_a_range_is_written_before(tmp_path: Path) -> None:
    lost = ConnectionLost("gone")
    with opened(tmp_path / "x") as sink:
        assert first_load(sink, upstream_of(None, lost, None, None, lost, lost, None, lost)).run()
    assert tables_in(tmp_path / "x") == [sorted(ROWS), sorted(ROWS)]


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ConnectionLost("gone"), UpstreamDown, r"\[upstream\] does not answer"),
        (ServerError(9006, "GC", "host:4000"), SnapshotGone, r"tidb_gc_life_time.*empty the destination.*begin anew"),
        (ServerError(1054, "b", "host:4000"), DefinitionChanged, r"not the one of the schema.*empty.*begin anew"),
    ],
)
def test_first_load_that_cannot_go_on_says_what_to_do(
    tmp_path: Path, error: DestinationError, kind: type[Exception], text: str
) -> None:
    with opened(tmp_path / "x") as sink, pytest.raises(kind, match=text):
        first_load(sink, upstream_of(*[error] * TRIES_MAX)).run()


def test_range_that_is_recorded_is_not_written_again(tmp_path: Path) -> None:
    """The answer to the first attempt was lost. Nothing else would keep rows without a key from being there twice."""
    with opened(tmp_path / "x") as sink:
        first_load(sink, upstream_of()).run()
        for number, error in ((1, None), (3, PositionMoved)):
            pieces = Pieces(TS, TS, mock.Mock(side_effect=AssertionError("read")), (BAG.id, 0, number))
            with pytest.raises(error) if error else contextlib.nullcontext():
                sink.apply_pieces(pieces, 9)


def test_nothing_is_written_after_another_drainer_has_taken_over(tmp_path: Path) -> None:
    with opened(tmp_path / "x") as sink:
        with contextlib.closing(sqlite3.connect(tmp_path / "x")) as file:
            file.execute('UPDATE "tidb_binlog.drainer_position" SET epoch = epoch + 1')
            file.commit()
        with pytest.raises(Fenced):
            first_load(sink, upstream_of()).run()
        with pytest.raises(Fenced):
            sink.put_loads([TableLoad(KEYED.id)])
        assert len(sink.loads()) == 1


def test_table_whose_inserts_are_left_out_is_created_and_not_loaded(tmp_path: Path) -> None:
    view = replace(BOTH, ignored_kinds={BAG.id: frozenset({Kind.INSERT})})
    with opened(tmp_path / "x") as sink:
        assert first_load(sink, upstream_of(), view).run()
    assert tables_in(tmp_path / "x") == [sorted(ROWS), []]


def test_ranges_of_a_table_lie_between_its_borders() -> None:
    assert next_range(TableLoad(5, ())) == Range()
    assert [next_range(TableLoad(5, (("1",), ("2",)), loaded)) for loaded in range(3)] == [
        Range(None, ("1",)),
        Range(("1",), ("2",)),
        Range(("2",), None),
    ]


def test_tables_are_loaded_by_tasks_in_parts_that_are_the_whole() -> None:
    borders = [(str(number),) for number in range(1, 40)]
    found = parts(TableLoad(5), borders)
    assert [(one.part, one.left) for one in found] == [(0, PART_RANGES), (1, PART_RANGES), (2, 40 - 2 * PART_RANGES)]
    ranges = [next_range(replace(one, loaded=loaded)) for one in found for loaded in range(one.left)]
    ends = [None, *borders, None]
    assert ranges == [Range(*pair) for pair in itertools.pairwise(ends)]
    assert parts(TableLoad(5), []) == [TableLoad(5, ())]
    small = [TableLoad(table_id, (), 0) for table_id in range(10, 30)]
    shared = shares([*found, *small])
    assert [one for share in shared for one in share] == [*found, *small]
    assert [sum(one.left for one in share) for share in shared] == [16, 16, 16, 12]


def test_parts_of_a_table_that_upstream_has_dropped_hold_nothing_up(tmp_path: Path) -> None:
    with opened(tmp_path / "x") as sink:
        sink.put_loads([], TableLoad(SCHEMA_ID, ()))
        sink.put_loads(parts(TableLoad(7), [(str(number),) for number in range(1, 40)]))
        assert first_load(sink, upstream_of()).run()
        assert [(one.table_id, one.part) for one in sink.loads()] == [(SCHEMA_ID, 0), (7, 0), (7, 1), (7, 2)]
        assert all(one.is_complete for one in sink.loads())


def test_records_of_a_load_are_not_read_for_each_range(tmp_path: Path) -> None:
    """There may be one for each of 100,000 tables, or 100,000 borders in one."""
    with opened(tmp_path / "x") as sink, mock.patch.object(sink, "loads", side_effect=sink.loads) as read:
        assert first_load(sink, upstream_of()).run()
    assert read.call_count == 4, "at the begin, before and after the tables are divided, at the end"


def test_created_table_is_that_of_the_destination() -> None:
    step = creation(KEYED.id, BOTH.tables[KEYED.id], TS)
    assert (step.job.id, step.commit_ts, step.may_exist) == (-KEYED.id, TS, True)
    (change,) = step.changes
    assert change.after is not None
    assert (change.before, change.after.schema, change.after.info) == (None, "db", KEYED)


@pytest.mark.parametrize("flavour", ["mysql", "mariadb", "tidb"])
def test_server_creates_the_database_and_the_table_from_its_definition(flavour: str) -> None:
    server = Server(flavour)
    plan = plan_of(creation(KEYED.id, BOTH.tables[KEYED.id], TS), server, may_exist=True)
    assert plan.sql == ("CREATE DATABASE IF NOT EXISTS `db`", create_table("db", KEYED, server.dialect()))
    assert (plan.job_id, plan.commit_ts, plan.may_exist, plan.clock) == (-KEYED.id, TS, True, "")
    assert JobPlan.parse(plan.text()) == plan


@pytest.mark.parametrize("flavour", ["mysql", "mariadb", "tidb"])
def test_server_creates_a_database_with_the_character_set_of_upstream(flavour: str) -> None:
    """As the stream does; without it if the DDL history does not say it."""
    plan = plan_of(database(DBInfo(9, "emp`ty", "latin1", "latin1_bin"), TS), Server(flavour), may_exist=False)
    sql = "CREATE DATABASE `emp``ty` DEFAULT CHARACTER SET latin1 COLLATE latin1_bin"
    assert (plan.job_id, plan.sql, plan.use) == (-9, (sql,), "")
    assert JobPlan.parse(plan.text()) == plan
    unknown = plan_of(database(DBInfo(9, "d", "", ""), TS), Server(flavour), may_exist=False)
    assert unknown.sql == ("CREATE DATABASE `d`",)


def test_database_that_the_destination_refuses_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def ddl(step: Ddl, *, may_exist: bool = False) -> None:
        if step.job.type is ActionType.CREATE_SCHEMA:
            raise DdlFailed("no privilege", job_id=step.job.id, commit_ts=TS)

    with opened(tmp_path / "x") as sink, mock.patch.object(sink, "ddl", side_effect=ddl) as ran:
        assert first_load(sink, upstream_of(), view_of(), databases=[DBInfo(9, "empty")]).run()
    assert [call.args[0].job.id for call in ran.call_args_list] == [-9]
    assert "an upstream database is not created" in caplog.text


def test_operator_may_say_how_a_table_is_created(tmp_path: Path) -> None:
    """As the error of a statement that failed advises."""
    sql = ("CREATE TABLE db.keyed (id INT)",)
    rules = RewriteRules([RewriteRule(sql, job_id=-KEYED.id), RewriteRule((), job_id=-BAG.id)])
    with opened(tmp_path / "x") as sink, mock.patch.object(sink, "ddl") as ran, contextlib.suppress(DestinationError):
        first_load(sink, upstream_of(), rewrite=rules).run()
    (step,) = (call.args[0] for call in ran.call_args_list)
    assert (step.job.id, step.sql, step.rewritten) == (-KEYED.id, sql, True)
