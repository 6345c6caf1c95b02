"""Inserts, updates and deletes as TiDB lays them out."""

from __future__ import annotations

import dataclasses

import pytest
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum, Duration, Uint, encode_value
from binlog.tidb.decimal import Decimal
from binlog.tidb.flatten import flatten
from binlog.tidb.json import BinaryJSON
from binlog.tidb.row import (
    decode_delete,
    decode_insert,
    decode_row,
    decode_row_v2,
    decode_update,
    encode_delete,
    encode_insert,
    encode_update,
    needs_restored_data,
    sort_key,
)
from binlog.tidb.table import ROWID
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tidb_codecs import encode_row, encode_row_v2
from tests.unit.tidb import tables
from tests.unit.tidb.damage import survives
from tests.unit.tidb.strategies import int64, row_datums, rows

Values = dict[int, Datum]
names = st.none() | st.binary(max_size=30)


@given(rows)
def test_encoded_row_decodes_to_same_values_and_damage_raises_decode_error_only(values: Values) -> None:
    data = encode_row(values)
    decoded = decode_row(b"?" + data, 1)
    assert {n: (type(v), v) for n, v in decoded.items()} == {n: (type(v), v) for n, v in values.items()}
    assert list(decoded) == list(values)
    survives(decode_row, data, rounds=20)
    survives(decode_update, data + data, rounds=20)


@given(rows, rows)
def test_encoded_update_decodes_to_old_and_new_row(old: Values, other: Values) -> None:
    new = {n: other.get(n) for n in old}
    data = encode_row(old) + encode_row(new) if old else b"\x00"
    assert decode_update(data) == (old, new)


def test_empty_row_is_encoded_as_one_zero_byte() -> None:
    assert encode_row({}) == b"\x00"
    assert decode_row(b"\x00") == {}
    with pytest.raises(DecodeError, match="at least one byte"):
        decode_row(b"")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("0802", "insufficient"),
        ("08020206", "insufficient"),
        ("0802020661", "expected length: 3"),
        ("0902", "column id was expected"),
        ("08020802" * 2, "occurs twice"),
        ("80", "column id was expected"),
        ("0880", "insufficient"),
    ],
)
def test_truncated_or_invalid_row_raises_decode_error(data: str, complaint: str) -> None:
    with pytest.raises(DecodeError, match=complaint):
        decode_row(bytes.fromhex(data))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("08020802", "corrupted cols num: 1 vs 0"),
        ("0802080208040802" + "08020802", "corrupted cols num: 2 vs 1"),
        ("08020802" * 3, "three times"),
        ("", "corrupted cols num: 0 vs 0"),
    ],
)
def test_update_with_unequal_columns_of_old_and_new_row_raises_decode_error(data: str, complaint: str) -> None:
    with pytest.raises(DecodeError, match=complaint):
        decode_update(bytes.fromhex(data))


@given(int64, names)
def test_insert_into_table_with_int_key_decodes_to_handle_and_row(number: int, name: bytes | None) -> None:
    table = tables.handle_table()
    data = encode_insert(table, {1: number, 2: name})
    handle, row = decode_insert(table, data)
    assert handle == (number,)
    assert row == ({1: number} if name is None else {1: number, 2: name})
    survives(lambda damaged: decode_insert(table, damaged), data, rounds=20)


@given(st.integers(0, (1 << 64) - 1))
def test_insert_with_unsigned_key_has_signed_handle_and_unsigned_column(number: int) -> None:
    table = dataclasses.replace(tables.handle_table(), columns=(tables.column(1, "id", tables.UNSIGNED_KEY),))
    data = encode_insert(table, {1: Uint(number)})
    assert data[0] == 8
    _, row = decode_insert(table, data)
    assert (type(row[1]), row[1]) == (Uint, number)


@given(int64, int64)
def test_row_of_keyless_table_carries_its_rowid(number: int, rowid: int) -> None:
    table = tables.keyless_table()
    values: Values = {1: number, 2: b"x"}
    data = encode_insert(table, values, rowid=rowid)
    assert decode_insert(table, data) == ((rowid,), values | {ROWID: rowid})
    assert encode_insert(table, values | {ROWID: rowid}) == data
    with_id = values | {ROWID: rowid}
    assert decode_delete(table, encode_delete(table, with_id)) == with_id
    assert decode_update(encode_update(table, with_id, with_id)) == (with_id, with_id)


def test_insert_without_handle_is_refused() -> None:
    with pytest.raises(ValueError, match="table n: _tidb_rowid is the row's handle"):
        encode_insert(tables.keyless_table(), {1: 1})
    with pytest.raises(ValueError, match="table t: id is the row's handle"):
        encode_insert(tables.handle_table(), {2: b"x"})
    with pytest.raises(DecodeError, match="handle"):
        decode_insert(tables.handle_table(), encode_value(b"x") + b"\x00")


