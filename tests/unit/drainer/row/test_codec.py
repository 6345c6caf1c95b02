"""Rows of one schema for a destination of another (X-08, D-TR-03), and rows that are wrong."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import replace

import pytest
from binlog.errors import DecodeError
from binlog.tidb.datum import Uint, encode_value
from binlog.tidb.flatten import enum_text
from binlog.tidb.row import encode_insert
from binlog.tidb.table import ColumnInfo, TableInfo
from binlog.tidb.types import FieldType, SchemaState, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind, Match
from drainer.changes.segment import SegmentCutter, SegmentDecoder
from drainer.row.codec import Decoder
from drainer.row.column_type import enum_index, float_text, set_bits
from drainer.schema.errors import ColumnGoing, TableUnknown, UnknownColumn
from drainer.schema.view import SchemaView, SkipReason, TableVersions
from drainer.sink.mysql.rows.format import SQL_TEXT
from tests.support.fold_model import work_of
from tests.support.row_case import (
    BEGIN_TS,
    FORMATS,
    INT,
    TEXT,
    Step,
    altered,
    decoder_of,
    not_null,
    table,
    transaction,
    view_of,
)
from tests.support.tidb_codecs import encode_row
from tests.unit.drainer.row.test_fast_path import by_fast_path, by_general

OLD = table([("id", INT), ("dropped", TEXT), ("kept", TEXT)], handle="id")
ADDED = ColumnInfo(id=4, name="added", offset=2, type=not_null(INT), origin_default="7")
NEW = replace(OLD, columns=(OLD.columns[0], replace(OLD.columns[2], offset=1), ADDED))
ROW = {1: 1, 2: b"x", 3: b"y"}


def rows_of(view: SchemaView, *payloads: bytes) -> list[object]:
    return [net.row for table in work_of(view, payloads).folded for net in table.rows]


def test_rows_of_old_and_new_schema_fold_under_one_key() -> None:
    view = altered(OLD, NEW)
    old = transaction([(OLD, ("insert", {}, ROW))], commit_ts=BEGIN_TS)
    new_row = {1: 1, 3: b"z", 4: 9}
    new = transaction([(NEW, ("update", {1: 1, 3: b"y", 4: 7}, new_row))], commit_ts=BEGIN_TS + 1, version=2)
    assert rows_of(view, new, old) == [b"(1,'z',9)"]


def test_rows_of_old_and_new_schema_keep_their_own_types() -> None:
    kinds = [FieldType(Tp.DATETIME, 128, 19 + fsp, fsp) for fsp in (0, 3)]
    old, new = (table([("id", INT), ("at", kind)], handle="id") for kind in kinds)
    payloads = [
        transaction([(info, ("insert", {}, {1: n, 2: Uint(0)}))], commit_ts=BEGIN_TS + n, version=version)
        for n, (info, version) in enumerate([(old, 1), (new, 2), (old, 1)])
    ]
    zero = b"0000-00-00 00:00:00"
    assert rows_of(altered(old, new), *payloads) == [b"(0,'%b')" % zero, b"(1,'%b.000')" % zero, b"(2,'%b')" % zero]


@pytest.mark.parametrize("way", ["finish", "slots"])
@pytest.mark.parametrize("keyed", [True, False])
def test_first_invalid_value_is_reported_with_column_and_commit_ts(way: str, keyed: bool) -> None:
    """The first of them, of rows that wait to be written together."""
    columns = [("id", INT), ("at", FieldType(Tp.DATETIME, 128, 19, 0))]
    info = table(columns, handle="id") if keyed else table(columns)
    never = Uint((1 << 64) - 1)
    payloads = [
        transaction([(info, ("insert", {}, {1: 9 - n, 2: never if n > 2 else Uint(0)}))], commit_ts=BEGIN_TS + n)
        for n in range(5)
    ]
    decoder = SegmentDecoder(view_of(info), SQL_TEXT)
    cutter = SegmentCutter(decoder)
    cutter.add_all(payloads)
    with pytest.raises(DecodeError, match=rf"commit_ts {BEGIN_TS + 3}\): column at \(id 2\)"):
        decoder.segment(payloads, 0, 1) if way == "finish" else cutter.cut(2)


def test_write_only_column_is_read_and_left_out() -> None:
    """A write-only column stands in rows, but the destination has no such column."""
    coming = replace(ADDED, offset=3, state=SchemaState.WRITE_ONLY)
    info = replace(OLD, columns=(*OLD.columns, coming))
    payload = transaction([(info, ("insert", {}, {**ROW, 4: 5}))], commit_ts=BEGIN_TS)
    assert rows_of(view_of(info), payload) == [b"(1,'x','y')"]
    assert rows_of(view_of(OLD), payload) == [b"(1,'x','y')"]


def test_unknown_column_is_skipped_only_with_result_for_it() -> None:
    info = replace(OLD, columns=(*OLD.columns, replace(ADDED, offset=3)))
    payload = transaction([(info, ("insert", {}, {**ROW, 4: 5}))], commit_ts=BEGIN_TS, version=3)
    known = altered(OLD, OLD, unknown_columns={(OLD.id, 4): 3})
    assert rows_of(known, payload) == [b"(1,'x','y')"]
    with pytest.raises(UnknownColumn, match=f"column id 4 of table id 100 .*{BEGIN_TS}"):
        rows_of(altered(OLD, OLD, unknown_columns={(OLD.id, 4): 2}), payload)


def test_rows_of_dropped_table_are_skipped_and_of_unknown_table_refused() -> None:
    payload = transaction([(OLD, ("insert", {}, ROW))], commit_ts=BEGIN_TS)
    gone = SchemaView({}, {OLD.id: SkipReason.TRUNCATED}, 0, 9, None)
    assert rows_of(gone, payload) == []
    assert list(Decoder(gone).rows([payload])) == []
    with pytest.raises(TableUnknown, match=f"table id 100 .*{BEGIN_TS}"):
        rows_of(SchemaView({}, {}, 0, 9, None), payload)


def test_update_without_public_column_is_refused() -> None:
    """D-TR-04, unless a DDL may be dropping it: then the row is of another schema_version."""
    short = {1: 1, 3: b"y"}
    view = view_of(OLD)
    value = transaction(
        [(replace(OLD, columns=(OLD.columns[0], OLD.columns[2])), ("update", short, short))], commit_ts=BEGIN_TS
    )
    with pytest.raises(DecodeError, match=f"`db`.`t` .*{BEGIN_TS}.*column dropped"):
        rows_of(view, value)
    later = transaction(
        [(replace(OLD, columns=(OLD.columns[0], OLD.columns[2])), ("update", short, short))],
        commit_ts=BEGIN_TS,
        version=2,
    )
    assert rows_of(view, later) == [b"(1,NULL,'y')"]


@pytest.mark.parametrize("kind", ["insert", "update", "delete"])
def test_binlog_cut_at_any_byte_is_refused(kind: str) -> None:
    payload = transaction([(OLD, (kind, ROW, ROW))], commit_ts=BEGIN_TS)
    whole = rows_of(view_of(OLD), payload)
    for end in range(len(payload)):
        with suppress(DecodeError):
            # Cut between two fields of the binlog: with all rows, or without any.
            assert rows_of(view_of(OLD), payload[:end]) in ([], whole)


def test_row_cut_at_any_byte_is_refused_with_table_and_commit_ts() -> None:
    """Where lengths are right and only the row is short; test_program cuts rows of every type. An insert cut between
    two columns is the row of a writer that left NULLs out."""
    codec = decoder_of(OLD).codec(OLD.id, 1, 0)
    assert codec is not None
    row = encode_insert(OLD, ROW)
    whole_columns = [len(row) - 5]
    for end in range(len(row)):
        if end in whole_columns:
            continue
        with pytest.raises(DecodeError, match=r"`db`.`t` \(table id 100, commit_ts 5\)"):
            codec.images(Kind.INSERT, row[:end], 5)


def test_handle_wins_over_its_column_repeated_in_row() -> None:
    codec = decoder_of(OLD).codec(OLD.id, 1, 0)
    assert codec is not None
    # An integer handle is the column, whatever the row says.
    for told in (5, 6):
        row = encode_value(5) + encode_row({1: told, 2: b"a", 3: b"b"})
        assert codec.images(Kind.INSERT, row, 1) == (None, [5, b"a", b"b"])
        assert by_general(codec, Kind.INSERT, row) == [5, b"a", b"b"]


def test_table_shape_has_key_collations_and_match_kinds() -> None:
    kinds = [("id", INT), ("t", TEXT), ("f", FieldType(Tp.FLOAT)), ("j", FieldType(Tp.JSON))]
    info = table(kinds, handle="id", unique={"t": ["t"]})
    codec = decoder_of(info).codec(info.id, 1, 0)
    assert codec is not None
    shape = codec.shape
    assert (shape.schema, shape.table, shape.columns, shape.key) == ("db", "t", ("id", "t", "f", "j"), (0,))
    assert shape.secondary_unique == ("t",)
    assert shape.match == (Match.PLAIN, Match.BINARY_TEXT, Match.EXACT_FLOAT, Match.JSON)
    assert shape.collations == ("", TEXT.collate, "", "")
    assert shape.may_collide and not shape.has_text_key
    blob = FieldType(Tp.VAR_STRING, charset="binary", collate="binary")
    other = table([("b", blob), ("t", TEXT)], unique={"PRIMARY": ["b"]}, clustered=True)
    codec = decoder_of(other).codec(other.id, 1, 0)
    assert codec is not None and codec.shape.collations == ("binary", TEXT.collate) and codec.shape.has_text_key


def test_table_shape_has_fraction_digits_and_type_classes() -> None:
    """What a type leaves out is none; a FLOAT has no digits of its own."""
    kinds = [
        ("a", FieldType(Tp.NEWDECIMAL, flen=10, decimal=4)),
        ("b", FieldType(Tp.DATETIME, decimal=6)),
        ("c", FieldType(Tp.TIMESTAMP, decimal=3)),
        ("d", FieldType(Tp.DURATION, decimal=2)),
        ("e", FieldType(Tp.DATETIME)),
        ("f", FieldType(Tp.DOUBLE, flen=10, decimal=2)),
        ("g", TEXT),
    ]
    info = table(kinds)
    codec = decoder_of(info).codec(info.id, 1, 0)
    assert codec is not None and codec.shape.fractions == (4, 6, 3, 2, 0, 0, 0)
    times = ("datetime", "datetime", "time", "datetime")
    assert codec.shape.type_classes == ("decimal", *times, "float", "text")


def test_value_of_wrong_type_is_refused_with_its_column() -> None:
    row = encode_value(1) + encode_row({2: Uint(3)})
    codec = decoder_of(OLD).codec(OLD.id, 1, 0)
    assert codec is not None
    assert by_fast_path(codec, Kind.INSERT, row) is None
    with pytest.raises(DecodeError, match=r"commit_ts 77.*column dropped \(id 2\)"):
        codec.images(Kind.INSERT, row, 77)


@pytest.mark.parametrize("dialect", ["mysql", "sqlite"])
def test_row_older_than_type_change_keeps_its_value(dialect: str) -> None:
    """The column has another id since; a row that has both was written while the DDL ran, with the value it gave."""
    old = table([("id", INT), ("n", INT)], unique={"PRIMARY": ["id"]})
    text = ColumnInfo(id=7, name="label", offset=1, type=TEXT, origin_default="never")
    number = ColumnInfo(id=8, name="id", offset=0, type=not_null(FieldType(Tp.LONGLONG, flen=20, decimal=0)))
    versions = TableVersions("db", 1, (1,), (old,))
    versions = versions.add(2, replace(old, columns=(old.columns[0], text)), one_changed=True)
    versions = versions.add(3, replace(old, columns=(number, text)))
    view = SchemaView({old.id: versions}, {}, 0, 3, None)
    steps: list[tuple[TableInfo, Step]] = [
        (old, ("insert", {}, {1: 1, 2: -5})),
        (old, ("insert", {}, {1: 2})),
        (old, ("update", {1: 1, 2: -5}, {1: 3, 2: 6})),
        (old, ("delete", {1: 2, 2: None}, {})),
    ]
    (folded,) = work_of(view, [transaction(steps, commit_ts=BEGIN_TS)], FORMATS[dialect]).folded
    rows = [net.row for net in folded.rows if net.row is not None]
    assert rows == ([b"(3,'6')"] if dialect == "mysql" else [(3, "6")])
    changing = replace(old, columns=(*old.columns, replace(text, offset=2, state=SchemaState.WRITE_ONLY)))
    both = transaction([(changing, ("insert", {}, {1: 1, 2: 5, 7: b"five"}))], commit_ts=BEGIN_TS)
    assert [net.row for net in work_of(view, [both], FORMATS[dialect]).folded[0].rows] == (
        [b"(1,'five')"] if dialect == "mysql" else [(1, "five")]
    )


@pytest.mark.parametrize("kind", ["update", "delete"])
def test_keyless_row_without_column_being_dropped_is_refused(kind: str) -> None:
    """It is not found by a value that it does not tell: the DDL must run first. With a key nothing is amiss."""
    old = table([("id", not_null(INT)), ("b", INT)])
    keyed = table([("id", not_null(INT)), ("b", INT)], unique={"PRIMARY": ["id"]})
    going = (replace(old.columns[1], state=SchemaState.DELETE_ONLY),)
    step: Step = (kind, {1: 1}, {1: 2})
    for info in (old, keyed):
        at_work = replace(info, columns=(info.columns[0], *(going if kind == "update" else ())))
        payload = transaction([(at_work, step)], commit_ts=BEGIN_TS, version=3)
        view = replace(view_of(info), columns_being_dropped=frozenset({(info.id, 2)}))
        if info is keyed:
            assert work_of(view, [payload]).folded
            continue
        with pytest.raises(ColumnGoing, match="column id 2 of table id 100"):
            work_of(view, [payload])


# Text of single values.


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float_text_reads_back_as_the_same_single(value: float) -> None:
    """Servers read the text as a double and round it."""
    assert struct.pack("<f", float(float_text(value))) == struct.pack("<f", value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.10000000149011612, "0.1"),
        (16777216.0, "16777216.0"),
        (3.4028234663852886e38, "3.4028234663852886e+38"),
        (-0.0, "-0.0"),
    ],
)
def test_float_text_is_the_shortest_for_simple_values(value: float, text: str) -> None:
    assert float_text(value) == text


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e39])
def test_float_text_refuses_nan_infinity_and_overflow(value: float) -> None:
    with pytest.raises(DecodeError):
        float_text(value)


def test_enum_error_value_is_0_and_unknown_set_bit_refused() -> None:
    """X-14: an ENUM's error value is 0 and has no name; a SET's unknown bit is damage (F-01)."""
    assert enum_index(3, 2) == 0
    assert [enum_text(number, FieldType(Tp.ENUM, elems=("a", "b"))) for number in (0, 3)] == ["", ""]
    with pytest.raises(DecodeError, match="4"):
        set_bits(4, 2)
