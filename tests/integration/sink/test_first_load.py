"""A first load into a real server: values of every type, and kills at every crash point."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.apply.progress import LoadProgress
from drainer.changes.texts import decoded, selected
from drainer.ranges.load import FirstLoad
from drainer.ranges.upstream import Upstream
from drainer.row.column_type import ColumnType
from drainer.schema.view import SchemaView
from drainer.sink.base import FirstStart, Identity, unfinished
from drainer.sink.errors import Fenced
from drainer.sink.mysql.connection import connect
from drainer.sink.mysql.sink import MySQLSink
from tests.integration.sink.case import opened, server_config
from tests.support.killing import killed_at
from tests.support.row_case import view_of
from tests.support.row_changes import make_table
from tests.support.row_packets import shown
from tests.support.servers import MariaDB
from tests.support.typed_columns import COLUMNS, text_type, typed_row, typed_table
from tests.support.upstream_case import FakeUpstream

pytestmark = pytest.mark.integration
TS = 100
TYPED = typed_table().info
KINDS = [("id", FieldType(Tp.LONG, Flag.NOT_NULL)), ("name", text_type(Tp.VARCHAR, 20))]
KEYED = replace(make_table("db", "keyed", KINDS, primary=["id"]).info, id=5)
BAG = replace(make_table("db", "bag", KINDS).info, id=6)
ROWS = [(1, "a"), (2, "b"), (3, "c")]


@contextlib.contextmanager
def destination(mariadb: MariaDB, view: SchemaView) -> Iterator[MySQLSink]:
    sink = MySQLSink(server_config(mariadb))
    names = tuple((table.schema, table.current.name) for table in view.tables.values())
    try:
        assert sink.open(Identity(7, "main", "drainer-1"), TS, FirstStart(names, loads=True)).commit_ts == TS
        yield sink
    finally:
        sink.close(clean=False)


def first_load(sink: MySQLSink, view: SchemaView, upstream: FakeUpstream) -> FirstLoad:
    schemas = dict.fromkeys(view.tables, "up")
    stop, connected = threading.Event(), Upstream(upstream.connect)
    return FirstLoad(sink, view, schemas, connected, LoadProgress(), schema_version=9, stop=stop, pause_s=0)


def two_columns() -> FakeUpstream:
    return FakeUpstream({number: (b"%d" % number, name.encode()) for number, name in ROWS})


def test_value_of_any_type_is_stored_as_upstream_has_it(mariadb: MariaDB) -> None:
    view, types = view_of(TYPED), [ColumnType.of(kind) for _, kind in COLUMNS]
    rows = {1: typed_row(1), 2: typed_row(2, [name for name, _ in COLUMNS]), 3: [3, *[None] * (len(COLUMNS) - 1)]}
    answers = {id_: [shown(of, value) for of, value in zip(types, row, strict=True)] for id_, row in rows.items()}
    with destination(mariadb, view) as sink:
        assert first_load(sink, view, FakeUpstream(answers)).run()
    columns = ", ".join(selected(name, of) for (name, _), of in zip(COLUMNS, types, strict=True))
    with contextlib.closing(connect(server_config(mariadb), idle_s=60, read_timeout_s=60)) as session:
        _, blocks = session.packets(f"SELECT {columns} FROM db.everything ORDER BY id".encode(), 1 << 20)
        read = [column.to_pylist() for column in decoded(types, next(blocks))]
    assert [list(row) for row in zip(*read, strict=True)] == [rows[number] for number in (1, 2, 3)]


@pytest.mark.slow
def test_first_load_killed_at_any_point_is_continued_and_loads_each_row_once(mariadb: MariaDB) -> None:
    view = view_of(KEYED, BAG)
    modules = [f"drainer.sink.mysql.{name}" for name in ("connection", "ddl.runner", "ddl.fingerprint")]
    for nth in itertools.count(1):
        mariadb.reset()
        killed = True
        with killed_at(nth, *modules), destination(mariadb, view) as sink:
            first_load(sink, view, two_columns()).run()
            killed = False
        again = two_columns()
        with destination(mariadb, view) as sink:
            assert first_load(sink, view, again).run()
            assert not unfinished(sink.loads(), view.tables)
        for name in ("keyed", "bag"):
            assert mariadb.query(f"SELECT id, name FROM db.{name} ORDER BY id") == ROWS, (nth, name)
        if not killed:
            assert again.read == 0
            break
    assert nth > 20, "two tables, their list, two divisions and four ranges, each twice"


def test_former_drainer_loads_nothing(mariadb: MariaDB) -> None:
    view = view_of(KEYED)
    with destination(mariadb, view) as former:
        successor = opened(mariadb, at=TS)
        with pytest.raises(Fenced):
            first_load(former, view, two_columns()).run()
        successor.close(clean=False)
    assert mariadb.query("SHOW DATABASES LIKE 'db'") == []
