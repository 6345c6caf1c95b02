"""The typed change stream decoded by columns is the one decoded row by row, whatever the tables."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from binlog.errors import BinlogError
from binlog.tidb.datum import Datum, Uint
from binlog.tidb.decimal import Decimal
from binlog.tidb.flatten import flatten
from binlog.tidb.json import BinaryJSON, encode_json
from binlog.tidb.table import ColumnInfo, TableInfo
from binlog.tidb.types import FieldType, Flag, SchemaState, Tp
from hypothesis import given
from hypothesis import strategies as st

from drainer.row.transaction import scan
from drainer.schema.history.base import Watched, Written
from drainer.spark.typed import row_reader
from drainer.spark.typed import rows as typed_rows
from drainer.spark.typed.fields import Reading, TablesUnfit, fields_of
from drainer.spark.typed.row_reader import RowReader
from drainer.spark.typed.rows import Changes
from tests.support.row_case import BEGIN_TS, INT, TEXT, Step, table, transaction
from tests.unit.drainer.changes.cases import KINDS, steps_of, tables

BY_COLUMNS, BY_ROWS = 1, 1 << 40
NAME = ("db", "t")


def batch_of(reading: Reading, payloads: Sequence[bytes], rows_min: int) -> pa.RecordBatch | str:
    """The batch, or the error's type and text."""
    changes = Changes(reading, vector_rows_min=rows_min)
    for payload in payloads:
        changes.add(payload)
    try:
        return changes.batch()
    except (BinlogError, pa.ArrowInvalid, OverflowError) as error:
        return f"{type(error).__name__}: {error}"


def both(reading: Reading, payloads: Sequence[bytes]) -> pa.RecordBatch | str:
    by_columns, by_rows = batch_of(reading, payloads, BY_COLUMNS), batch_of(reading, payloads, BY_ROWS)
    if isinstance(by_rows, str) or isinstance(by_columns, str):
        assert by_columns == by_rows
        return by_rows
    by_columns.validate(full=True)
    assert by_columns.schema == by_rows.schema
    # As text: for `==`, -0.0 and 0.0 are one.
    assert repr(by_columns.to_pylist()) == repr(by_rows.to_pylist())
    return by_rows


def reading_of(info: TableInfo, **options: bool) -> Reading:
    watched = Watched({info.id: (Written(1, NAME, info),)}, {NAME: info}, 1, {})
    return Reading(watched, fields_of({NAME: info}), 1, **options)


