"""A first load into a lake of Delta tables: each row once, wherever it is killed, and mirrors that are upstream's. And
one from a lake: it gives another destination what TiDB would give it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from binlog.tidb.job import ActionType

from drainer.__main__ import main
from drainer.apply.progress import LoadProgress
from drainer.lake.at import LakeTables, NotThere, at, position_of
from drainer.ranges import upstream
from drainer.ranges.load import creation, reads
from drainer.ranges.upstream import Source
from drainer.row.column_type import DecodedValue
from drainer.schema.history.base import JobHistory
from drainer.service.first_load import load
from drainer.sink.base import FirstStart, unfinished
from drainer.sink.errors import DestinationRefused
from tests.integration.sink.test_lake import dies_at
from tests.support.change_replay import WHO, replay_binlogs
from tests.support.killing import Killed, killed_at
from tests.support.lake_case import delta_session, jars, lake
from tests.support.memory_etcd import MemoryEtcd
from tests.support.row_case import transaction, view_of
from tests.support.row_changes import make_table
from tests.support.row_packets import shown
from tests.support.schema_case import job
from tests.support.typed_columns import COLUMNS, TWO_VALUES, typed_row
from tests.support.upstream_case import Answer, FakeSession
from tests.unit.drainer.ranges.test_load import BAG, BOTH, FIRST, KEYED, ROWS, TS
from tests.unit.drainer.ranges.test_load_changes import first_load
from tests.unit.drainer.service.test_first_load import IDS, ORDERS, cluster, settings, start
from tests.unit.drainer.service.test_first_load import ROWS as ORDER_ROWS

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

LIVES = [
    "lake.history_defined:2",
    "sink.after_commit:5",
    "load.divided",
    "lake.range_written",
    "lake.range_committed:2",
    "lake.range_committed:2",
    "lake.load_ended",
    "lake.merged",
    "lake.load_merged",
]
END = 200


@pytest.fixture
def spark(java: None, tmp_path: Path) -> Iterator[Any]:
    with delta_session(tmp_path / "delta") as session:
        yield session


def life(spark: Any, directory: Path, first: FirstStart = FIRST) -> int:
    """Load what is left, and return the position."""
    sink = lake(directory, spark)
    try:
        sink.open(WHO, TS, first)
        assert first_load(sink).run()
        assert not unfinished(sink.loads(), BOTH.tables)
        return sink.commit_ts
    finally:
        sink.close(clean=False)


def rows(tables: dict[Any, Any]) -> dict[str, list[tuple[Any, ...]]]:
    return {name: sorted(map(tuple, found.select("id", "name").collect())) for (_, name), found in tables.items()}


def stream(spark: Any, directory: Path) -> None:
    """An update, a delete and an insert in the table with a key; in the other one a row like another, and a delete."""
    a, b, c, d = ({1: number, 2: name} for number, name in ((1, b"a"), (2, b"b"), (1, b"z"), (4, b"d")))
    first = [(KEYED, ("update", a, c)), (BAG, ("insert", {}, b))]
    second = [(KEYED, ("delete", b, {})), (KEYED, ("insert", {}, d)), (BAG, ("delete", a, {}))]
    jobs = (
        job(1, ActionType.CREATE_SCHEMA, 1, schema=(1, "db"), finished_ts=1),
        job(2, ActionType.CREATE_TABLE, 2, schema_id=1, table_id=5, table_info=KEYED, finished_ts=2),
        job(3, ActionType.CREATE_TABLE, 3, schema_id=1, table_id=6, table_info=BAG, finished_ts=3),
    )
    binlogs = [
        transaction(first, commit_ts=100, start_ts=99, version=3),
        transaction(second, commit_ts=END, start_ts=199, version=3),
    ]
    replay_binlogs(lake(directory, spark), binlogs, JobHistory(jobs), [100, END], initial_ts=0)


def test_load_killed_on_the_way_has_each_row_once_and_the_stream_continues(spark: Any, tmp_path: Path) -> None:
    directory, loaded = tmp_path / "lake", {"keyed": sorted(ROWS), "bag": sorted(ROWS)}
    for point in LIVES:
        with contextlib.suppress(Killed), dies_at(point):
            life(spark, directory)
        with pytest.raises(NotThere, match="not complete"):
            position_of(spark, directory)
    begin_ts = life(spark, directory)
    assert position_of(spark, directory) == begin_ts
    assert at(spark, directory, begin_ts - 1) == {}, "of what was before the load nothing is known"
    for name in ("keyed", "bag"):
        history = spark.read.format("delta").load(str(directory / "db" / f"{name}__changes")).collect()
        assert sorted((row.after.id, row.after.name) for row in history) == sorted(ROWS)
        assert {(row.kind, row.commit_ts, row.start_ts) for row in history} == {("insert", begin_ts, begin_ts)}
        mirror = spark.read.format("delta").load(str(directory / "db" / name))
        assert sorted(map(tuple, mirror.select("id", "name").collect())) == sorted(ROWS)
        done = spark.sql(f"DESCRIBE HISTORY delta.`{directory / 'db' / name}`").where("version = 1").collect()
        assert [one.operation for one in done] == ["WRITE"], "loaded rows are copied, not merged"
    stream(spark, directory)
    after = {"keyed": [(1, "z"), (3, "c"), (4, "d")], "bag": [(2, "b"), (2, "b"), (3, "c")]}
    for tso, expected in ((begin_ts, loaded), (99, loaded), (END, after)):
        assert rows(at(spark, directory, tso)) == expected, tso
    shutil.rmtree(directory / "_control")
    with pytest.raises(DestinationRefused, match="from before this first load"):
        life(spark, directory)


def test_command_loads_into_a_lake_with_a_session_of_its_own(
    java: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {
        "id": 6, "type": 3, "schema_id": 2, "table_id": 5, "schema_name": "shop", "state": 6,
        "binlog": {"SchemaVersion": 2, "FinishedTS": 9, "TableInfo": ORDERS.to_json()},
    }  # fmt: skip
    (tmp_path / "history.json").write_text(json.dumps([made]))
    (tmp_path / "drainer.toml").write_text(
        f'node-id = "d"\ndata-dir = "{tmp_path}"\n[schema]\nhistory-file = "{tmp_path / "history.json"}"\n'
        f'[upstream]\nhost = "tidb"\n[syncer]\ndb-type = "delta"\n[syncer.to]\ndir = "{tmp_path / "lake"}"\n'
        f'[spark.conf]\n"spark.jars" = "{jars()}"\n"spark.sql.shuffle.partitions" = "2"\n'
    )
    args = mock.patch("sys.argv", ["drainer", "load", "-config", str(tmp_path / "drainer.toml")])
    with args, cluster(MemoryEtcd(), FakeSession(IDS, ORDER_ROWS, [], ORDER_ROWS)):
        assert main() == 0, capsys.readouterr().err
    with delta_session(tmp_path / "reader") as spark:
        tables = at(spark, tmp_path / "lake", position_of(spark, tmp_path / "lake"))
        assert rows(tables) == {"orders": [(1, "a"), (2, None)]}


TYPED = replace(make_table("db", "typed", COLUMNS, primary=["id"]).info, id=7)
NAMED = replace(make_table("db", "named", COLUMNS, primary=["name", "day"]).info, id=8)
ALL = view_of(KEYED, BAG, TYPED, NAMED)
SOURCES = {id_: source for id_ in ALL.tables if (source := Source.of(ALL, id_, "db"))}
SEVERAL = [typed_row(1), typed_row(2, list(TWO_VALUES)), [3, *([None] * (len(COLUMNS) - 1))], typed_row(-4, ["name"])]
DAY = [name for name, _ in COLUMNS].index("day")
VALUES: dict[int, list[list[DecodedValue]]] = {
    5: [[number, name.encode()] for number, name in ROWS],
    6: [[1, b"a"], [1, b"a"], [2, None]],
    7: SEVERAL,
    8: [SEVERAL[0], SEVERAL[1], SEVERAL[3]],
}


def write_lake(spark: Any, directory: Path) -> None:
    """Rows at 20 and, in one table, at 30; half of the mirrors' rows are merged."""
    sink = lake(directory, spark)
    sink.open(WHO, 1)
    for number, table_id in enumerate(SOURCES, 2):
        sink.ddl(creation(table_id, ALL.tables[table_id], number))
    for number, (table_id, source) in enumerate(SOURCES.items(), 17):
        kinds = [column_type for _, column_type in source.columns_read]
        columns = zip(kinds, zip(*VALUES[table_id], strict=True), strict=True)
        cells = [pa.array(column, of.decoded_type) for of, column in columns]
        sink.apply(replace(reads(source, cells, number, 0), after_ts=sink.commit_ts), 9)
        if number == 18:
            sink.merge_now()
    later = [
        pa.array(one, of.decoded_type) for one, (_, of) in zip(([9], [b"x"]), SOURCES[5].columns_read, strict=True)
    ]
    sink.apply(replace(reads(SOURCES[5], later, 30, 0), after_ts=20), 9)
    sink.close(clean=True)


