"""Varints of many numbers are those of each."""

from __future__ import annotations

import numpy as np
from binlog.tidb.varint import encode_uvarint
from hypothesis import given
from hypothesis import strategies as st

from drainer.protocol.protobuf_bytes import uvarints

# Of every width.
NUMBERS = st.integers(0, 64).flatmap(lambda bits: st.integers((1 << bits) >> 1, (1 << bits) - 1))


@given(st.lists(NUMBERS, max_size=20))
def test_uvarints_of_array_equal_those_of_each_number(numbers: list[int]) -> None:
    assert uvarints(np.array(numbers, np.uint64)) == [encode_uvarint(number) for number in numbers]