@pytest.fixture
def no_second_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in the usual encoding must be decoded by columns: a silent fall back would only be slow."""

    def refuse(*_: object) -> None:
        raise AssertionError("decoded row by row")

    monkeypatch.setattr(RowReader, "_one_by_one", refuse)


@given(data=st.data(), info=tables(), collect=st.booleans(), zero_dates_fail=st.booleans())
def test_typed_batch_by_columns_equals_that_by_rows(
    data: st.DataObject, info: TableInfo, collect: bool, zero_dates_fail: bool
) -> None:
    try:
        reading = reading_of(info, collect=collect, zero_dates_fail=zero_dates_fail)
    except TablesUnfit:
        return
    payloads = []
    for number, steps in enumerate(data.draw(st.lists(steps_of(info), min_size=1, max_size=4))):
        payloads.append(transaction([(info, step) for step in steps], commit_ts=BEGIN_TS + number * 5))
    both(reading, payloads)


@pytest.mark.usefixtures("no_second_way")
def test_rows_in_ordinary_encoding_are_decoded_by_columns() -> None:
    info = table([("id", INT), *((f"c{n}", kind) for n, kind in enumerate(KINDS))], handle="id")
    values = {column.id: usual_value(column) for column in info.columns}
    steps: list[Step] = [("insert", {}, values), ("update", values, {**values, 2: None}), ("delete", values, {})]
    found = batch_of(reading_of(info), [transaction([(info, step) for step in steps], commit_ts=BEGIN_TS)], BY_COLUMNS)
    assert isinstance(found, pa.RecordBatch), found
    assert found["kind"].to_pylist() == ["insert", "update", "delete"]
    assert found["seq"].to_pylist() == [0, 1, 2]
    assert [image is None for image in found["before"].to_pylist()] == [True, False, False]


def usual_value(column: ColumnInfo) -> Datum:
    kind = column.type
    if kind.tp is Tp.JSON:
        return BinaryJSON(encode_json({"a": [1, "x"]}))
    texts = {Tp.DATE: "2024-02-29", Tp.DATETIME: "2024-02-29 12:00:00", Tp.TIMESTAMP: "2024-02-29 12:00:00"}
    if kind.tp in texts or kind.is_string:
        return flatten(texts.get(kind.tp, "x"), kind)
    if kind.tp is Tp.NEWDECIMAL:
        return Decimal("0." + "0" * kind.decimal if kind.decimal else "0", kind.flen, kind.decimal)
    if kind.tp in (Tp.FLOAT, Tp.DOUBLE):
        return 0.5
    is_unsigned = kind.is_unsigned or kind.tp in (Tp.ENUM, Tp.SET, Tp.BIT)
    return Uint(1) if is_unsigned and kind.tp is not Tp.YEAR else 1


def test_float_beyond_its_range_raises_the_same_error_by_columns_and_rows() -> None:
    info = table([("id", INT), ("f", FieldType(Tp.FLOAT, 0, 12, -1))], handle="id")
    payload = transaction([(info, ("insert", {}, {1: 1, 2: 1e300}))], commit_ts=BEGIN_TS)
    found = both(reading_of(info), [payload])
    assert isinstance(found, str)
    assert f"commit_ts {BEGIN_TS}" in found


def test_first_unreadable_row_by_commit_ts_is_reported_for_any_kind() -> None:
    """A delete of an earlier transaction is decoded after an insert of a later one."""
    info = table([("id", INT), ("note", TEXT)], handle="id")
    payloads = [
        transaction([(info, ("delete", {1: 1, 2: b"\xff"}, {}))], commit_ts=BEGIN_TS),
        transaction([(info, ("insert", {}, {1: 2, 2: b"\xfe"}))], commit_ts=BEGIN_TS + 1),
    ]
    found = both(reading_of(info), payloads)
    assert isinstance(found, str)
    assert f"commit_ts {BEGIN_TS})" in found
    assert "not UTF-8" in found


def test_update_with_two_unreadable_images_raises_the_same_error_by_columns_and_rows() -> None:
    info = table([("id", INT), ("note", TEXT), ("more", TEXT)], handle="id")
    step: Step = ("update", {1: 1, 2: b"\xff", 3: b"x"}, {1: 1, 2: b"x", 3: b"\xff"})
    assert "column more" in str(both(reading_of(info), [transaction([(info, step)], commit_ts=BEGIN_TS)]))


def test_rows_of_older_and_newer_tables_keep_their_order_in_batch() -> None:
    """A row of an older TableInfo lacks a column; one of a newer has a column that is not public yet."""
    old = table([("id", INT), ("note", TEXT)], handle="id")
    new = replace(old, columns=(*old.columns, ColumnInfo(id=3, name="more", offset=2, type=INT, origin_default="7")))
    payloads = []
    for n, info in enumerate([new, old, new, old, old, new]):
        values: dict[int, Datum] = {1: n, 2: b"x", 3: n} if info is new else {1: n, 2: b"x"}
        payloads.append(transaction([(info, ("insert", {}, values))], commit_ts=BEGIN_TS + n))
    for info, more in ((old, [None] * 6), (new, [0, 7, 2, 7, 7, 5])):
        found = both(reading_of(info), payloads)
        assert isinstance(found, pa.RecordBatch)
        images = [row["after"] for row in found.to_pylist()]
        assert [image["id"] for image in images] == list(range(6))
        assert [image.get("more") for image in images] == more


def test_write_only_column_keeps_its_value_in_later_query() -> None:
    """Rows written while a DDL runs, read by a query that was started after it."""
    old = table([("id", INT), ("price", INT)], handle="id")
    more = ColumnInfo(id=3, name="more", offset=2, type=INT, origin_default="7")
    hidden = replace(old, columns=(*old.columns, replace(more, state=SchemaState.WRITE_ONLY)))
    new = replace(old, columns=(*old.columns, more))
    # MODIFY COLUMN: the new column has another id and, at the end, the old one's name.
    retyped = replace(old, columns=(old.columns[0], replace(more, name="price", offset=1)))
    heirs = {(old.id, 3): 2}
    assert _while_hidden(hidden, new, {}, [(hidden, 8), (old, 5)]) == [8, 7]
    assert _while_hidden(hidden, retyped, heirs, [(hidden, 5), (retyped, 6), (old, 7)]) == [5, 6, 7]


def _while_hidden(
    hidden: TableInfo, final: TableInfo, heirs: dict[tuple[int, int], int], rows: Sequence[tuple[TableInfo, int]]
) -> list[object]:
    """The last column of rows written with the schema version of `hidden`, with the columns that each row has."""
    versions = (Written(1, NAME, hidden), Written(2, NAME, final))
    reading = Reading(Watched({hidden.id: versions}, {NAME: final}, 2, heirs), fields_of({NAME: final}), 2)
    payloads = []
    for number, (info, value) in enumerate(rows):
        step: Step = ("insert", {}, {column.id: value for column in info.columns})
        payloads.append(transaction([(info, step)], commit_ts=BEGIN_TS + number))
    found = both(reading, payloads)
    assert isinstance(found, pa.RecordBatch)
    return [list(row["after"].values())[-1] for row in found.to_pylist()]


def test_batch_of_several_tables_has_columns_of_each() -> None:
    one = table([("id", INT), ("a", TEXT)], handle="id", name="one", table_id=100)
    two = table([("b", INT), ("id", INT)], handle="id", name="two", table_id=101)
    other = table([("id", INT)], handle="id", name="other", table_id=102)
    names = {("db", "one"): one, ("db", "two"): two}
    watched = Watched({i.id: (Written(1, n, i),) for n, i in names.items()}, names, 1, {})
    reading = Reading(watched, fields_of(names), 1)
    steps: list[tuple[TableInfo, Step]] = [
        (other, ("insert", {}, {1: 5})),
        (two, ("insert", {}, {1: 8, 2: 1})),
        (one, ("insert", {}, {1: 2, 2: b"x"})),
        (two, ("delete", {1: 8, 2: 1}, {})),
    ]
    payloads = [transaction(steps, commit_ts=BEGIN_TS), transaction(steps[:1], commit_ts=BEGIN_TS + 1)]
    found = both(reading, payloads)
    assert isinstance(found, pa.RecordBatch)
    assert [row["table"] for row in found.to_pylist()].count("two") == 2


def test_rows_of_unwatched_tables_make_empty_batch() -> None:
    info, other = table([("id", INT)], handle="id"), table([("id", INT)], handle="id", table_id=7)
    payload = transaction([(other, ("insert", {}, {1: n})) for n in range(3)], commit_ts=BEGIN_TS)
    found = both(reading_of(info), [payload])
    assert isinstance(found, pa.RecordBatch)
    assert found.num_rows == 0


def test_few_rows_are_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding them together would take a millisecond for each kind."""
    monkeypatch.setattr(row_reader, "in_step", None)
    info = table([("id", INT)], handle="id")
    changes = Changes(reading_of(info))
    for number in range(3):
        changes.add(transaction([(info, ("insert", {}, {1: number}))], commit_ts=BEGIN_TS + number))
    assert changes.batch().num_rows == 3


