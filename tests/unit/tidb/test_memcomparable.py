"""Bytes in groups of eight."""

from __future__ import annotations

import pytest
from binlog.errors import DecodeError
from binlog.tidb.memcomparable import (
    cut_bytes,
    decode_bytes,
    encode_bytes,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tidb.damage import refuses_every_cut, survives


@given(st.binary(max_size=40))
def test_encoded_bytes_decode_to_same_bytes_and_truncation_raises_decode_error(data: bytes) -> None:
    encoded = encode_bytes(data)
    assert len(encoded) == (len(data) // 8 + 1) * 9
    assert decode_bytes(b"?" + encoded + b"?", 1) == (data, 1 + len(encoded))
    assert cut_bytes(encoded + b"?") == len(encoded)
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
