"""How a message contains events. The message's key holds the version and the key of each event, the message's value
holds the value of each event. A length of eight bytes is in front of each."""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from drainer.changes.vector import Ints
from drainer.protocol.encoded_columns import EncodedColumns
from drainer.protocol.encoder import RECORD_OVERHEAD, Message
from drainer.protocol.errors import MessageError

VERSION: Final = (1).to_bytes(8, "big")
_LENGTH: Final = struct.Struct(">Q")
_length = _LENGTH.pack
LENGTH_BYTES: Final = _LENGTH.size
# The key of a row, as TiCDC and this project write it. Others, such as names with escapes, are left to the parser.
_ROW_KEY: Final = re.compile(
    rb'{"ts":(?P<ts>[1-9][0-9]{0,18}),'
    rb'(?P<name>"scm":"(?P<schema>[^"\\\x00-\x1f]*)","tbl":"(?P<table>[^"\\\x00-\x1f]*)")'
    rb'(?:,"(?:rid|ptn)":(?:0|-?[1-9][0-9]{0,18}))*,"t":1}'
)


def frame(rows: EncodedColumns, max_bytes: int, max_rows: int) -> Iterator[Message]:
    """Yield messages of at most `max_rows` rows and at most `max_bytes` bytes. A single row may exceed `max_bytes`.
    Messages are slices of the concatenated keys and of the concatenated values."""
    count = len(rows.commit_ts)
    if not count:
        return
    keys, key_ends = _length_prefixed(rows.keys)
    values, value_ends = _length_prefixed(rows.values)
    ends = [0, *np.add(key_ends, value_ends).tolist()]
    key_at, value_at = [0, *key_ends.tolist()], [0, *value_ends.tolist()]
    room = max_bytes - RECORD_OVERHEAD - len(VERSION)
    begin = 0
    while begin < count:
        most = min(begin + max_rows, count)
        # The end of the last row that fits. A single row may be longer.
        end = max(bisect_right(ends, ends[begin] + room, begin + 1, most + 1) - 1, begin + 1)
        key = VERSION + keys[key_at[begin] : key_at[end]].tobytes()
        value = values[value_at[begin] : value_at[end]].tobytes()
        yield Message(key, value, end - begin, int(rows.commit_ts[end - 1]))
        begin = end


def _length_prefixed(column: Any) -> tuple[memoryview, Ints]:
    """Concatenate the values, each after its length. Return the bytes, and the offset at which each value ends."""
    count = len(column)
    lengths = pc.binary_length(column).to_numpy().astype(np.int64)
    column_indexes = pa.py_buffer(np.arange(0, 8 * (count + 1), 8, dtype=np.int64))
    heads = pa.Array.from_buffers(pa.large_binary(), count, [None, column_indexes, pa.py_buffer(lengths.astype(">i8"))])
    joined = pc.binary_join_element_wise(heads, column, pa.scalar(b"", pa.large_binary()))
    return memoryview(joined.buffers()[2]), np.cumsum(lengths + _LENGTH.size)


def single(key: bytes, value: bytes, commit_ts: int) -> Message:
    """Return the message of one DDL, resolved or Admin event."""
    return Message(VERSION + _length(len(key)) + key, _length(len(value)) + value, 0, commit_ts)


def unframe(key: bytes | None, value: bytes | None) -> list[tuple[bytes, bytes]]:
    """Return key and value of each event. Raises MessageError if the bytes are not framed in this way, or the numbers
    of keys and values differ."""
    key = key or b""
    if key[:8] != VERSION:
        raise MessageError(f"open-protocol: the key begins with {key[:8].hex() or 'nothing'}, only version 1 is known")
    keys, values = _parts(key, 8, "key"), _parts(value or b"", 0, "value")
    if len(keys) != len(values):
        raise MessageError(f"open-protocol: {len(keys)} keys and {len(values)} values in one message")
    return list(zip(keys, values, strict=True))


def row_key(key: bytes) -> re.Match[bytes] | None:
    """Match the key of a message that has exactly one row, without parsing JSON. The groups of the match are `ts`,
    `schema` and `table`, and `name`, the bytes that contain schema and table. None for any other message."""
    begin = len(VERSION) + LENGTH_BYTES
    row = _ROW_KEY.match(key, begin)
    is_whole = row is not None and row.end() == len(key) and key[:begin] == VERSION + _length(len(key) - begin)
    return row if is_whole else None


def row_keys(key: bytes) -> list[re.Match[bytes]]:
    """Match the key of each row of a message, as `row_key` does. Empty if the message has other events, too."""
    found, at = list[re.Match[bytes]](), len(VERSION)
    while at < len(key):
        begin = at + LENGTH_BYTES
        row = _ROW_KEY.match(key, begin)
        if row is None or row.end() - begin != int.from_bytes(key[at:begin], "big"):
            return []
        found.append(row)
        at = row.end()
    return found if key[:8] == VERSION else []


def _parts(data: bytes, at: int, what: str) -> list[bytes]:
    parts: list[bytes] = []
    while at < len(data):
        begin = at + 8
        end = begin + int.from_bytes(data[at:begin], "big")
        if end > len(data) or begin > len(data):
            raise MessageError(f"open-protocol: the {what} ends within event {len(parts)}, which begins at byte {at}")
        parts.append(data[begin:end])
        at = end
    return parts
