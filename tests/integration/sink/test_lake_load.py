"""A first load into a lake of Delta tables: each row once, wherever it is killed, and mirrors that are upstream's."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from binlog.tidb.job import ActionType

from drainer.__main__ import main
from drainer.lake.at import NotThere, at, position_of
from drainer.schema.history.base import JobHistory
from drainer.sink.base import FirstStart, unfinished
from drainer.sink.errors import DestinationRefused
from tests.integration.sink.test_lake import dies_at
from tests.support.change_replay import WHO, replay_binlogs
from tests.support.killing import Killed
from tests.support.lake_case import delta_session, jars, lake
from tests.support.memory_etcd import MemoryEtcd
from tests.support.row_case import transaction
from tests.support.schema_case import job
from tests.support.upstream_case import FakeSession
from tests.unit.drainer.ranges.test_load import BAG, BOTH, FIRST, KEYED, ROWS, TS
from tests.unit.drainer.ranges.test_load_changes import first_load
from tests.unit.drainer.service.test_first_load import IDS, ORDERS, cluster
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
