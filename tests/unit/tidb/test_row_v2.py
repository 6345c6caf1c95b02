"""Row format v2."""

from __future__ import annotations

import pytest
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum, Uint
from binlog.tidb.decimal import Decimal
from binlog.tidb.json import BinaryJSON
from binlog.tidb.row_v2 import decode_row_v2
from binlog.tidb.types import FieldType, Flag, Tp
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tidb_codecs import encode_row_v2
from tests.unit.tidb.damage import survives
from tests.unit.tidb.strategies import row_datums

Values = dict[int, Datum]


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
