"""How a message contains events: its key holds the version and the key of each event, its value holds the value of each
event, with a length of eight bytes in front of each. And how an event's value contains binary strings."""

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
from drainer.protocol.encoder import RECORD_OVERHEAD, EncodedColumns, Message
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


_SHORT: Final = {7: r"\a", 8: r"\b", 9: r"\t", 10: r"\n", 11: r"\v", 12: r"\f", 13: r"\r", 34: r"\""}
# ASCII bytes that are escaped, except for the backslash.
_ASCII: Final = {code: rf"\x{code:02x}" for code in (*range(32), 127)} | _SHORT
_UNTOUCHED: Final = bytes(code for code in range(32, 127) if code not in b'"\\')
_MEANT: Final = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_ESCAPE: Final = re.compile(
    r"""\\(?:(?P<short>[abtnvfr"\\])|x(?P<hex>[0-9a-fA-F]{2})|(?P<octal>[0-7]{3})
    |u(?P<four>[0-9a-fA-F]{4})|U(?P<eight>[0-9a-fA-F]{8})|(?P<wrong>))""",
    re.VERBOSE,
)
_RAW: Final = re.compile(r'["\n]')


class _Escapes(dict[int, int | str]):
    """A table for str.translate: maps code points above 127 that are not printable to their escapes."""

    def __missing__(self, code: int) -> int | str:
        escape = rf"\u{code:04x}" if code < 0x10000 else rf"\U{code:08x}"
        self[code] = made = code if chr(code).isprintable() else escape
        return made


_ESCAPES: Final = _Escapes()


def quote(value: bytes) -> str:
    """Escape bytes. A byte that is not part of valid UTF-8 becomes `\\xHH`, a code point that is not printable becomes
    `\\uXXXX` or `\\UXXXXXXXX`."""
    special = value.translate(None, _UNTOUCHED)
    if not special:
        return value.decode()
    text = value.replace(b"\\", rb"\\").decode("utf-8", "backslashreplace")
    for code in _ASCII.keys() & set(special):
        text = text.replace(chr(code), _ASCII[code])
    return text if text.isprintable() else text.translate(_ESCAPES)


def unquote(text: str) -> bytes:
    """Unescape text. Raises ValueError for text that Quote never writes and Unquote rejects."""
    if "\\" not in text:
        return _raw(text)
    parts, at = [], 0
    for escape in _ESCAPE.finditer(text):
        parts += [_raw(text[at : escape.start()]), _bytes_of(escape)]
        at = escape.end()
    return b"".join([*parts, _raw(text[at:])])


def _raw(text: str) -> bytes:
    found = _RAW.search(text)
    if found:
        raise ValueError(f"{found[0]!r} is not escaped")
    return text.encode()


def _bytes_of(escape: re.Match[str]) -> bytes:
    kind = escape.lastgroup
    digits = escape[kind] if kind else ""
    if kind == "short":
        return bytes((_MEANT[digits],))
    number = int(digits, 8 if kind == "octal" else 16) if kind != "wrong" else 256
    if kind in ("four", "eight") and number < 0x110000 and not 0xD800 <= number < 0xE000:
        return chr(number).encode()
    if kind in ("hex", "octal") and number < 256:
        return bytes((number,))
    raise ValueError(f"not an escape of Go at character {escape.start()}")
