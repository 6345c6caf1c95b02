"""Values as SQL, in a session without NO_BACKSLASH_ESCAPES. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from drainer.row.column_type import ColumnType
from drainer.row.scalar import is_utf8
from drainer.row.text import NUMBERS, shown_as
from drainer.row.type_class import TypeClass

# The text before and after the text of a value (row/text.py); empty for numbers, decimals and floats.
QUOTES: Final = {
    TypeClass.TEXT: (b"'", b"'"),
    TypeClass.JSON: (b"'", b"'"),
    TypeClass.BYTES: (b"X'", b"'"),
    TypeClass.DATE: (b"'", b"'"),
    TypeClass.DATETIME: (b"'", b"'"),
    TypeClass.TIME: (b"'", b"'"),
}
ESCAPED: Final = frozenset({TypeClass.TEXT, TypeClass.JSON})


def escape(text: bytes) -> bytes:
    """The content of a quoted string. Only these two characters must be escaped: a query has a length, so NUL and
    control characters need no escape."""
    return text.replace(b"\\", b"\\\\").replace(b"'", b"\\'")


def string_literal(text: bytes) -> bytes:
    """Quoted and escaped; bytes that are not UTF-8 as a hexadecimal literal. It is not written like that of a binary
    column (X), because LOAD DATA can load only those."""
    return b"'%b'" % escape(text) if is_utf8(text) else b"x'%b'" % text.hex().encode()


def placeholder(type_class: TypeClass) -> bytes:
    """The placeholder for the text of a value that needs no escaping, or for its number."""
    before, after = QUOTES.get(type_class, (b"", b""))
    return before + (b"%d" if type_class in NUMBERS else b"%b") + after


def literal_of_text(type_class: TypeClass, text: object) -> bytes:
    """Return the literal of a value's text or number (row/text.py), None for NULL."""
    if text is None:
        return b"NULL"
    if type_class in ESCAPED:
        assert isinstance(text, bytes)
        return string_literal(text)
    return placeholder(type_class) % (text,)


def literal_writer(column_type: ColumnType) -> Callable[[Any], bytes]:
    """Returns a function from a decoded value that is not NULL to its literal."""
    if column_type.type_class is TypeClass.TEXT:
        return string_literal
    show, shape = shown_as(column_type), placeholder(column_type.type_class)
    if column_type.type_class is TypeClass.JSON:
        return lambda value: string_literal(show(value))
    return lambda value: shape % (show(value),)


def column_of(column_type: ColumnType, values: Sequence[Any]) -> tuple[bytes, Sequence[object]]:
    """Return (placeholder, values) of one column. All its text is searched for characters that need escaping in one
    step."""
    type_class = column_type.type_class
    if None in values:
        write = literal_writer(column_type)
        return b"%b", [b"NULL" if value is None else write(value) for value in values]
    if type_class is TypeClass.INT:
        return b"%d", values
    show = shown_as(column_type)
    texts = values if type_class is TypeClass.TEXT else [show(value) for value in values]
    if type_class not in ESCAPED:
        return placeholder(type_class), texts
    whole = b"\n".join(texts)
    if not (whole.isascii() or is_utf8(whole)):
        return b"%b", [string_literal(text) for text in texts]
    return b"'%b'", [escape(text) for text in texts] if b"'" in whole or b"\\" in whole else texts
