"""Values as SQL, in a session without NO_BACKSLASH_ESCAPES. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from drainer.row.family import Family
from drainer.row.form import Form
from drainer.row.scalar import is_utf8
from drainer.row.text import NUMBERS, shown_as

# What stands around the text of a value (row/text.py); around numbers, decimals and floats nothing.
QUOTES: Final = {
    Family.TEXT: (b"'", b"'"),
    Family.JSON: (b"'", b"'"),
    Family.BYTES: (b"X'", b"'"),
    Family.DATE: (b"'", b"'"),
    Family.DATETIME: (b"'", b"'"),
    Family.TIME: (b"'", b"'"),
}
ESCAPED: Final = frozenset({Family.TEXT, Family.JSON})


def escape(text: bytes) -> bytes:
    """The inside of a quoted string. Servers need no more than these two: a query has a length, so NUL and control
    characters stand for themselves."""
    return text.replace(b"\\", b"\\\\").replace(b"'", b"\\'")


def string_literal(text: bytes) -> bytes:
    """Quoted and escaped; bytes that are no UTF-8 as a hexadecimal literal, so that nothing is guessed. It
    is not written as that of a binary column (X), for LOAD DATA can take those alone."""
    return b"'%b'" % escape(text) if is_utf8(text) else b"x'%b'" % text.hex().encode()


def placeholder(family: Family) -> bytes:
    """For the text of a value that needs no escaping, or its number."""
    before, after = QUOTES.get(family, (b"", b""))
    return before + (b"%d" if family in NUMBERS else b"%b") + after


def literal_of_text(family: Family, text: object) -> bytes:
    """Of a value's text or number (row/text.py), None for NULL."""
    if text is None:
        return b"NULL"
    if family in ESCAPED:
        assert isinstance(text, bytes)
        return string_literal(text)
    return placeholder(family) % (text,)


def literal_writer(form: Form) -> Callable[[Any], bytes]:
    """From a carrier that is not NULL."""
    if form.family is Family.TEXT:
        return string_literal
    show, shape = shown_as(form), placeholder(form.family)
    if form.family is Family.JSON:
        return lambda value: string_literal(show(value))
    return lambda value: shape % (show(value),)


def column_of(form: Form, values: Sequence[Any]) -> tuple[bytes, Sequence[object]]:
    """(placeholder, what fills it) for one column: by one look at all its text where nothing in it needs escaping."""
    family = form.family
    if None in values:
        write = literal_writer(form)
        return b"%b", [b"NULL" if value is None else write(value) for value in values]
    if family is Family.INT:
        return b"%d", values
    show = shown_as(form)
    texts = values if family is Family.TEXT else [show(value) for value in values]
    if family not in ESCAPED:
        return placeholder(family), texts
    whole = b"\n".join(texts)
    if not (whole.isascii() or is_utf8(whole)):
        return b"%b", [string_literal(text) for text in texts]
    return b"'%b'", [escape(text) for text in texts] if b"'" in whole or b"\\" in whole else texts
