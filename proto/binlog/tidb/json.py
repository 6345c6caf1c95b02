"""TiDB's binary JSON: type code and value, decoded to text or Python values, and encoded from Python values or JSON
text with the bytes that TiDB would write.

A value is `code u8 | body`. Numbers are little-endian. Containers hold offsets relative to their own start:
array = count u32 | size u32 | count * (type u8 | offset u32) | values; object has count * (offset u32 | length u16) for
its keys in front of the value entries. Literals are stored inside their entry. Nesting is limited to 100.

Encoding sorts object keys by their bytes. Numbers with `.`, `e` or `E` become floats. Other numbers become int64,
uint64 or, if they fit neither, float. Values are stored one after the other, after the entries.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from math import isfinite
from typing import TypeAlias, TypeVar

from binlog.errors import DecodeError

from .time import core_unpack, duration_text
from .varint import INT64_MAX, INT64_MIN, TOO_SHORT, UINT64_MAX, decode_uvarint, encode_uvarint

V = TypeVar("V")
DEPTH_MAX = 100

JSONValue: TypeAlias = "bool | int | float | str | list[JSONValue] | dict[str, JSONValue] | None"


class Code(IntEnum):
    """The type code of a binary JSON value."""

    OBJECT = 0x01
    ARRAY = 0x03
    LITERAL = 0x04
    INT64 = 0x09
    UINT64 = 0x0A
    FLOAT64 = 0x0B
    STRING = 0x0C
    OPAQUE = 0x0D
    DATE = 0x0E
    DATETIME = 0x0F
    TIMESTAMP = 0x10
    DURATION = 0x11


_OBJECT, _ARRAY, _LITERAL, _INT64, _UINT64, _FLOAT64, _STRING, _OPAQUE, _DATE, _DATETIME, _TIMESTAMP, _DURATION = map(
    int, Code
)
_FIXED = {0x04: 1, 0x09: 8, 0x0A: 8, 0x0B: 8, 0x0E: 8, 0x0F: 8, 0x10: 8, 0x11: 12}
_LITERALS: Mapping[int, str] = {0: "null", 1: "true", 2: "false"}
_LITERAL_VALUES: Mapping[int, JSONValue] = {0: None, 1: True, 2: False}
_int64 = struct.Struct("<q")
_uint64 = struct.Struct("<Q")
_NUMBERS = {_INT64: _int64, _UINT64: _uint64, _FLOAT64: struct.Struct("<d")}
_uint32 = struct.Struct("<I")
_header = struct.Struct("<II")
_key_entry = struct.Struct("<IH")
_value_entry = struct.Struct("<BI")

_SPECIAL = re.compile(r'["\\\x00-\x1f\u2028\u2029\udc80-\udcff]')
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class BinaryJSON(bytes):
    """A JSON column's value as stored: type code and body. It compares as bytes. `text()` returns what MySQL shows."""

    __slots__ = ()

    def text(self) -> str:
        return decode_text(self)[0]

    def value(self) -> JSONValue:
        return decode_value(self)[0]


def _broken(pos: int, detail: str = TOO_SHORT) -> DecodeError:
    return DecodeError("JSON", offset=pos, detail=detail)


def cut_json(buf: bytes, pos: int = 0) -> int:
    """Return the position after the value at `pos`, which is not decoded. Raises DecodeError if it is truncated."""
    if pos >= len(buf):
        raise _broken(pos)
    return _cut_body(buf, pos + 1, buf[pos])


def _cut_body(buf: bytes, pos: int, code: int) -> int:
    if code in _FIXED:
        end = pos + _FIXED[code]
    elif code in (_OBJECT, _ARRAY):
        if pos + 8 > len(buf):
            raise _broken(pos)
        count, size = _header.unpack_from(buf, pos)
        end = pos + size
        if size < 8 + count * (11 if code == _OBJECT else 5):
            raise _broken(pos, f"a container of {count} values in {size} bytes")
    elif code == _STRING:
        length, start = decode_uvarint(buf, pos)
        end = start + length
    elif code == _OPAQUE:
        length, start = decode_uvarint(buf, pos + 1)
        end = start + length
    else:
        raise _broken(pos, f"Invalid JSON bytes: type code {code:#04x}")
    if end > len(buf):
        raise _broken(pos)
    return end


def quote(text: str) -> str:
    """Return a JSON string as TiDB prints it. Surrogates U+DC80…DCFF stand for bytes that were not UTF-8."""
    return f'"{_SPECIAL.sub(_escape, text)}"' if _SPECIAL.search(text) else f'"{text}"'


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    if char in _ESCAPES:
        return _ESCAPES[char]
    return "\\ufffd" if char >= "\udc80" else f"\\u{ord(char):04x}"


