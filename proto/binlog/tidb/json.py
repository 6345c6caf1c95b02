"""TiDB's binary JSON: type code and value, decoded to text or Python values (see `json_encode` for the other way).

A value is `code u8 | body`. Numbers are little-endian. Containers hold offsets relative to their own start:
array = count u32 | size u32 | count * (type u8 | offset u32) | values; object puts count * (offset u32 | length
u16) of its keys before the value entries. Literals stand inside their entry. Nesting is limited to 100.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable
from enum import IntEnum
from math import isfinite
from typing import TypeAlias, TypeVar

from binlog.errors import DecodeError

from .time import Civil, core_unpack, duration_text
from .varint import decode_uvarint

V = TypeVar("V")
DEPTH_MAX = 100
TOO_SHORT = "insufficient bytes to decode value"

JSONValue: TypeAlias = "bool | int | float | str | list[JSONValue] | dict[str, JSONValue] | None"


class Code(IntEnum):
    """What a binary JSON value is."""

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


_FIXED = {0x04: 1, 0x09: 8, 0x0A: 8, 0x0B: 8, 0x0E: 8, 0x0F: 8, 0x10: 8, 0x11: 12}
_LITERALS = {0: "null", 1: "true", 2: "false"}
_LITERAL_VALUES = {0: None, 1: True, 2: False}
_int64 = struct.Struct("<q")
_uint64 = struct.Struct("<Q")
_float64 = struct.Struct("<d")
_uint32 = struct.Struct("<I")
_header = struct.Struct("<II")
_key_entry = struct.Struct("<IH")
_value_entry = struct.Struct("<BI")

_SPECIAL = re.compile(r'["\\\x00-\x1f\u2028\u2029\udc80-\udcff]')
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class BinaryJSON(bytes):
    """A JSON column's value as stored: type code and body. Compares as bytes; `text()` is what MySQL shows."""

    __slots__ = ()

    def text(self) -> str:
        return decode_text(self)[0]

    def value(self) -> JSONValue:
        return decode_value(self)[0]


def _broken(pos: int, detail: str = TOO_SHORT) -> DecodeError:
    return DecodeError("JSON", offset=pos, detail=detail)


def cut_json(buf: bytes, pos: int = 0) -> int:
    """The position after the value at `pos`; containers are not looked into. DecodeError when it is torn."""
    return _cut_body(buf, pos + 1, _code_at(buf, pos))


def _code_at(buf: bytes, pos: int) -> int:
    if pos >= len(buf):
        raise _broken(pos)
    return buf[pos]


def _cut_body(buf: bytes, pos: int, code: int) -> int:
    if code in _FIXED:
        end = pos + _FIXED[code]
    elif code in (Code.OBJECT, Code.ARRAY):
        if pos + 8 > len(buf):
            raise _broken(pos)
        count, size = _header.unpack_from(buf, pos)
        end = pos + size
        if size < 8 + count * (11 if code == Code.OBJECT else 5):
            raise _broken(pos, f"a container of {count} values in {size} bytes")
    elif code == Code.STRING:
        length, start = decode_uvarint(buf, pos)
        end = start + length
    elif code == Code.OPAQUE:
        length, start = decode_uvarint(buf, pos + 1)
        end = start + length
    else:
        raise _broken(pos, f"Invalid JSON bytes: type code {code:#04x}")
    if end > len(buf):
        raise _broken(pos)
    return end


def quote(text: str) -> str:
    """A JSON string as TiDB prints it; surrogates U+DC80…DCFF stand for bytes that were not UTF-8."""
    return f'"{_SPECIAL.sub(_escape, text)}"' if _SPECIAL.search(text) else f'"{text}"'


def _escape(found: re.Match[str]) -> str:
    char = found[0]
    if char in _ESCAPES:
        return _ESCAPES[char]
    return "\\ufffd" if char >= "\udc80" else f"\\u{ord(char):04x}"


def float_text(value: float) -> str:
    """Shortest digits that read back the same, in the notation of Go's encoding/json. DecodeError for NaN, Inf."""
    if not isfinite(value):
        raise _broken(0, f"{value} is no JSON number")
    sign = "-" if str(value)[0] == "-" else ""
    digits, exponent = shortest_digits(repr(abs(value)))
    if value == 0:
        return f"{sign}0"
    if 1e-6 <= abs(value) < 1e21:
        return sign + plain_notation(digits, exponent)
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    power = f"+{exponent - 1:02d}" if exponent > 0 else f"-{1 - exponent}"
    return f"{sign}{digits[0]}{tail}e{power}"


def shortest_digits(shown: str) -> tuple[str, int]:
    """(digits, exponent) with value = 0.digits * 10^exponent, from Python's repr of a non-negative number."""
    mantissa, _, power = shown.partition("e")
    head, _, tail = mantissa.partition(".")
    digits = (head + tail).lstrip("0")
    leading = len(head + tail) - len(digits)
    return digits.rstrip("0") or "0", len(head) - leading + int(power or 0)


def plain_notation(digits: str, exponent: int) -> str:
    """Without an exponent and without `.0`."""
    if exponent <= 0:
        return "0." + "0" * -exponent + digits
    if exponent >= len(digits):
        return digits + "0" * (exponent - len(digits))
    return f"{digits[:exponent]}.{digits[exponent:]}"


def _civil_text(when: Civil, code: int) -> str:
    date = f"{when.year:04d}-{when.month:02d}-{when.day:02d}"
    if code == Code.DATE:
        return date
    return f"{date} {when.hour:02d}:{when.minute:02d}:{when.second:02d}.{when.microsecond:06d}"


