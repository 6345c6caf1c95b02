"""Converts one column of an Open Protocol event to a plain value."""

from __future__ import annotations

from base64 import b64decode
from math import isfinite
from typing import Any, Final

from drainer.protocol.errors import MessageError
from drainer.protocol.event import ColumnValue, Value
from drainer.protocol.open.json_document import Document, boolean, integer, mapping
from drainer.protocol.open.quote import unquote
from drainer.protocol.table import ColumnFlag

_INTEGERS: Final = frozenset({1, 2, 3, 8, 9, 13, 16, 247, 248})
_FLOATS: Final = frozenset({4, 5})
_STRINGS: Final = frozenset({15, 253, 254})
_BLOBS: Final = frozenset({249, 250, 251, 252})
_TEXTS: Final = frozenset({7, 10, 11, 12, 14, 225, 245, 246})


def image(found: object, what: str, *, base64_text: bool) -> dict[str, ColumnValue]:
    """Convert an image. `base64_text`: CHAR and VARCHAR are base64, as in an old document of the protocol. Raises
    MessageError."""
    members = mapping(found, what)
    return {name: _column(mapping(c, f"{what}.{name}"), f"{what}.{name}", base64_text) for name, c in members.items()}


def _column(column: Document, what: str, base64_text: bool) -> ColumnValue:
    code, flags = integer(column, "t", what), integer(column, "f", what, default=0)
    boolean(column, "h", what)
    if "v" not in column:
        raise MessageError(f"{what} has no v")
    value = column["v"]
    try:
        return ColumnValue(_value(code, flags, value, base64_text), code, flags)
    except (ValueError, OverflowError) as error:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
        raise MessageError(f"{what}: {shown} is no value of a column of type {code}: {error}") from None


def _value(code: int, flags: int, value: Any, base64_text: bool) -> Value:
    """Convert a value. Values of unknown types are returned unchanged. Numbers may also be text, which old producers
    sent. Raises ValueError, OverflowError."""
    if value is None:
        return None
    if isinstance(value, bool | list | dict):
        raise ValueError("neither number nor string")
    if isinstance(value, str):
        return _string(code, flags, value, base64_text)
    if code in _STRINGS or code in _BLOBS or code in _TEXTS:
        raise ValueError("no string")
    if code in _FLOATS:
        value = float(value)
    if isinstance(value, float):
        if code in _INTEGERS or not isfinite(value):
            raise ValueError("no integer" if code in _INTEGERS else "not finite")
        return value
    if code in _INTEGERS and not -(1 << 63) <= value < 1 << 64:
        raise ValueError("beyond 64 bits")
    number: int = value
    return number


def _string(code: int, flags: int, value: str, base64_text: bool) -> Value:
    is_binary = bool(flags & ColumnFlag.BINARY)
    if code in _BLOBS or (code in _STRINGS and base64_text):
        data = b64decode(value, validate=True)
        return data if is_binary else _text_of(data)
    if code in _STRINGS and is_binary:
        return unquote(value)
    return value


def _text_of(data: bytes) -> str | bytes:
    """Decode text. TiDB's latin1 columns may hold any bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
