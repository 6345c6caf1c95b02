"""Keys of records, indexes and meta data."""

from __future__ import annotations

import pytest
from binlog.errors import DecodeError
from binlog.tidb import key
from binlog.tidb.datum import (
    Datum,
    decode_bytes,
    encode_bytes,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.support import tidb_codecs
from tests.unit.tidb.damage import refuses_every_cut, survives
from tests.unit.tidb.strategies import datums, int64

handles = st.lists(datums, min_size=1, max_size=3).map(tuple)


@given(int64, int64)
def test_record_key_with_int_handle_decodes_to_table_and_handle(table_id: int, handle: int) -> None:
    data = key.record_key(table_id, handle)
    assert len(data) == 19
    assert data.startswith(key.table_prefix(table_id))
    assert tidb_codecs.decode_table_key(data) == tidb_codecs.RecordKey(table_id, handle)


@given(int64, handles)
def test_record_key_with_common_handle_decodes_to_table_and_values(table_id: int, handle: tuple[Datum, ...]) -> None:
    """A short one is padded to nine bytes, which read back as NULLs."""
    data = key.record_key(table_id, handle)
    decoded = tidb_codecs.decode_table_key(data)
    assert isinstance(decoded, tidb_codecs.RecordKey)
    assert isinstance(decoded.handle, tuple)
    assert decoded.handle[: len(handle)] == handle
    assert not any(value is not None for value in decoded.handle[len(handle) :])


@given(int64, int64, handles, st.none() | int64)
def test_index_key_decodes_to_table_index_and_values(
    table_id: int, index_id: int, values: tuple[Datum, ...], handle: int | None
) -> None:
    data = tidb_codecs.index_key(table_id, index_id, values, handle)
    expected = values if handle is None else (*values, handle)
    assert tidb_codecs.decode_table_key(data) == tidb_codecs.IndexKey(table_id, index_id, expected)


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_meta_key_decodes_to_name_and_field(name: bytes, field: bytes) -> None:
    assert tidb_codecs.decode_meta_key(tidb_codecs.meta_string_key(name)) == tidb_codecs.MetaKey(name)
    assert tidb_codecs.decode_meta_key(key.meta_hash_key(name, field)) == tidb_codecs.MetaKey(name, field)


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_field_of_hash_key_is_decoded_and_that_of_another_hash_refused(name: bytes, field: bytes) -> None:
    data = key.meta_hash_key(name, field)
    assert key.meta_hash_field(data, name) == field
    for damaged in (data + b"?", data[:-1], key.meta_prefix(name, key.META_LIST) + encode_bytes(field)):
        with pytest.raises(DecodeError):
            key.meta_hash_field(damaged, name)
    survives(lambda found: key.meta_hash_field(found, name), data, rounds=5)


@pytest.mark.parametrize(
    "data", [b"", b"x", b"t", b"t" + bytes(8), b"t" + bytes(8) + b"_x", b"t" + bytes(8) + b"_r\x00"]
)
def test_decoding_invalid_table_key_raises_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        tidb_codecs.decode_table_key(data)


@pytest.mark.parametrize(
    "data", [b"", b"t", b"m", tidb_codecs.meta_string_key(b"a") + b"?", key.meta_hash_key(b"a", b"b") + b"?"]
)
def test_decoding_invalid_meta_key_raises_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        tidb_codecs.decode_meta_key(data)


@given(handles)
def test_damaged_key_raises_decode_error_only(handle: tuple[Datum, ...]) -> None:
    survives(tidb_codecs.decode_table_key, key.record_key(1, handle), rounds=20)
    survives(tidb_codecs.decode_table_key, tidb_codecs.index_key(1, 2, handle), rounds=20)
    survives(tidb_codecs.decode_meta_key, key.meta_hash_key(b"DBs", b"DB:12345678"), rounds=20)


# Bytes in groups of eight.


@given(st.binary(max_size=40))
def test_encoded_bytes_decode_to_same_bytes_and_truncation_raises_decode_error(data: bytes) -> None:
    encoded = encode_bytes(data)
    assert len(encoded) == (len(data) // 8 + 1) * 9
    assert decode_bytes(b"?" + encoded + b"?", 1) == (data, 1 + len(encoded))
    refuses_every_cut(decode_bytes, encoded)


@given(st.binary(max_size=20), st.binary(max_size=20), st.binary(max_size=3), st.binary(max_size=3))
def test_encoded_bytes_sort_as_their_values_whatever_follows(
    left: bytes, right: bytes, after: bytes, behind: bytes
) -> None:
    a, b = encode_bytes(left) + after, encode_bytes(right) + behind
    if left != right:
        assert (a < b) == (left < right)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("0000000000000000f6", "invalid marker"),
        ("0000000000000001f7", "invalid padding"),
        ("6100000000000001f8", "invalid padding"),
        ("00000000000000", "insufficient"),
    ],
)
def test_invalid_marker_or_padding_of_encoded_bytes_raises_decode_error(data: str, complaint: str) -> None:
    with pytest.raises(DecodeError, match=complaint):
        decode_bytes(bytes.fromhex(data))


@given(st.binary(max_size=30))
def test_random_input_as_encoded_bytes_raises_decode_error_only(data: bytes) -> None:
    survives(decode_bytes, data, rounds=3)