def tables_in(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with contextlib.closing(sqlite3.connect(path)) as file:
        names = (source.info.name for source in SOURCES.values())
        return {name: sorted(file.execute(f'SELECT * FROM "db.{name}"').fetchall(), key=repr) for name in names}


def test_load_from_a_lake_gives_what_one_from_tidb_gives_and_is_continued(spark: Any, tmp_path: Path) -> None:
    write_lake(spark, tmp_path / "lake")
    jobs = [
        {
            "id": 10 + id_, "type": 3, "schema_id": 2, "table_id": id_, "schema_name": "db", "state": 6,
            "binlog": {"SchemaVersion": id_, "FinishedTS": id_, "TableInfo": ALL.tables[id_].current.to_json()},
        }
        for id_ in SOURCES
    ]  # fmt: skip
    (tmp_path / "history.json").write_text(json.dumps(jobs))
    config = tmp_path / "drainer.toml"

    def loaded(name: str, at_ts: int | None, *sessions: FakeSession) -> dict[str, list[tuple[object, ...]]]:
        """`sessions`: of TiDB; none: from the lake."""
        config.write_text(
            f'node-id = "d"\n[schema]\nhistory-file = "{tmp_path / "history.json"}"\n[upstream]\nhost = "tidb"\n'
            f'[syncer]\ndb-type = "sqlite"\n[syncer.to]\npath = "{tmp_path / name}"\n'
        )
        origin = None if sessions else LakeTables(str(tmp_path / "lake"), "default", at_ts)
        opening = mock.Mock(session=lambda: spark)
        with cluster(MemoryEtcd(), *sessions):
            assert asyncio.run(load(settings(config), asyncio.Event(), LoadProgress(), opening, origin=origin))
        return tables_in(tmp_path / name)

    without_zero = [[*row[:DAY], row[DAY] or None, *row[DAY + 1 :]] for row in VALUES[7]]
    answers: list[Answer] = [
        [[shown(of, cell) for (_, of), cell in zip(SOURCES[id_].columns_read, row, strict=True)] for row in rows_]
        for id_, rows_ in (VALUES | {7: without_zero}).items()
    ]
    ids: Answer = [[b"%d" % id_] for id_ in SOURCES]
    divided: list[Answer] = [one for answer in answers for one in (answer, [])]
    from_tidb = loaded("tidb.sqlite", None, FakeSession(ids, *divided, *answers))
    small = {"ROWS_MAX": 2, "SAMPLED_ROWS": 2}
    with mock.patch.multiple(upstream, **small):
        with killed_at(7, "drainer.ranges.load"):  # the third range: that of table 6
            loaded("lake.sqlite", 20)
        with pytest.raises(DestinationRefused, match="is one as of 20: continue it without -at"):
            loaded("lake.sqlite", 19)
        assert loaded("lake.sqlite", None) == from_tidb
    assert asyncio.run(start(config.rename(tmp_path / "started.toml"))) == 20
    with pytest.raises(NotThere, match="its position is 30, before 31"):
        loaded("late.sqlite", 31)
    assert not (tmp_path / "late.sqlite").exists()
