"""Numbers read at many offsets at once are what the reader of one gives."""

from __future__ import annotations

import numpy as np
import pytest
from binlog.errors import DecodeError
from binlog.tidb.varint import decode_uvarint, encode_uvarint
from hypothesis import given
from hypothesis import strategies as st

from drainer.changes.vector import Buffer


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
