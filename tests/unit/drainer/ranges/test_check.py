"""A table of an SQLite file is compared with upstream's at the file's position, and repaired, beside a drainer."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from binlog.errors import DecodeError
from binlog.tidb.types import FieldType, Flag, Tp

from drainer.ranges import check as module
from drainer.ranges.check import Stopped, Table, passes
from drainer.ranges.upstream import SnapshotGone, Source, Upstream, UpstreamDown, UpstreamRefused
from drainer.row.codec import Codec
from drainer.sink.base import Identity
from drainer.sink.errors import DestinationDown, DestinationRefused, PositionMoved, SchemaMoved
from drainer.sink.mysql.connection import ConnectionLost, Retry, ServerError
from drainer.sink.snapshot import PackedRows
from drainer.sink.sqlite.format import SQLITE_VALUES
from drainer.sink.sqlite.sink import FileSnapshot, SQLiteSink
from tests.support.row_case import codec_of
from tests.support.row_changes import make_table
from tests.support.typed_columns import text_type
from tests.support.upstream_case import FakeUpstream

KINDS = [("id", FieldType(Tp.LONG, Flag.NOT_NULL)), ("name", text_type(Tp.VARCHAR)), ("price", FieldType(Tp.DOUBLE))]
KEYED = replace(make_table("db", "keyed", KINDS, primary=["id"]).info, id=5)
SWAPPED = replace(make_table("db", "keyed", KINDS, primary=["id"], unique=[["name"]]).info, id=5)
BAG = replace(make_table("db", "keyed", KINDS).info, id=6)
IDENTITY = Identity(7, "main", "drainer-1")
TS = 42
Row = tuple[int, str | None, float | None]
WANTED: Sequence[Row] = [(1, "it's", 0.1), (2, None, None), (3, "c", -0.0), (4, "d\\", 1e21)]
TABLES = [KEYED, SWAPPED, BAG]


def upstream_of(rows: Sequence[Row]) -> FakeUpstream:
    texts: Mapping[int, Sequence[bytes | None]] = {
        row[0]: [None if value is None else str(value).encode() for value in row] for row in rows
    }
    return FakeUpstream(texts)


class File:
    """An SQLite file with the table `info`, and a drainer that has it open."""

    def __init__(self, path: Path, info: object = KEYED) -> None:
        self.source = Source("up", info, codec_of(info))  # type: ignore[arg-type]
        self.path = path
        self.sink = SQLiteSink(path)
        self.sink.open(IDENTITY, TS)
        self.upstream = upstream_of(WANTED)
        self.run('CREATE TABLE "db.keyed" (id INTEGER, name TEXT, price REAL)')

    def run(self, text: str, *rows: Row) -> list[tuple[object, ...]]:
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            if rows:
                connection.executemany(text, rows)
            return [] if rows else connection.execute(text).fetchall()

    def put(self, *rows: Row) -> None:
        self.run('INSERT INTO "db.keyed" VALUES (?, ?, ?)', *rows)

    def rows(self) -> list[tuple[object, ...]]:
        return self.run('SELECT * FROM "db.keyed" ORDER BY id')

    @contextlib.contextmanager
    def table(self) -> Iterator[Table]:
        with (
            contextlib.closing(self.sink.snapshot(IDENTITY)) as there,
            contextlib.closing(Upstream(self.upstream.connect)) as up,
        ):
            yield Table([self.source], up, there)


@pytest.fixture(params=TABLES, ids=["keyed", "unique", "bag"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[File]:
    made = File(tmp_path / "a'b.sqlite", request.param)
    yield made
    made.sink.close(clean=False)


def test_equal_table_is_equal(file: File) -> None:
    file.put(*WANTED)
    with file.table() as table:
        found = table.compared()
        assert (found.rows, found.differences, found.is_cut) == (4, (), False)
        assert (file.upstream.read, file.upstream.asked) == (1, [TS])
        assert table.repair(found) == 0
    assert file.upstream.closed == 1
    assert set(file.upstream.asked) == {TS}


def test_rows_that_differ_are_named_and_repaired(file: File) -> None:
    file.put((1, "it's", 0.2), (3, "c", -0.0), (4, "d", 1e21), (5, "surplus", None))
    with file.table() as table:
        found = table.compared()
        sides = [(row.upstream or {}, row.destination or {}) for row in found.differences]
        assert sorted(len(ours) > 0 for ours, _ in sides).count(True) == 3
        if file.source.codec.shape.key:
            assert {row.key["id"]: (row.upstream, row.destination) for row in found.differences} == {
                "1": ({"price": "0.1"}, {"price": "0.2"}),
                "2": ({"id": "2", "name": "NULL", "price": "NULL"}, None),
                "4": ({"name": "'d\\\\'"}, {"name": "'d'"}),
                "5": (None, {"id": "5", "name": "'surplus'", "price": "NULL"}),
            }
        reads = file.upstream.read
        assert table.repair(found) >= 4
        assert (file.upstream.read == reads) == bool(file.source.codec.shape.key), "rows with a key are found by it"
    assert file.rows() == list(WANTED)
    with file.table() as table:
        assert not table.compared().differences


def test_values_of_a_unique_key_that_two_rows_have_exchanged_are_repaired(tmp_path: Path) -> None:
    file = File(tmp_path / "f", SWAPPED)
    file.run('CREATE UNIQUE INDEX u ON "db.keyed" (name)')
    file.put((1, "c", 0.1), (2, None, None), (3, "it's", -0.0), (4, "d\\", 1e21))
    with file.table() as table:
        assert table.repair(table.compared()) == 2
    assert file.rows() == list(WANTED)


def test_repair_writes_what_upstream_has_at_the_position_of_its_own_transaction(tmp_path: Path) -> None:
    """The stream has gone on since the comparison: it has written row 5, changed row 1, and removed row 4."""
    file = File(tmp_path / "f")
    file.put((1, "old", 0.1), *WANTED[1:3], (5, "e", None))
    with file.table() as table:
        found = table.compared()
        later: Sequence[Row] = [(1, "newer", 0.1), *WANTED[1:3], (5, "e", None)]
        file.sink.advance(TS + 1, 0)
        file.upstream.rows = upstream_of(later).rows
        table.repair(found)
        assert file.rows() == list(later)
        assert file.upstream.asked[-1] == TS + 1
        assert table.there.commit_ts == TS


def test_repair_writes_nothing_if_the_stream_has_done_so_meanwhile(file: File) -> None:
    file.put(*WANTED, (5, "surplus", None))
    with file.table() as table:
        found = table.compared()
        file.run('DELETE FROM "db.keyed" WHERE id = 5')
        file.sink.advance(TS + 1, 0)
        assert table.repair(found) == 0
    assert file.upstream.asked[-1] == TS + 1


def test_rows_of_all_tables_that_are_merged_are_compared_and_repaired(file: File) -> None:
    class Second(FakeUpstream):
        def _answer(self, text: str) -> list[list[bytes | None]]:
            return super()._answer(text) if "`second`" in text else []

    file.put(*WANTED[1:], (9, "surplus", None))
    file.upstream = Second(upstream_of(WANTED).rows)
    with file.table() as table:
        merged = replace(table, sources=[file.source, replace(file.source, schema="second")])
        assert merged.repair(merged.compared()) == 2
    assert file.rows() == list(WANTED)


def test_rows_that_upstream_does_not_have_are_deleted_in_the_first_transactions(tmp_path: Path) -> None:
    file = File(tmp_path / "f")
    file.put((9, "it's", 0.1))
    spy = mock.patch.object(FileSnapshot, "key_literals", autospec=True, side_effect=FileSnapshot.key_literals)
    with mock.patch.object(module, "KEYS_MAX", 1), file.table() as table, spy as asked:
        assert table.repair(table.compared()) == 5
    assert asked.call_args_list[0].args[1] == [SQLITE_VALUES.pack((9,))]


def test_table_of_which_more_differs_than_is_compared_is_made_equal_range_by_range(tmp_path: Path) -> None:
    """Each range as upstream has it at the position of its own transaction; what upstream lacks is found next."""
    file = File(tmp_path / "f")
    surplus: Row = (9, "surplus", None)
    file.put((1, "old", 0.1), surplus)
    asked: list[float] = []
    with mock.patch.object(module, "ROWS_MAX", 1), file.table() as table:

        def wait(seconds: float) -> bool:
            asked.append(seconds)
            file.sink.advance(file.sink.commit_ts + 1, 0)
            return False

        found = table.compared()
        assert (len(found.differences), found.is_cut) == (1, True)
        with mock.patch.object(table.stop, "wait", wait):
            assert table.repair(found) >= 4
        assert len(asked) == 2
        assert min(asked) > 0
    assert {TS, TS + 1} <= set(file.upstream.asked)
    assert [row for row in file.rows() if row != surplus] == list(WANTED)
    with file.table() as table:
        table.repair(table.compared())
    assert file.rows() == list(WANTED)


def test_rows_of_a_range_are_found_by_all_their_keys_and_those_that_are_equal_are_not_written(tmp_path: Path) -> None:
    file = File(tmp_path / "f")
    file.put(WANTED[1], WANTED[2])
    with mock.patch.object(module, "ROWS_MAX", 1), mock.patch.object(module, "KEYS_MAX", 1), file.table() as table:
        found = table.compared()
        assert found.is_cut
        written = table.repair(found)
    assert written == len(WANTED) - 2, "what was found first is not written again"
    assert file.rows() == list(WANTED)


def test_table_with_further_unique_keys_is_not_made_equal_by_its_ranges(tmp_path: Path) -> None:
    """A value of theirs may be exchanged with a row of another range."""
    file = File(tmp_path / "f", SWAPPED)
    with mock.patch.object(module, "ROWS_MAX", 1), file.table() as table:
        found = table.compared()
        assert found.is_cut
        assert table.repair(found) == len(found.differences) < len(WANTED)


def test_repair_range_by_range_stops_between_two_ranges(tmp_path: Path) -> None:
    file = File(tmp_path / "f")
    with mock.patch.object(module, "ROWS_MAX", 1), file.table() as table:
        found = table.compared()
        table.stop.set()
        with pytest.raises(Stopped):
            table.repair(found)
    assert 0 < len(file.rows()) < len(WANTED)


def test_snapshot_does_not_see_what_is_written_after_it(file: File) -> None:
    file.put(*WANTED)
    with file.table() as table:
        assert not table.compared().differences
        file.run('DELETE FROM "db.keyed"')
        file.sink.advance(TS + 1, 0)
        assert not table.compared().differences


def test_repair_after_a_ddl_is_refused_and_writes_nothing(file: File) -> None:
    with file.table() as table:
        found = table.compared()
        file.sink.advance(TS + 1, 8)
        with pytest.raises(SchemaMoved, match="a DDL ran") as raised:
            table.repair(found)
        assert passes(raised.value)
    assert file.rows() == []


def test_drainer_continues_after_a_repair(file: File) -> None:
    with file.table() as table:
        table.repair(table.compared())
    file.sink.advance(TS + 1, 0)
    assert file.rows() == list(WANTED)


def test_repair_that_fails_leaves_the_file_as_it_was(file: File) -> None:
    file.put((1, "old", 0.1))
    with file.table() as table:
        found = table.compared()
        file.upstream.rows = {1: [b"1", b"x", b"no number"]}
        with pytest.raises(DecodeError, match="double"):
            table.repair(found)
    assert file.rows() == [(1, "old", 0.1)]
    file.sink.advance(TS + 1, 0)


def test_rate_is_kept_by_pauses_on_both_sides(file: File) -> None:
    file.put(*WANTED)
    stop = mock.Mock(wait=mock.Mock(return_value=False))
    with file.table() as table:
        assert replace(table, stop=stop, rate=2).compared() == table.compared()
    pauses = [call.args[0] for call in stop.wait.call_args_list]
    assert sum(pauses) == 2 * len(WANTED) / 2


def test_stopped_comparison_says_so(file: File) -> None:
    stop = threading.Event()
    with file.table() as table:
        stop.set()
        with pytest.raises(Stopped):
            replace(table, stop=stop).compared()


def test_comparison_is_stopped_while_the_destination_is_read(file: File) -> None:
    file.put(*WANTED)
    real = FileSnapshot.rows
    with file.table() as table:

        def rows(there: FileSnapshot, codec: Codec) -> Iterator[PackedRows]:
            table.stop.set()
            return real(there, codec)

        with mock.patch.object(FileSnapshot, "rows", rows), pytest.raises(Stopped):
            table.compared()


def test_value_that_the_file_cannot_return_is_an_error_of_its_table(file: File) -> None:
    file.run("INSERT INTO \"db.keyed\" VALUES (1, CAST(x'ff' AS TEXT), 0)")
    with file.table() as table, pytest.raises(DestinationRefused, match=r"db\.keyed .* cannot be read: .*UTF-8"):
        table.compared()


def test_destination_without_a_position_or_with_an_unfinished_load_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DestinationRefused, match="not the SQLite file"):
        SQLiteSink(tmp_path / "none").snapshot(IDENTITY)
    file = File(tmp_path / "f")
    with pytest.raises(DestinationRefused, match="no position"):
        file.sink.snapshot(replace(IDENTITY, changefeed="other"))
    file.run('DROP TABLE "db.keyed"')
    with file.table() as table, pytest.raises(DestinationRefused, match=r"db\.keyed"):
        table.compared()
    file.run("INSERT INTO \"tidb_binlog.drainer_load\" VALUES (7, 'main', 5, 0, NULL, 0)")
    with pytest.raises(DestinationRefused, match="load is not complete"):
        file.sink.snapshot(IDENTITY)


def test_errors_that_pass_are_known() -> None:
    for error in (UpstreamDown(""), SnapshotGone(""), PositionMoved(""), SchemaMoved(""), DestinationDown("")):
        assert passes(error)
    assert passes(ConnectionLost(""))
    assert passes(Retry(""))
    for error in (UpstreamRefused(""), ServerError(1142, "", ""), DestinationRefused("")):
        assert not passes(error)
