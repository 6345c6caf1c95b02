"""Columns of binary strings as text: each value as Python's own functions write it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from drainer.protocol.binary_columns import base64, latin1_text
from drainer.protocol.json_text import json_string


def latin1(value: bytes) -> bytes:
    return json_string(value.decode("iso-8859-1"))[1:-1].encode()


@pytest.mark.parametrize(("written", "alone"), [(base64, b64encode), (latin1_text, latin1)])
@given(values=st.lists(st.none() | st.binary(max_size=9), max_size=7))
@example(values=[])
@example(values=[None])
@example(values=[b"", b"", None, b""])
@example(values=[bytes(range(256)), b'<>&"\\', None, b"\x00", b"a"])
@example(values=[b"x" * 2000, None, b"", b"yz"])
def test_binary_column_text_equals_that_of_each_value(
    written: Callable[[Any], Any], alone: Callable[[bytes], bytes], values: Sequence[bytes | None]
) -> None:
    expected = [None if value is None else alone(value) for value in values]
    assert written(pa.array(values, pa.binary())).to_pylist() == expected
    column = pa.array([b"before", *values, b"behind"], pa.binary()).slice(1, len(values))
    assert written(column).to_pylist() == expected
    masked = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), *pa.array([b"ab", b"c"]).buffers()[1:]])
    assert written(masked).to_pylist() == [None, alone(b"c")]  # NULL, although there are bytes below it