def test_insert_into_clustered_table_without_primary_index_raises_decode_error() -> None:
    table = dataclasses.replace(tables.clustered_table(tables.VARCHAR), indexes=())
    with pytest.raises(DecodeError, match="Unsupported clustered index without primary key"):
        decode_insert(table, b"\x00\x00")


def test_clustered_string_with_collation_is_taken_from_row_and_not_from_handle() -> None:
    """The handle has the sort key, so the row's value wins."""
    table = tables.clustered_table(tables.VARCHAR)
    data = encode_insert(table, {1: b"ab  ", 2: 1})
    handle, row = decode_insert(table, data)
    assert handle == (b"ab",)
    assert row[1] == b"ab  "
    ci = tables.clustered_table(tables.VARCHAR_CI)
    handle, row = decode_insert(ci, encode_insert(ci, {1: b"ab", 2: 1}))
    assert handle == (b"\x00A\x00B",)
    assert row[1] == b"ab"


@pytest.mark.parametrize("kind", [tables.VARBINARY, tables.DATETIME, tables.BIGINT])
def test_clustered_column_without_collation_is_taken_from_handle(kind: FieldType) -> None:
    table = tables.clustered_table(kind)
    value: Datum = b"ab " if kind is tables.VARBINARY else Uint(1 << 50) if kind is tables.DATETIME else 5
    data = encode_insert(table, {1: value, 2: 1})
    assert data == encode_value(value) + encode_row({2: 1})
    assert decode_insert(table, data) == ((value,), {1: value, 2: 1})


def test_clustered_string_under_old_collations_is_taken_from_handle() -> None:
    table = tables.clustered_table(tables.VARCHAR)
    data = encode_insert(table, {1: b"ab ", 2: 1}, new_collation=False)
    assert data == encode_value(b"ab ") + encode_row({2: 1})
    assert decode_insert(table, data)[1] == {1: b"ab ", 2: 1}


def test_clustered_prefix_key_has_prefix_in_handle_and_value_in_row() -> None:
    table = tables.clustered_table(tables.VARCHAR, length=2)
    data = encode_insert(table, {1: "äöü".encode(), 2: 1})
    assert decode_insert(table, data) == (("äö".encode(),), {1: "äöü".encode(), 2: 1})
    binary = tables.clustered_table(tables.VARBINARY, length=2)
    handle, row = decode_insert(binary, encode_insert(binary, {1: b"abc", 2: 1}))
    assert (handle, row[1]) == ((b"ab",), b"abc")
    assert 1 not in decode_insert(binary, encode_value(b"ab") + encode_row({2: 1}))[1]


def test_clustered_time_column_is_duration_in_handle_and_int_in_row() -> None:
    table = tables.clustered_table(tables.TIME)
    ns = flatten("-01:02:03", tables.TIME)
    data = encode_insert(table, {1: ns, 2: 1})
    handle, row = decode_insert(table, data)
    assert data[0] == 7
    assert type(handle[0]) is Duration
    assert (type(row[1]), row[1]) == (int, ns)


def test_each_kind_of_row_change_holds_columns_of_its_schema_states() -> None:
    table = tables.changing_table()
    values: Values = {n: n for n in range(1, 8)}
    assert list(decode_row(encode_insert(table, values), 2)) == [3, 4, 7]
    assert list(decode_update(encode_update(table, values, values))[0]) == [1, 3, 4, 7]
    assert list(decode_delete(table, encode_delete(table, values))) == [1, 2, 3, 4, 5, 6, 7]


def test_null_is_omitted_from_insert_only_if_column_has_no_default() -> None:
    table = tables.handle_table()
    for default in ({"default": "x"}, {"origin_default": "x"}, {"default_bit": b"\x01"}):
        name = tables.column(2, "name", tables.VARCHAR, **default)
        other = dataclasses.replace(table, columns=(table.columns[0], name))
        assert encode_insert(other, {1: 1}) == bytes.fromhex("0802080400")
    assert encode_insert(table, {1: 1}) == bytes.fromhex("080200")


def test_row_format_2_is_read_in_inserts_and_deletes_and_refused_in_updates() -> None:
    table = tables.handle_table()
    body = encode_row_v2({2: b"a", 99: 1})
    assert decode_insert(table, b"\x08\x02" + body) == ((1,), {1: 1, 2: b"a"})
    assert decode_delete(table, encode_row_v2({1: 1, 2: None})) == {1: 1, 2: None}
    with pytest.raises(DecodeError):
        decode_update(body)


