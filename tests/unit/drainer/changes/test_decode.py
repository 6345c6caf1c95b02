"""Rows read in step hold what the general decoder finds in them, whatever the table; rows in another encoding are left
to it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum, Uint, decode_one
from binlog.tidb.row import decode_insert, encode_handle_value, encode_insert, handle_columns
from binlog.tidb.table import ColumnInfo, TableInfo
from binlog.tidb.types import FieldType, Flag, Tp
from binlog.tidb.varint import decode_uvarint, encode_uvarint
from hypothesis import given
from hypothesis import strategies as st

from drainer.batch.work import Kind
from drainer.changes.decode import Changes, ColumnDecoder
from drainer.changes.scan import Rows, scan_all
from drainer.changes.vector import Buffer
from drainer.row.codec import Codec
from drainer.schema.errors import TableUnknown, UnknownColumn
from drainer.schema.view import SchemaView
from tests.support.examples import FEW
from tests.support.row_case import BEGIN_TS, INT, TEXT, Step, altered, not_null, table, transaction, view_of
from tests.support.tidb_codecs import encode_row_v2
from tests.unit.drainer.changes.cases import encoded, images, steps_of, tables

IN_STEP, ONE_BY_ONE = 1, 1 << 40


def rows_of(info: TableInfo, rows: Sequence[tuple[Kind, bytes]], version: int = 1) -> Rows:
    """As scan gives them: each a transaction of its own."""
    count = len(rows)
    sizes = np.array([len(row) for _, row in rows], np.int64)
    begin = np.cumsum(sizes + 1) - sizes - 1
    return Rows(
        Buffer([row for _, row in rows], b"\xff"),
        np.arange(1, count + 1).astype(np.uint64) * np.uint64(1000),
        np.arange(1, count + 1).astype(np.uint64),
        np.zeros(count, np.int64),
        np.full(count, version),
        np.full(count, info.id),
        np.array([int(kind) for kind, _ in rows], np.int64),
        begin,
        begin + sizes,
        np.arange(count),
        np.arange(count),
    )


def decoded(view: SchemaView, rows: Rows, rows_min: int, *, whole: bool = True) -> list[Changes]:
    return list(ColumnDecoder(view, vector_rows_min=rows_min).decode(rows, whole=whole))


def both(view: SchemaView, rows: Rows) -> list[tuple[object, ...]]:
    """The images, which are the same in both ways."""
    in_step = images(decoded(view, rows, IN_STEP))
    assert in_step == images(decoded(view, rows, ONE_BY_ONE))
    return in_step


@given(data=st.data(), info=tables(), new_collation=st.booleans())
def test_column_decoding_equals_row_by_row_decoding(data: st.DataObject, info: TableInfo, new_collation: bool) -> None:
    steps = data.draw(steps_of(info))
    rows = rows_of(info, [encoded(info, step, new_collation=new_collation) for step in steps])
    found = both(view_of(info, settled=1 << 62), rows)
    assert [row[2] for row in found] == [Kind[kind.upper()] for kind, _, _ in steps]


@given(data=st.data(), info=tables())
def test_ordinary_rows_are_all_decoded_as_columns(data: st.DataObject, info: TableInfo) -> None:
    """Else the quick way would be slow in silence."""
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr("drainer.changes.decode._one_by_one", _refuse)
        rows = rows_of(info, [encoded(info, step) for step in data.draw(steps_of(info))])
        assert len(images(decoded(view_of(info, settled=1 << 62), rows, IN_STEP))) == len(rows)


def _refuse(*_: object) -> None:
    raise AssertionError("a row of the fast path was left to the general decoder")


@FEW
@given(data=st.data(), info=tables())
def test_damaged_row_is_refused_exactly_where_general_decoder_refuses_it(data: st.DataObject, info: TableInfo) -> None:
    """One row cut or with another byte, between two that are whole: it is refused where the general decoder refuses it,
    and reads as there where not; its neighbours read as ever. Old values that nobody asks for are not looked at, so
    everything is asked for here."""
    steps = data.draw(steps_of(info, most=1))
    kind, row = encoded(info, steps[0])
    view = view_of(info, settled=1 << 62)
    at = data.draw(st.integers(0, len(row) - 1))
    changed = row[:at] + bytes((data.draw(st.integers(0, 255)),)) + row[at + 1 :]
    for damaged in (changed, *(row[:n] for n in range(0, len(row), max(1, len(row) // 24)))):
        rows = rows_of(info, [(kind, row), (kind, damaged), (kind, row)])
        try:
            slow = images(decoded(view, rows, ONE_BY_ONE))
        except DecodeError as error:
            with pytest.raises(DecodeError, match=r"commit_ts 2000") as again:
                decoded(view, rows, IN_STEP)
            assert str(again.value) == str(error)
        else:
            assert images(decoded(view, rows, IN_STEP)) == slow


_A, _B = b"\x08\x02\x08\x0a", b"\x08\x04\x08\x0e"  # columns 1 and 2, whole numbers
_ROWID = b"\x08\x01"


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        *((Kind.INSERT, b"\x08\x0e" + _A + _B + _ROWID + torn) for torn in (b"\0\x08", b"\x01\x05", b"\x05\x05")),
        *((Kind.DELETE, _A + _B + _ROWID + torn) for torn in (b"\0\x08", b"\x01\x05", b"\x05\x05")),
        (Kind.UPDATE, (_A + _B) * 2 + _ROWID + b"\0\x08"),
        (Kind.UPDATE, (_A + _B) * 2 + _ROWID + b"\x08\x0e"),
        (Kind.UPDATE, _A + _B + _ROWID + b"\x08\x0e" + _A + _B),
        (Kind.UPDATE, _A + _A + _B),
        (Kind.UPDATE, _A + _B + _A),
    ],
)
@pytest.mark.parametrize("has_key", [True, False])
def test_damaged_row_is_refused_decoded_as_columns_or_one_by_one(kind: Kind, row: bytes, has_key: bool) -> None:
    """Also where only the key of old images is asked for."""
    unique = {"PRIMARY": ["a"]} if has_key else {}
    info = table([("a", not_null(INT)), ("b", INT)], unique=unique)
    view, rows = view_of(info, settled=1 << 62), rows_of(info, [(kind, row)])
    for rows_min in (IN_STEP, ONE_BY_ONE):
        with pytest.raises(DecodeError, match="commit_ts 1000"):
            decoded(view, rows, rows_min, whole=False)


@FEW
@given(data=st.data(), info=tables())
def test_rows_of_format_2_are_decoded_by_general_decoder(data: st.DataObject, info: TableInfo) -> None:
    steps = data.draw(steps_of(info, most=3))
    rows = []
    for kind, old, new in steps:
        if kind == "insert":
            handle = _handle(info, new)
            row = {n: v for n, v in decode_insert(info, encode_insert(info, new, rowid=7))[1].items() if n > 0}
            rows += [(Kind.INSERT, handle + encode_row_v2(row)), encoded(info, ("insert", {}, new))]
        elif kind == "delete":
            rows += [(Kind.DELETE, encode_row_v2(old)), encoded(info, ("delete", old, {}))]
    if rows:
        found = both(view_of(info, settled=1 << 62), rows_of(info, rows))
        assert [row[6:] for row in found[::2]] == [row[6:] for row in found[1::2]]


def _handle(info: TableInfo, values: dict[int, Datum]) -> bytes:
    """What stands before an inserted row."""
    whole, size = encode_insert(info, values, rowid=7), 0
    for _ in range(len(handle_columns(info)) or 1):
        size = decode_one(whole, size)[1]
    return whole[:size]


def test_rows_without_trailing_columns_end_before_next_row() -> None:
    """TiDB leaves a NULL out of an insert; what follows in the buffer is another row, which begins like a column."""
    info = table([("id", INT), ("a", INT), ("b", TEXT)], handle="id")
    steps: list[Step] = [("insert", {}, {1: n, 2: None, 3: None}) for n in range(4)]
    rows = rows_of(info, [encoded(info, step) for step in steps])
    found = images(decoded(view_of(info, settled=1 << 62), rows, IN_STEP))
    assert [row[7] for row in found] == [(n, None, None) for n in range(4)]


def test_row_with_only_its_key_is_decoded() -> None:
    info = table([("id", INT)], handle="id")
    rows = rows_of(info, [encoded(info, ("insert", {}, {1: n})) for n in range(3)])
    assert [row[7] for row in both(view_of(info, settled=1 << 62), rows)] == [(0,), (1,), (2,)]


def test_rows_before_and_after_added_and_dropped_columns_are_decoded() -> None:
    """Rows of the version before and behind a DDL, as the table is now: defaults, and what is gone left out."""
    old = table([("id", INT), ("gone", TEXT), ("v", INT)], handle="id")
    new = table([("id", INT), ("v", INT)], handle="id")
    come = ColumnInfo(id=9, name="new", offset=2, type=not_null(INT), origin_default="7")
    v = replace(old.columns[2], offset=1)
    new = replace(new, columns=(new.columns[0], v, come))
    view = altered(old, new)
    before = [encoded(old, ("insert", {}, {1: 1, 2: b"x", 3: 4})), encoded(old, ("delete", {1: 2, 2: None, 3: 5}, {}))]
    before.append(encoded(old, ("update", {1: 3, 2: None, 3: 1}, {1: 3, 2: b"y", 3: 2})))
    found = both(view, rows_of(old, before))
    assert [row[6:] for row in found] == [(None, (1, 4, 7)), ((2, 5, 7), None), ((3, 1, 7), (3, 2, 7))]
    after = [encoded(new, ("insert", {}, {1: 1, 3: 4, 9: 8}))]
    assert [row[7] for row in both(view, rows_of(new, after, version=2))] == [(1, 4, 8)]


def test_value_of_older_column_type_is_cast_to_new_one() -> None:
    """A change of type gives a new id: rows of the version before it are cast, in the general way."""
    old = table([("id", INT), ("v", INT)], handle="id")
    text = ColumnInfo(id=5, name="v", offset=1, type=TEXT)
    new = replace(old, columns=(old.columns[0], text))
    view = altered(old, new)
    versions = replace(view.tables[old.id], inherited=((5, 2),))
    view = replace(view, tables={old.id: versions})
    rows = rows_of(old, [encoded(old, ("insert", {}, {1: n, 2: 40 + n})) for n in range(2)])
    assert [row[7] for row in both(view, rows)] == [(0, b"40"), (1, b"41")]


def test_unknown_column_raises_unknown_column_with_its_commit_ts() -> None:
    info = table([("id", INT), ("v", INT)], handle="id")
    more = table([("id", INT), ("v", INT), ("w", INT)], handle="id")
    view = altered(info, info, unknown_columns={})
    rows = rows_of(info, [encoded(more, ("insert", {}, {1: n, 2: 2, 3: 3})) for n in range(3)], version=2)
    for rows_min in (IN_STEP, ONE_BY_ONE):
        with pytest.raises(UnknownColumn) as error:
            decoded(view, rows, rows_min)
        assert (error.value.column_id, error.value.commit_ts) == (3, 1000)


def test_integer_out_of_its_column_range_is_refused() -> None:
    """A negative number in an unsigned column, and a number that a signed one cannot hold."""
    for kind, value in ((FieldType(Tp.LONG, 32, 10, 0), -1), (INT, Uint(1 << 63))):
        info = table([("id", INT), ("v", kind)], handle="id")
        rows = rows_of(info, [encoded(info, ("insert", {}, {1: 1, 2: value}))])
        for rows_min in (IN_STEP, ONE_BY_ONE):
            with pytest.raises(DecodeError, match=r"`db`.`t` .*commit_ts 1000.*does not fit"):
                decoded(view_of(info, settled=1 << 62), rows, rows_min)


def test_invalid_set_or_bit_value_is_refused_when_whole_rows_are_wanted() -> None:
    """A fold looks at what it writes alone."""
    flags = FieldType(Tp.SET, 0, 1, 0, "utf8mb4", "utf8mb4_bin", ("x", "y"))
    for kind in (flags, FieldType(Tp.BIT, Flag.UNSIGNED, 2, 0)):
        info = table([("id", INT), ("v", kind)], handle="id")
        for step in (("insert", {}, {1: 1, 2: Uint(4)}), ("delete", {1: 1, 2: Uint(4)}, {})):
            rows = rows_of(info, [encoded(info, step)])  # type: ignore[arg-type]
            for rows_min in (IN_STEP, ONE_BY_ONE):
                with pytest.raises(DecodeError, match=r"`db`.`t` .*commit_ts 1000"):
                    decoded(view_of(info, settled=1 << 62), rows, rows_min)
                assert sum(map(len, decoded(view_of(info, settled=1 << 62), rows, rows_min, whole=False))) == 1


def test_fold_reads_only_key_of_old_images() -> None:
    info = table([("id", INT), ("v", TEXT)], handle="id")
    steps: list[Step] = [("update", {1: 1, 2: b"a"}, {1: 1, 2: b"b"}), ("delete", {1: 1, 2: b"b"}, {})]
    rows = rows_of(info, [encoded(info, step) for step in steps])
    for rows_min in (IN_STEP, ONE_BY_ONE):
        update, delete = decoded(view_of(info, settled=1 << 62), rows, rows_min, whole=False)
        assert update.old is not None and delete.old is not None
        assert update.old[1] is None and delete.old[1] is None
        assert update.old[0].to_pylist() == [1]


def test_rows_of_several_tables_are_decoded_apart_and_filtered_ones_left_out() -> None:
    """Transactions of several tables; a table that nobody knows stops them, one that is filtered is left out."""
    one = table([("id", INT), ("v", TEXT)], handle="id", table_id=1)
    two = table([("a", not_null(TEXT)), ("b", INT)], unique={"PRIMARY": ["a"]}, clustered=True, table_id=2)
    dice = random.Random(1)
    payloads, expected = [], []
    for number in range(200):
        steps: list[tuple[TableInfo, Step]] = []
        for info in dice.choices((one, two), k=dice.randrange(1, 4)):
            values = {1: number, 2: b"x"} if info is one else {1: b"k%d" % number, 2: None}
            steps.append((info, ("insert", {}, values)))  # type: ignore[arg-type]
        steps.sort(key=lambda step: step[0].id)
        payloads.append(transaction(steps, commit_ts=BEGIN_TS + number))
        expected += [(info.id, BEGIN_TS + number, tuple(step[2].values())) for info, step in steps]
    rows = scan_all(dice.sample(payloads, len(payloads))).rows
    for rows_min in (IN_STEP, 150, ONE_BY_ONE):
        found = images(decoded(view_of(one, two), rows, rows_min))
        assert [(row[1], row[3], row[7]) for row in found] == expected
    with pytest.raises(TableUnknown, match="table id 2"):
        decoded(view_of(one), rows, IN_STEP)


def test_clustered_key_under_collation_is_read_from_row() -> None:
    """Under a collation a clustered column stands in the row, and what is before the row is not it."""
    kind = not_null(FieldType(Tp.VARCHAR, 0, 20, 0, "utf8mb4", "utf8mb4_general_ci"))
    info = table([("k", kind), ("v", INT)], unique={"PRIMARY": ["k"]}, clustered=True)
    values = {1: b"Abc", 2: 5}
    row = encoded(info, ("insert", {}, values))[1]
    assert not row.startswith(encode_handle_value(info.columns[0], -1, b"Abc", new_collation=False))
    found = images(decoded(view_of(info, settled=1 << 62), rows_of(info, [(Kind.INSERT, row)] * 2), IN_STEP))
    assert [r[7] for r in found] == [(b"Abc", 5)] * 2


def test_codec_of_table_version_is_made_once() -> None:
    info = table([("id", INT)], handle="id")
    decoder = ColumnDecoder(view_of(info, settled=1 << 62))
    rows = rows_of(info, [encoded(info, ("insert", {}, {1: 1}))])
    first, second = (decoder.codec(group) for group in [*decoder.groups(rows), *decoder.groups(rows)])
    assert first is second
    assert isinstance(first, Codec)


# Numbers read at many offsets at once are what the reader of one gives.


def read(parts: list[bytes]) -> list[tuple[int, int]]:
    """(value, size) of the number that each part begins with."""
    at = np.cumsum([0, *map(len, parts)])[:-1]
    value, size = Buffer(parts).uvarint(at)
    return list(zip(value.tolist(), size.tolist(), strict=True))


@pytest.mark.parametrize("bits", [7, 14, 21, 56, 64])
@given(data=st.data())
def test_varints_of_mixed_sizes_are_read_as_each_alone(bits: int, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=9))
    behind = data.draw(st.binary(max_size=3))  # whatever follows is not looked at
    assert read([encode_uvarint(number) + behind for number in numbers]) == [
        (number, len(encode_uvarint(number))) for number in numbers
    ]


@given(parts=st.lists(st.binary(min_size=10, max_size=12), min_size=1, max_size=5))
def test_any_bytes_are_read_as_varint_or_as_none(parts: list[bytes]) -> None:
    for part, (value, size) in zip(parts, read(parts), strict=True):
        try:
            wanted = decode_uvarint(part, 0)
        except DecodeError:
            assert size == 0
        else:
            assert (value, size) == wanted
