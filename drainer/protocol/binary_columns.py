"""Columns of binary strings as text for JSON: base64, or each byte as one character. Converts a column at a time."""

from __future__ import annotations

import json
from binascii import b2a_base64
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from drainer.changes.texts import data_of
from drainer.protocol.json_text import json_string

# Columns with longer values on average are converted value by value, because the vectorised way needs an index for each
# byte.
_SHORT_BYTES_MAX: Final = 256
# Characters that `json_string` escapes and json.dumps does not.
_ESCAPES: Final = [(char.encode(), json_string(char)[1:-1].encode()) for char in "<>&"]
_LATIN1_BYTES: Final = np.array([len(json_string(chr(code)).encode()) - 2 for code in range(256)], np.uint8)


def base64(column: Any) -> Any:
    """Convert a `binary` array to base64 with the standard alphabet and padding. All values are encoded in one call:
    zero bytes after each value fill its last group of three, and the padding characters then replace their text."""
    data = data_of(column)
    if len(data) > _SHORT_BYTES_MAX * len(column):
        values = column.to_pylist()
        return pa.array([None if v is None else b2a_base64(v, newline=False) for v in values], pa.binary())
    lengths = np.diff(_places(column))
    rest = lengths % 3
    ends = np.cumsum((lengths + 2) // 3)  # in groups of three bytes, which are four characters
    one_more, two_more = ends[rest != 0], ends[rest == 1]
    taken = np.ones(3 * int(ends[-1]) if len(ends) else 0, np.bool_)
    taken[3 * one_more - 1] = False
    taken[3 * two_more - 2] = False
    padded = np.zeros(len(taken), np.uint8)
    padded[taken] = data
    text = bytearray(b2a_base64(padded.data, newline=False))
    chars = np.frombuffer(text, np.uint8)
    chars[4 * one_more - 1] = ord("=")
    chars[4 * two_more - 2] = ord("=")
    return _made(column, np.concatenate([[0], 4 * ends]), text)


def latin1_text(column: Any) -> Any:
    """Convert a `binary` array: each byte becomes the character of ISO 8859-1 with its number, escaped for JSON."""
    data = data_of(column)
    text = json.dumps(data.tobytes().decode("iso-8859-1"), ensure_ascii=False)[1:-1].encode()
    for char, escape in _ESCAPES:
        text = text.replace(char, escape)
    places = _places(column)
    sizes = np.add.reduceat(np.append(np.take(_LATIN1_BYTES, data), np.uint8(0)), places[:-1], dtype=np.int64)
    sizes[np.diff(places) == 0] = 0
    return _made(column, np.concatenate([[0], np.cumsum(sizes)]), text)


def _places(column: Any) -> npt.NDArray[np.int64]:
    """Return the offsets in `data_of(column)` at which the values begin, and the offset at which the last one ends."""
    if not len(column):
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    places: npt.NDArray[np.int64] = offsets.astype(np.int64) - int(offsets[0])
    return places


def _made(column: Any, places: npt.NDArray[np.int64], text: bytes | bytearray) -> Any:
    buffers = [None, pa.py_buffer(places.astype(np.int32)), pa.py_buffer(text)]
    found = pa.Array.from_buffers(pa.binary(), len(column), buffers)
    return pc.if_else(column.is_valid(), found, None) if column.null_count else found