def float_text(value: float) -> str:
    """Format with the fewest digits that read back the same, as Go's encoding/json does. Raises DecodeError."""
    if not isfinite(value):
        raise _broken(0, f"{value} is not a JSON number")
    return number_text(value, repr(abs(value)), 1e-6, 1e21, "+d")


def number_text(value: float, shown: str, small: float, big: float, power: str) -> str:
    """Return a number from `small` to below `big` without exponent, any other with one, in the format `power`. `shown`:
    Python's repr of its absolute value, or another form of its digits."""
    sign = "-" if str(value)[0] == "-" else ""
    if value == 0:
        return f"{sign}0"
    digits, exponent = shortest_digits(shown)
    if small <= abs(value) < big:
        return sign + plain_notation(digits, exponent)
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{exponent - 1:{power}}"


def shortest_digits(shown: str) -> tuple[str, int]:
    """Return (digits, exponent) with value = 0.digits * 10^exponent, from Python's repr of a non-negative number."""
    mantissa, _, power = shown.partition("e")
    head, _, tail = mantissa.partition(".")
    digits = (head + tail).lstrip("0")
    leading = len(head + tail) - len(digits)
    return digits.rstrip("0") or "0", len(head) - leading + int(power or 0)


def plain_notation(digits: str, exponent: int) -> str:
    """Format without an exponent and without `.0`."""
    if exponent <= 0:
        return "0." + "0" * -exponent + digits
    if exponent >= len(digits):
        return digits + "0" * (exponent - len(digits))
    return f"{digits[:exponent]}.{digits[exponent:]}"


def _leaf_string(buf: bytes, pos: int, code: int) -> str | None:
    """Return the unquoted text of a value that is shown as a string, or None for any other code."""
    if code == _STRING:
        length, start = decode_uvarint(buf, pos)
        return buf[start : start + length].decode("utf-8", "surrogateescape")
    if code in (_DATE, _DATETIME, _TIMESTAMP):
        when = core_unpack(_uint64.unpack_from(buf, pos)[0])
        date = f"{when.year:04d}-{when.month:02d}-{when.day:02d}"
        time = f"{when.hour:02d}:{when.minute:02d}:{when.second:02d}.{when.microsecond:06d}"
        return date if code == _DATE else f"{date} {time}"
    if code == _DURATION:
        return duration_text(_int64.unpack_from(buf, pos)[0], 6)
    if code == _OPAQUE:
        length, start = decode_uvarint(buf, pos + 1)
        return f"base64:type{buf[pos]}:{base64.b64encode(buf[start : start + length]).decode()}"
    return None


def _leaf_number(buf: bytes, pos: int, code: int) -> int | float:
    number: int | float = _NUMBERS[code].unpack_from(buf, pos)[0]
    return number


def decode_text(buf: bytes, pos: int = 0) -> tuple[str, int]:
    """Decode to (text as MySQL shows a JSON column, position after the value). Raises DecodeError if it is invalid."""
    end = cut_json(buf, pos)
    return _text(buf, pos + 1, end, buf[pos], 0), end


def decode_value(buf: bytes, pos: int = 0) -> tuple[JSONValue, int]:
    """Decode to (Python value, position after it). Times, opaque values and strings become str."""
    end = cut_json(buf, pos)
    return _value(buf, pos + 1, end, buf[pos], 0), end


def _text(buf: bytes, pos: int, end: int, code: int, depth: int) -> str:
    if code == _OBJECT:
        members = _members(buf, pos, end, depth, _LITERALS, _child_text)
        return "{" + ", ".join([f"{_quoted_key(key)}: {text}" for key, text in members]) + "}"
    if code == _ARRAY:
        return "[" + ", ".join(_elements(buf, pos, end, depth, _LITERALS, _child_text)) + "]"
    if code == _LITERAL:
        return _literal(_LITERALS, buf[pos], pos)
    string = _leaf_string(buf, pos, code)
    if string is not None:
        return quote(string)
    number = _leaf_number(buf, pos, code)
    return float_text(number) if isinstance(number, float) else str(number)


def _quoted_key(key: bytes) -> str:
    return _quoted_short_key(key) if len(key) <= 64 else quote(key.decode("utf-8", "surrogateescape"))


@lru_cache(maxsize=4096)
def _quoted_short_key(key: bytes) -> str:
    """Quote a key. It is cached because most rows of a table have the same keys."""
    return quote(key.decode("utf-8", "surrogateescape"))