@pytest.mark.parametrize(("name", "most"), [("BATCH_TRANSACTIONS", 3), ("BATCH_BYTES", 300)])
def test_typed_batch_is_full_by_transactions_or_bytes(monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> None:
    monkeypatch.setattr(typed_rows, name, most)
    info = table([("id", INT), ("note", TEXT)], handle="id")
    changes = Changes(reading_of(info))
    for number in range(3):
        assert not changes.is_full
        changes.add(transaction([(info, ("insert", {}, {1: number, 2: b"x" * 50}))], commit_ts=BEGIN_TS + number))
    assert changes.is_full
    assert changes.batch().num_rows == 3
    assert not changes.is_full


@given(data=st.data())
def test_damaged_rows_raise_the_same_error_by_columns_and_rows(data: st.DataObject) -> None:
    """Bytes of the rows changed at random."""
    info = table([("id", INT), ("note", TEXT), ("price", FieldType(Tp.NEWDECIMAL, 0, 10, 2))], handle="id")
    dice = data.draw(st.randoms(use_true_random=False))
    payloads = []
    for number in range(6):
        values: dict[int, Datum] = {1: number, 2: b"abc", 3: Decimal("12.50", 10, 2)}
        written = bytearray(transaction([(info, ("insert", {}, values))], commit_ts=BEGIN_TS + number))
        if dice.random() < 0.5:
            written[-4 - dice.randrange(25)] ^= 1 << dice.randrange(8)
        payloads.append(bytes(written))
    readable = []
    for payload in payloads:
        try:
            scan(payload)
        except (BinlogError, struct.error):
            continue
        readable.append(payload)
    both(reading_of(info), readable)


def test_unsigned_handle_above_signed_range_is_decoded() -> None:
    key = FieldType(Tp.LONGLONG, Flag.UNSIGNED, 20, 0)
    info = table([("id", key)], handle="id")
    steps: list[Step] = [("insert", {}, {1: Uint(2**64 - 1)}), ("delete", {1: Uint(2**63)}, {})]
    found = both(reading_of(info), [transaction([(info, step) for step in steps], commit_ts=BEGIN_TS)])
    assert isinstance(found, pa.RecordBatch)
