"""Columns of binary strings as text for JSON: base64, or each byte as a character. A whole column at a time."""

from __future__ import annotations

from binascii import b2a_base64
from string import ascii_letters, digits
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from drainer.changes.texts import data_of
from drainer.protocol.json_text import json_string

# Values that are longer than this on average are written one by one: a place for each of their bytes takes more.
_SHORT_BYTES_MAX: Final = 256
_ALPHABET: Final = (ascii_letters[26:] + ascii_letters[:26] + digits + "+/").encode()
_PAIRS: Final = np.frombuffer(b"".join(bytes((a, b)) for a in _ALPHABET for b in _ALPHABET), np.uint16)
_LATIN1_BYTES: Final = np.array([len(json_string(chr(code)).encode()) - 2 for code in range(256)], np.uint8)


def base64(column: Any) -> Any:
    """Of a `binary` array: the standard alphabet, with padding."""
    data = data_of(column)
    if len(data) > _SHORT_BYTES_MAX * len(column):
        values = column.to_pylist()
        return pa.array([None if v is None else b2a_base64(v, newline=False) for v in values], pa.binary())
    places = _places(column)
    lengths = np.diff(places)
    ends = np.cumsum((lengths + 2) // 3)  # in groups of three bytes, which are four characters
    padded = np.zeros(3 * (ends[-1] if len(ends) else 0), np.uint8)
    padded[np.arange(len(data)) + np.repeat(3 * (ends - (lengths + 2) // 3) - places[:-1], lengths)] = data
    first, second, third = padded.reshape(-1, 3).astype(np.uint16).T
    text = np.empty((len(padded) // 3, 2), np.uint16)
    text[:, 0] = _PAIRS[first << 4 | second >> 4]
    text[:, 1] = _PAIRS[(second & 15) << 8 | third]
    chars = text.reshape(-1).view(np.uint8)
    rest = lengths % 3
    chars[4 * ends[rest != 0] - 1] = ord("=")
    chars[4 * ends[rest == 1] - 2] = ord("=")
    return _made(column, np.concatenate([[0], 4 * ends]), chars.tobytes())


def latin1_text(column: Any) -> Any:
    """Of a `binary` array: each byte is the character of ISO 8859-1 with its number, escaped as JSON has it."""
    data = data_of(column)
    text = json_string(data.tobytes().decode("iso-8859-1"))[1:-1].encode()
    places = _places(column)
    sizes = np.add.reduceat(np.append(_LATIN1_BYTES[data], np.uint8(0)), places[:-1], dtype=np.int64)
    sizes[np.diff(places) == 0] = 0
    return _made(column, np.concatenate([[0], np.cumsum(sizes)]), text)


def _places(column: Any) -> npt.NDArray[np.int64]:
    """Where in `data_of(column)` each value begins and the last one ends."""
    if not len(column):
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    places: npt.NDArray[np.int64] = offsets.astype(np.int64) - int(offsets[0])
    return places


def _made(column: Any, places: npt.NDArray[np.int64], text: bytes) -> Any:
    buffers = [None, pa.py_buffer(places.astype(np.int32)), pa.py_buffer(text)]
    found = pa.Array.from_buffers(pa.binary(), len(column), buffers)
    return pc.if_else(column.is_valid(), found, None) if column.null_count else found