@pytest.mark.parametrize(
    ("tp", "collate", "needed"),
    [
        (Tp.VARCHAR, "utf8mb4_bin", True),
        (Tp.STRING, "utf8mb4_bin", False),
        (Tp.STRING, "utf8mb4_general_ci", True),
        (Tp.VARCHAR, "utf8mb4_0900_bin", False),
        (Tp.VARCHAR, "binary", False),
        (Tp.LONGLONG, "utf8mb4_general_ci", False),
    ],
)
def test_need_for_restored_data_follows_type_and_collation(tp: Tp, collate: str, needed: bool) -> None:
    key = tables.column(1, "k", FieldType(tp, collate=collate))
    assert needs_restored_data(key) is needed
    assert not needs_restored_data(key, new_collation=False)


def test_sort_key_follows_collation() -> None:
    assert sort_key(b"ab  ", "utf8mb4_bin") == b"ab"
    assert sort_key(b"ab  ", "utf8mb4_0900_bin") == b"ab  "
    assert sort_key(b"aZ1", "utf8mb4_general_ci") == b"\x00A\x00Z\x001"
    assert sort_key("é".encode(), "utf8mb4_general_ci") == "é".encode()


# Row format v2.


def kind_of(value: Datum) -> FieldType:
    if isinstance(value, Uint):
        return FieldType(Tp.LONGLONG, int(Flag.UNSIGNED))
    if isinstance(value, BinaryJSON):
        return FieldType(Tp.JSON)
    if isinstance(value, bytes):
        return FieldType(Tp.BLOB)
    if isinstance(value, Decimal):
        return FieldType(Tp.NEWDECIMAL)
    if isinstance(value, float):
        return FieldType(Tp.DOUBLE)
    return FieldType(Tp.LONGLONG)


small = st.dictionaries(st.integers(1, 255), row_datums, max_size=8)
large = st.dictionaries(st.integers(1, 1 << 31), row_datums, min_size=1, max_size=8)


@given(small | large)
def test_encoded_row_v2_decodes_to_same_values_and_truncation_raises_decode_error(values: Values) -> None:
    data = encode_row_v2(values)
    types = {column_id: kind_of(value) for column_id, value in values.items()}
    decoded = decode_row_v2(data, types)
    assert {n: (type(v), v) for n, v in decoded.items()} == {n: (type(v), v) for n, v in values.items()}
    for cut in range(len(data)):
        with pytest.raises(DecodeError):
            decode_row_v2(data[:cut], types)
    survives(lambda damaged: decode_row_v2(damaged, types), data, rounds=20)


@given(small)
def test_row_v2_columns_without_known_type_are_skipped(values: Values) -> None:
    known = dict(list(values.items())[::2])
    decoded = decode_row_v2(encode_row_v2(values), {n: kind_of(v) for n, v in known.items()})
    assert decoded == known


def test_row_v2_beyond_64_kib_is_encoded_with_wide_offsets() -> None:
    values: Values = {1: b"x" * 65_536}
    data = encode_row_v2(values)
    assert data[1] == 1
    assert decode_row_v2(data, {1: FieldType(Tp.BLOB)}) == values


@pytest.mark.parametrize(("header", "size"), [(0, 5), (8, 9)])
def test_row_v2_checksum_is_skipped_and_excess_bytes_raise_decode_error(header: int, size: int) -> None:
    data = bytearray(encode_row_v2({1: b"x"}))
    data[1] |= 2
    data += bytes((header,)) + bytes(size - 1)
    assert decode_row_v2(bytes(data), {1: FieldType(Tp.BLOB)}) == {1: b"x"}
    with pytest.raises(DecodeError, match="after the values"):
        decode_row_v2(bytes(data) + b"?", {})


def test_row_v2_time_types_decode_as_signed_or_unsigned_by_type() -> None:
    data = encode_row_v2({1: -5, 2: Uint(200), 3: 2024})
    types = {1: FieldType(Tp.DURATION), 2: FieldType(Tp.DATETIME), 3: FieldType(Tp.YEAR)}
    assert decode_row_v2(data, types) == {1: -5, 2: Uint(200), 3: 2024}


def test_encoding_column_id_beyond_32_bits_in_row_v2_is_refused() -> None:
    with pytest.raises(ValueError, match="format 2"):
        encode_row_v2({1 << 32: 1})


@given(st.binary(max_size=40))
def test_random_bytes_as_row_v2_raise_decode_error_only(data: bytes) -> None:
    types = {n: FieldType(tp) for n, tp in enumerate((Tp.LONGLONG, Tp.JSON, Tp.NEWDECIMAL, Tp.DOUBLE, Tp.BLOB))}
    survives(lambda damaged: decode_row_v2(damaged, types), b"\x80" + data, rounds=5)
