"""Parts of tables are loaded by tasks beside one another, in threads with a real server, and by Spark's workers."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from drainer.apply.fold_order import PackedView
from drainer.apply.progress import LoadProgress
from drainer.config import Config
from drainer.ranges import load as module
from drainer.ranges.load import FirstLoad, LoadTask
from drainer.ranges.upstream import Snapshot, Upstream, UpstreamRefused
from drainer.service.on_spark import distribute
from drainer.sink.base import Intent, TableLoad, unfinished
from drainer.sink.errors import Fenced, PositionMoved
from drainer.sink.mysql.sink import MySQLSink
from tests.integration.sink.case import opened
from tests.integration.sink.test_first_load import BAG, KEYED, ROWS, TS, destination, two_columns
from tests.support.row_case import view_of
from tests.support.servers import MariaDB, wait_until
from tests.support.upstream_case import FakeUpstream

pytestmark = pytest.mark.integration
VIEW = view_of(KEYED, BAG)
SCHEMAS = dict.fromkeys(VIEW.tables, "up")


class Sum:
    """Stands for an accumulator."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, value: int) -> None:
        self.value += value


def connected(ts: int) -> Snapshot:
    return two_columns().connect(ts)


def killed_once(mark: Path, ts: int) -> Snapshot:
    """Kill the worker that comes first."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return connected(ts)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def refused(ts: int) -> Snapshot:
    raise UpstreamRefused("no SELECT")


def hanging(mark: Path, ts: int) -> Snapshot:
    mark.touch()
    signal.pause()
    raise AssertionError


def divided(sink: MySQLSink, upstream: FakeUpstream, distribute: Any, stop: threading.Event | None = None) -> bool:
    """Create and divide the tables into parts of one range, and give these to `distribute`."""
    connected, progress, stop = Upstream(upstream.connect), LoadProgress(), stop or threading.Event()
    with mock.patch.multiple(module, DISTRIBUTED_RANGES=2, PART_RANGES=1):
        return FirstLoad(
            sink, VIEW, SCHEMAS, connected, progress, schema_version=9, stop=stop, distribute=distribute
        ).run()


def task_of(sink: MySQLSink, connect: Any = connected, rows: Any = None, size: Any = None) -> LoadTask:
    return LoadTask(sink.for_tasks(), connect, PackedView.of(VIEW), SCHEMAS, 9, rows or Sum(), size or Sum())


@pytest.fixture
def parts(mariadb: MariaDB) -> Iterator[tuple[MySQLSink, list[TableLoad]]]:
    class Ready(Exception):
        pass

    with destination(mariadb, VIEW) as sink:
        with pytest.raises(Ready):
            divided(sink, two_columns(), mock.Mock(side_effect=Ready))
        found = unfinished(sink.loads(), VIEW.tables)
        assert [(one.table_id, one.part, one.lower, one.borders, one.upper) for one in found] == [
            (table_id, *part) for table_id in (5, 6) for part in ((0, None, (), ("2",)), (1, ("2",), (), None))
        ]
        yield sink, found


def rows_in(mariadb: MariaDB) -> list[list[tuple[object, ...]]]:
    return [mariadb.query(f"SELECT id, name FROM db.{name} ORDER BY id") for name in ("keyed", "bag")]


def test_tasks_write_at_the_same_time_and_each_row_once(
    mariadb: MariaDB, parts: tuple[MySQLSink, list[TableLoad]]
) -> None:
    (sink, left), together = parts, threading.Barrier(len(parts[1]), timeout=60)

    class Waiting(FakeUpstream):
        def packets(self, sql: bytes, block_bytes: int) -> Any:
            together.wait()  # all are within their transactions
            return super().packets(sql, block_bytes)

    task = task_of(sink)
    with ThreadPoolExecutor(len(left)) as pool:
        waiting = [replace(task, connect=Waiting(two_columns().rows).connect) for _ in left]
        assert [*pool.map(lambda one: one[0]([one[1]]), zip(waiting, left, strict=True))] == [None] * 4
    assert rows_in(mariadb) == [ROWS, ROWS]
    assert (task.rows.value, task.size.value > 0) == (6, True)
    with pytest.raises(PositionMoved, match="is not the next one"):
        task([replace(left[0], part=9)])
    task(left)  # as Spark may begin it again
    assert rows_in(mariadb) == [ROWS, ROWS]
    assert divided(sink, two_columns(), None)
    assert sink.commit_ts == TS


def test_task_of_a_former_drainer_or_of_a_load_that_was_begun_anew_writes_nothing(
    mariadb: MariaDB, parts: tuple[MySQLSink, list[TableLoad]]
) -> None:
    sink, (part, *_) = parts
    task = pickle.loads(pickle.dumps(task_of(sink)))
    begun = task.sink()
    assert begun.loads() == sink.loads()
    mariadb.query("UPDATE tidb_binlog.drainer_position SET commit_ts = commit_ts + 1")
    with pytest.raises(PositionMoved):
        task([part])
    mariadb.query("UPDATE tidb_binlog.drainer_position SET commit_ts = commit_ts - 1")
    sink.begin(Intent(TS, TS + 1, 1, 0, 1, ""))
    with pytest.raises(PositionMoved, match="is open"):
        task([part])
    mariadb.query("UPDATE tidb_binlog.drainer_position SET intent = NULL")
    opened(mariadb, at=TS).close(clean=False)
    for former in (task, replace(task, sink=lambda: begun)):
        with pytest.raises(Fenced):
            former([part])
    assert rows_in(mariadb) == [[], []]


@pytest.mark.slow
def test_workers_load_what_is_left_also_if_one_is_killed_or_upstream_refuses_or_the_load_is_stopped(
    mariadb: MariaDB, spark: Any, tmp_path: Path
) -> None:
    to = {"host": "127.0.0.1", "port": mariadb.port, "user": mariadb.user, "password": mariadb.password}
    config, stop = Config.model_validate({"syncer": {"db-type": "mysql", "to": to}}), threading.Event()
    opening, progress = mock.Mock(session=lambda: spark), LoadProgress()
    with destination(mariadb, VIEW) as sink:

        def load(connect: Any) -> bool:
            def distributing(left: list[list[TableLoad]]) -> None:
                distribute(config, opening, partial(task_of, sink, connect), sink, progress, stop, left)

            return divided(sink, two_columns(), distributing, stop)

        with pytest.raises(UpstreamRefused, match="no SELECT"):
            load(refused)
        hangs, killed = tmp_path / "hangs", tmp_path / "killed"
        with ThreadPoolExecutor() as pool:
            pool.submit(lambda: (wait_until(hangs.exists, what="a task runs"), stop.set()))
            assert not load(partial(hanging, hangs))
        stop.clear()
        assert rows_in(mariadb) == [[], []]
        assert load(partial(killed_once, killed))
    assert killed.exists()
    assert rows_in(mariadb) == [ROWS, ROWS]
    assert progress.rows == 6
    assert progress.loaded == 4
