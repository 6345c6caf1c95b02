"""A first load into files: each row once, as an insert that no transaction made, wherever the load is interrupted."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from binlog.tidb.table import DBInfo

from drainer.apply.progress import LoadProgress
from drainer.batch.work import Pieces
from drainer.ddl.mysql_columns import Dialect
from drainer.ddl.mysql_tables import create_table
from drainer.protocol.pb_file import records
from drainer.ranges.load import FirstLoad
from drainer.ranges.upstream import Source, Upstream
from drainer.schema.view import SchemaView
from drainer.sink.base import SCHEMA_ID, FirstStart, Identity, TableLoad
from drainer.sink.document_position import POSITION
from drainer.sink.errors import PositionMoved
from drainer.sink.file.sink import FileSink
from tests.support.file_case import binlogs, settle, sink
from tests.support.jsonl_case import in_order
from tests.support.killing import killed_at
from tests.support.row_case import view_of
from tests.unit.drainer.ranges.test_load import BAG, BOTH, KEYED, ROWS, TS, upstream_of

FIRST = FirstStart((("db", "keyed"), ("db", "bag")), loads=True)
MODULES = ("drainer.sink.document_position", "drainer.sink.file.files", "drainer.ranges.load")


@contextlib.contextmanager
def opened(directory: Path, form: str, expected_ts: int | None = None) -> Iterator[FileSink]:
    destination = sink(directory, form, rotate_bytes=300)
    try:
        position = destination.open(Identity(7, "main", "one"), TS, FIRST)
        assert expected_ts is None or position.commit_ts == expected_ts
        assert position.loads == tuple(destination.loads())
        yield destination
    finally:
        settle(destination)
        destination.close(clean=False)


DB = DBInfo(9, "db", "utf8mb4", "utf8mb4_bin")


def first_load(destination: FileSink, view: SchemaView = BOTH, databases: Sequence[DBInfo] = (DB,)) -> FirstLoad:
    schemas, stop, upstream = dict.fromkeys(view.tables, "up"), threading.Event(), upstream_of()
    return FirstLoad(
        destination, view, schemas, Upstream(upstream.connect), LoadProgress(), schema_version=9,
        stop=stop, databases=databases, pause_s=0,
    )  # fmt: skip


def rows_of(directory: Path, form: str, ts: int) -> dict[str, list[tuple[int, str]]]:
    """The rows of each table. AssertionError for one that is not read at `ts`."""
    found: dict[str, list[tuple[int, str]]] = {"keyed": [], "bag": []}

    def add(table: str, commit_ts: int, start_ts: int, kind: str, row: dict[str, Any]) -> None:
        assert (commit_ts, start_ts, kind) == (ts, ts, "insert")
        found[table].append((row["id"], row["name"]))

    if form == "jsonl":
        for line in in_order(directory):
            if line["kind"] != "ddl":
                add(line["table"], line["commit_ts"], line["start_ts"], line["kind"], line["new"])
    elif form == "parquet":
        staged = (one.payload for path in sorted((directory / "stage").iterdir()) for one in records(path))
        tables = [pa.ipc.open_stream(payload).read_all() for payload in staged]
        for table in [*tables, *map(pq.read_table, sorted(directory.glob("tables/**/*.parquet")))]:
            name = (table.schema.metadata or {}).get(b"table", b"").decode()
            for row in table.to_pylist() if name else ():
                add(name, row["commit_ts"], row["start_ts"], row["kind"], row["after"])
    else:
        for one in binlogs(directory):
            assert one.query is not None or len(list(one.events())) == 1, "each block is a record: no transaction is"
            for event in one.events() if one.query is None else ():
                values = {name: value.value for name, value in (event.new or {}).items()}
                add(event.table, one.commit_ts, one.commit_ts, event.change.name.lower(), values)
    return {table: sorted(rows) for table, rows in found.items()}


@pytest.mark.parametrize("form", ["jsonl", "pb", "parquet"])
def test_load_into_files_killed_at_any_point_is_continued_and_has_each_row_once(tmp_path: Path, form: str) -> None:
    for nth in itertools.count(1):
        directory, killed = tmp_path / str(nth), True
        with killed_at(nth, *MODULES), opened(directory, form) as destination:
            assert first_load(destination).run()
            killed = False
        with opened(directory, form) as destination:
            assert first_load(destination).run()
            assert destination.loads() == [TableLoad(table_id, (), 1) for table_id in (SCHEMA_ID, 5, 6)]
            ts = destination.commit_ts
            assert TS < ts <= TS + 2, "the step behind the DDLs may be repeated"
        assert rows_of(directory, form, ts) == {"keyed": sorted(ROWS), "bag": sorted(ROWS)}, nth
        if not killed:
            break
    assert nth > 25, "opening, a database, two tables, their list, two divisions and four ranges, each more than once"


def test_tables_are_created_before_the_rows_and_by_statements_that_a_reader_can_run(tmp_path: Path) -> None:
    with opened(tmp_path, "jsonl") as destination:
        assert first_load(destination).run()
    ddls = [line for line in in_order(tmp_path) if line["kind"] == "ddl"]
    assert [(line["commit_ts"], line["query"]) for line in ddls] == [
        (TS, "CREATE DATABASE `db` DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
        (TS, create_table("db", KEYED, Dialect())),
        (TS, create_table("db", BAG, Dialect())),
    ]


def test_database_of_which_the_filter_names_tables_alone_is_created_for_readers(tmp_path: Path) -> None:
    with opened(tmp_path, "jsonl") as destination:
        assert first_load(destination, databases=()).run()
    ddls = [line["query"] for line in in_order(tmp_path) if line["kind"] == "ddl"]
    assert ddls[0] == "CREATE DATABASE IF NOT EXISTS `db`"
    assert len(ddls) == 3


def test_load_of_a_table_that_upstream_has_dropped_ends_with_the_others(tmp_path: Path) -> None:
    """Else the destination would count as incomplete for ever."""
    with opened(tmp_path, "jsonl") as destination:
        assert first_load(destination).run()
        destination.put_loads([TableLoad(99)])
        assert first_load(destination, view_of(KEYED)).run()
        assert {load.table_id for load in destination.loads() if load.is_complete} == {SCHEMA_ID, 5, 6, 99}


def test_tables_that_are_merged_are_created_once_and_no_two_rows_have_one_place(tmp_path: Path) -> None:
    with opened(tmp_path, "jsonl") as destination:
        assert first_load(destination, view_of(KEYED, replace(KEYED, id=7))).run()
    lines = in_order(tmp_path)
    assert [line["table"] for line in lines if line["kind"] == "ddl"] == ["", "keyed"]
    assert len({line["place"] for line in lines if line["kind"] != "ddl"}) == 2 * len(ROWS)


@pytest.mark.parametrize("form", ["jsonl", "pb", "parquet"])
def test_range_of_which_a_rule_leaves_all_rows_out_is_loaded(tmp_path: Path, form: str) -> None:
    none = mock.patch.object(Source, "columns", lambda source, packets: [pa.array([], pa.int64())] * 2)
    with opened(tmp_path, form) as destination, none:
        assert first_load(destination).run()


@pytest.mark.parametrize(("form", "names"), [("parquet", ["id", "name"]), ("jsonl", ["id"])])
def test_stored_generated_column_is_read_for_destinations_that_get_it(
    tmp_path: Path, form: str, names: list[str]
) -> None:
    first, second = KEYED.columns
    info = replace(KEYED, columns=(first, replace(second, generated_expr="id", generated_stored=True)))
    with opened(tmp_path, form) as destination:
        (source,) = first_load(destination, view_of(info))._sources.values()
    assert [name for name, _ in source.columns_read] == names


def test_range_that_is_recorded_is_refused_and_not_written_again(tmp_path: Path) -> None:
    with opened(tmp_path, "jsonl") as destination:
        destination.put_loads([TableLoad(5, (), 1)])
        with pytest.raises(PositionMoved, match="range 0 of table 5 is loaded already"):
            destination.apply_pieces(Pieces(TS, TS, lambda: (), (5, 0, 0)), 9)


def test_position_without_loads_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    with opened(tmp_path, "jsonl"):
        pass
    whole = json.loads((tmp_path / POSITION).read_text())
    assert whole["body"].pop("loads")
    with mock.patch("zlib.crc32", return_value=whole["crc"]):
        (tmp_path / POSITION).write_text(json.dumps(whole))
        with opened(tmp_path, "jsonl", TS) as destination:
            assert destination.loads() == []