def _value(buf: bytes, pos: int, end: int, code: int, depth: int) -> JSONValue:
    if code == _OBJECT:
        members = _members(buf, pos, end, depth, _LITERAL_VALUES, _child_value)
        return {key.decode("utf-8", "replace"): value for key, value in members}
    if code == _ARRAY:
        return _elements(buf, pos, end, depth, _LITERAL_VALUES, _child_value)
    if code == _LITERAL:
        return _literal(_LITERAL_VALUES, buf[pos], pos)
    string = _leaf_string(buf, pos, code)
    if string is None:
        return _leaf_number(buf, pos, code)
    return string if string.isascii() else string.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _literal(literals: Mapping[int, V], byte: int, pos: int) -> V:
    if byte not in literals:
        raise _broken(pos, f"literal {byte:#04x}")
    return literals[byte]


def _child_text(buf: bytes, start: int, end: int, code: int, depth: int) -> tuple[str, int]:
    """Return (text, size) of a value inside a container that ends at `end`."""
    if code == _INT64 and start + 8 <= end:
        return str(_int64.unpack_from(buf, start)[0]), 8
    if code == _STRING and start < end and buf[start] < 0x80 and start + buf[start] < end:  # a length of one byte
        text = buf[start + 1 : start + 1 + buf[start]].decode("utf-8", "surrogateescape")
        return quote(text), buf[start] + 1
    stop = _cut_child(buf, start, end, code)
    return _text(buf, start, stop, code, depth), stop - start


def _child_value(buf: bytes, start: int, end: int, code: int, depth: int) -> tuple[JSONValue, int]:
    stop = _cut_child(buf, start, end, code)
    return _value(buf, start, stop, code, depth), stop - start


def _cut_child(buf: bytes, start: int, end: int, code: int) -> int:
    if start < end:
        stop = _cut_body(buf, start, code)
        if stop <= end:
            return stop
    raise _broken(start, "a value outside its container")


_ReadChild: TypeAlias = "Callable[[bytes, int, int, int, int], tuple[V, int]]"


def _elements(buf: bytes, pos: int, end: int, depth: int, literals: Mapping[int, V], read: _ReadChild[V]) -> list[V]:
    """Return the elements of the array at `pos`.

    The sizes of its parts must not add up to more than the array, so that shared offsets cannot multiply the work.
    """
    if depth >= DEPTH_MAX:
        raise _broken(pos, f"nested deeper than {DEPTH_MAX}")
    entries = pos + 8
    found: list[V] = []
    left = end - pos
    count = _uint32.unpack_from(buf, pos)[0]
    for code, offset in _value_entry.iter_unpack(buf[entries : entries + 5 * count]):
        if code == _LITERAL:
            found.append(_literal(literals, offset & 0xFF, pos))
            continue
        value, size = read(buf, pos + offset, end, code, depth + 1)
        found.append(value)
        left -= size
        if left < 0:
            raise _broken(pos, "the values of a container overlap")
    return found


def _members(
    buf: bytes, pos: int, end: int, depth: int, literals: Mapping[int, V], read: _ReadChild[V]
) -> list[tuple[bytes, V]]:
    """Return the object at `pos` as (key, value) pairs, with the same limits as `_elements`."""
    if depth >= DEPTH_MAX:
        raise _broken(pos, f"nested deeper than {DEPTH_MAX}")
    count = _uint32.unpack_from(buf, pos)[0]
    keys = pos + 8
    entries = keys + 6 * count
    found: list[tuple[bytes, V]] = []
    left = end - pos
    pairs = zip(
        _key_entry.iter_unpack(buf[keys:entries]),
        _value_entry.iter_unpack(buf[entries : entries + 5 * count]),
        strict=True,
    )
    for (key_offset, length), (code, offset) in pairs:
        if code == _LITERAL:
            value, size = _literal(literals, offset & 0xFF, pos), 0
        else:
            value, size = read(buf, pos + offset, end, code, depth + 1)
        key = pos + key_offset
        left -= size + length
        if left < 0:
            raise _broken(pos, "the values of a container overlap")
        if key + length > end:
            raise _broken(pos, "a key outside its object")
        found.append((buf[key : key + length], value))
    return found


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
        value = int(digits) if len(digits) < 30 else UINT64_MAX + 1
        if digits == "-0":
            return minus_zero
        return value if INT64_MIN <= value <= UINT64_MAX else float(digits)

    try:
        return encode_json(json.loads(text, parse_int=integer, parse_constant=_refuse))
    except RecursionError:
        raise ValueError(f"JSON nested deeper than {DEPTH_MAX}") from None


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