def _leaf_string(buf: bytes, pos: int, code: int) -> str | None:
    """The unquoted text of a value that is shown as a string; None for any other code."""
    if code == Code.STRING:
        length, start = decode_uvarint(buf, pos)
        return buf[start : start + length].decode("utf-8", "surrogateescape")
    if code in (Code.DATE, Code.DATETIME, Code.TIMESTAMP):
        return _civil_text(core_unpack(_uint64.unpack_from(buf, pos)[0]), code)
    if code == Code.DURATION:
        return duration_text(_int64.unpack_from(buf, pos)[0], 6)
    if code == Code.OPAQUE:
        length, start = decode_uvarint(buf, pos + 1)
        return f"base64:type{buf[pos]}:{base64.b64encode(buf[start : start + length]).decode()}"
    return None


def _leaf_number(buf: bytes, pos: int, code: int) -> int | float:
    if code == Code.INT64:
        return int(_int64.unpack_from(buf, pos)[0])
    if code == Code.UINT64:
        return int(_uint64.unpack_from(buf, pos)[0])
    return float(_float64.unpack_from(buf, pos)[0])


def decode_text(buf: bytes, pos: int = 0) -> tuple[str, int]:
    """(text as MySQL shows a JSON column, position after the value). DecodeError on anything malformed."""
    end = cut_json(buf, pos)
    return _text(buf, pos + 1, end, buf[pos], 0), end


def decode_value(buf: bytes, pos: int = 0) -> tuple[JSONValue, int]:
    """(Python value, position after it): times, opaque values and strings all become str."""
    end = cut_json(buf, pos)
    return _value(buf, pos + 1, end, buf[pos], 0), end


def _text(buf: bytes, pos: int, end: int, code: int, depth: int) -> str:
    if code == Code.OBJECT:
        return "{" + ", ".join([f"{quote(k)}: {v}" for k, v in _members(buf, pos, end, depth, _text)]) + "}"
    if code == Code.ARRAY:
        return "[" + ", ".join(_elements(buf, pos, end, depth, _text)) + "]"
    if code == Code.LITERAL:
        if buf[pos] not in _LITERALS:
            raise _broken(pos, f"literal {buf[pos]:#04x}")
        return _LITERALS[buf[pos]]
    string = _leaf_string(buf, pos, code)
    if string is not None:
        return quote(string)
    number = _leaf_number(buf, pos, code)
    return float_text(number) if isinstance(number, float) else str(number)


def _value(buf: bytes, pos: int, end: int, code: int, depth: int) -> JSONValue:
    if code == Code.OBJECT:
        return {_printable(k): v for k, v in _members(buf, pos, end, depth, _value)}
    if code == Code.ARRAY:
        return _elements(buf, pos, end, depth, _value)
    if code == Code.LITERAL:
        if buf[pos] not in _LITERAL_VALUES:
            raise _broken(pos, f"literal {buf[pos]:#04x}")
        return _LITERAL_VALUES[buf[pos]]
    string = _leaf_string(buf, pos, code)
    return _leaf_number(buf, pos, code) if string is None else _printable(string)


def _printable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _elements(buf: bytes, pos: int, end: int, depth: int, read: Callable[[bytes, int, int, int, int], V]) -> list[V]:
    """The array at `pos`. Its parts may not add up to more than itself, so shared offsets cannot multiply the work."""
    _check_depth(pos, depth)
    count = _uint32.unpack_from(buf, pos)[0]
    found: list[V] = []
    left = end - pos
    for entry in range(pos + 8, pos + 8 + 5 * count, 5):
        start, stop, code = _child(buf, pos, end, entry)
        left -= stop - start
        if left < 0:
            raise _broken(pos, "the values of a container overlap")
        found.append(read(buf, start, stop, code, depth + 1))
    return found


def _members(
    buf: bytes, pos: int, end: int, depth: int, read: Callable[[bytes, int, int, int, int], V]
) -> list[tuple[str, V]]:
    """The object at `pos` as (key, value), with the same limit as `_elements`."""
    _check_depth(pos, depth)
    count = _uint32.unpack_from(buf, pos)[0]
    found: list[tuple[str, V]] = []
    left = end - pos
    key_entry = pos + 8
    entry = key_entry + 6 * count
    for _ in range(count):
        offset, length = _key_entry.unpack_from(buf, key_entry)
        key = pos + offset
        start, stop, code = _child(buf, pos, end, entry)
        left -= length + stop - start
        if key + length > end or left < 0:
            raise _broken(key_entry, "a key outside its object" if left >= 0 else "the values of a container overlap")
        name = buf[key : key + length].decode("utf-8", "surrogateescape")
        found.append((name, read(buf, start, stop, code, depth + 1)))
        key_entry += 6
        entry += 5
    return found


def _check_depth(pos: int, depth: int) -> None:
    if depth >= DEPTH_MAX:
        raise _broken(pos, f"nested deeper than {DEPTH_MAX}")


def _child(buf: bytes, container: int, end: int, entry: int) -> tuple[int, int, int]:
    """(start, end, code) of the value an entry points to, which lies inside its container."""
    code, offset = _value_entry.unpack_from(buf, entry)
    if code == Code.LITERAL:
        return entry + 1, entry + 2, code
    start = container + offset
    if start >= end:
        raise _broken(entry, "a value outside its container")
    stop = _cut_body(buf, start, code)
    if stop > end:
        raise _broken(entry, "a value outside its container")
    return start, stop, code
