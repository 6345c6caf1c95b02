"""Encodes Python values or JSON text as binary JSON, with the bytes that TiDB would write.

Object keys are sorted by their bytes. Numbers with `.`, `e` or `E` become floats. Other numbers become int64, uint64
or, if they fit neither, float. Values are stored one after the other, after the entries.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence

from .json import DEPTH_MAX, BinaryJSON, Code
from .varint import INT64_MAX, INT64_MIN, UINT64_MAX, encode_uvarint

KEY_BYTES_MAX = 65_535
_SURROGATE = re.compile("[\ud800-\udfff]")


def encode_json(value: object) -> BinaryJSON:
    """Encode None, bool, int, float, str, list, tuple or dict. A BinaryJSON, of any kind, stays as it is.

    Raises ValueError if the value nests deeper than 100, a key is longer than 65,535 bytes, or a number is too large,
    NaN or infinite. Raises TypeError for any other type.
    """
    code, body = _encode(value, 0)
    return BinaryJSON(bytes((code,)) + body)


def parse_json(text: str, minus_zero: float = 0) -> BinaryJSON:
    """Encode JSON text. `minus_zero`: the number -0, to TiDB an integer, although only a double is printed as -0.
    Raises ValueError if it is invalid."""

    def integer(digits: str) -> float:
        return minus_zero if digits == "-0" else _parse_int(digits)

    try:
        return encode_json(json.loads(text, parse_int=integer, parse_constant=_refuse))
    except RecursionError:
        raise ValueError(f"JSON nested deeper than {DEPTH_MAX}") from None


def _parse_int(digits: str) -> int | float:
    value = int(digits) if len(digits) < 30 else UINT64_MAX + 1
    return value if INT64_MIN <= value <= UINT64_MAX else float(digits)


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not a JSON number")


def _encode(value: object, depth: int) -> tuple[int, bytes]:
    if value is None or value is True or value is False:
        return Code.LITERAL, bytes((0 if value is None else 1 if value else 2,))
    if isinstance(value, BinaryJSON):
        return value[0], bytes(value[1:])
    if isinstance(value, int):
        return _encode_int(value)
    if isinstance(value, float):
        if value - value != 0:
            raise ValueError(f"{value} is not a JSON number")
        return Code.FLOAT64, struct.pack("<d", value)
    if isinstance(value, str):
        data = _utf8(value)
        return Code.STRING, encode_uvarint(len(data)) + data
    if depth >= DEPTH_MAX:
        raise ValueError(f"JSON nested deeper than {DEPTH_MAX}")
    if isinstance(value, Mapping):
        return Code.OBJECT, _encode_object(value, depth + 1)
    if isinstance(value, Sequence):
        return Code.ARRAY, _encode_array(value, depth + 1)
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")


def _utf8(text: str) -> bytes:
    r"""Encode text. A lone surrogate (JSON text may hold `\ud800`) becomes U+FFFD, as in Go."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text).encode()


def _encode_int(value: int) -> tuple[int, bytes]:
    if INT64_MIN <= value <= INT64_MAX:
        return Code.INT64, struct.pack("<q", value)
    if 0 <= value <= UINT64_MAX:
        return Code.UINT64, struct.pack("<Q", value)
    raise ValueError(f"{value} does not fit 64 bits")


def _encode_array(values: Sequence[object], depth: int) -> bytes:
    entries, body = _place(values, 8 + 5 * len(values), depth)
    return struct.pack("<II", len(values), 8 + len(entries) + len(body)) + entries + body


def _encode_object(members: Mapping[object, object], depth: int) -> bytes:
    found = {_key(name): value for name, value in members.items()}
    keys = sorted(found)
    start = 8 + 11 * len(keys)
    names = b"".join(keys)
    key_entries = bytearray()
    at = start
    for key in keys:
        key_entries += struct.pack("<IH", at, len(key))
        at += len(key)
    entries, body = _place([found[key] for key in keys], at, depth)
    return struct.pack("<II", len(keys), at + len(body)) + key_entries + entries + names + body


def _key(name: object) -> bytes:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is not a valid key of a JSON object")
    key = _utf8(name)
    if len(key) > KEY_BYTES_MAX:
        raise ValueError(f"a JSON key of {len(key)} bytes; {KEY_BYTES_MAX} is the limit")
    return key


def _place(values: Sequence[object], start: int, depth: int) -> tuple[bytes, bytes]:
    """Return the value entries and the bodies. The first body is at offset `start` of the container."""
    entries, body = bytearray(), bytearray()
    for value in values:
        code, part = _encode(value, depth)
        if code == Code.LITERAL:
            entries += bytes((code, part[0], 0, 0, 0))
        else:
            entries += struct.pack("<BI", code, start + len(body))
            body += part
    return bytes(entries), bytes(body)
