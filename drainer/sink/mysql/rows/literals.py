"""Values as SQL, in a session without NO_BACKSLASH_ESCAPES. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from drainer.row.family import Family
from drainer.row.form import Form
from drainer.row.scalar import is_utf8
from drainer.row.text import NUMBERS, shown_as

# The text before and after the text of a value (row/text.py); empty for numbers, decimals and floats.
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
    """The content of a quoted string. Only these two characters must be escaped: a query has a length, so NUL and
    control characters need no escape."""
    return text.replace(b"\\", b"\\\\").replace(b"'", b"\\'")


def string_literal(text: bytes) -> bytes:
    """Quoted and escaped; bytes that are not UTF-8 as a hexadecimal literal. It is not written like that of a binary
    column (X), because LOAD DATA can load only those."""
    return b"'%b'" % escape(text) if is_utf8(text) else b"x'%b'" % text.hex().encode()


def placeholder(family: Family) -> bytes:
    """The placeholder for the text of a value that needs no escaping, or for its number."""
    before, after = QUOTES.get(family, (b"", b""))
    return before + (b"%d" if family in NUMBERS else b"%b") + after


def literal_of_text(family: Family, text: object) -> bytes:
    """Return the literal of a value's text or number (row/text.py), None for NULL."""
    if text is None:
        return b"NULL"
    if family in ESCAPED:
        assert isinstance(text, bytes)
        return string_literal(text)
    return placeholder(family) % (text,)


def literal_writer(form: Form) -> Callable[[Any], bytes]:
    """Returns a function from a carrier that is not NULL to its literal."""
    if form.family is Family.TEXT:
        return string_literal
    show, shape = shown_as(form), placeholder(form.family)
    if form.family is Family.JSON:
        return lambda value: string_literal(show(value))
    return lambda value: shape % (show(value),)


def column_of(form: Form, values: Sequence[Any]) -> tuple[bytes, Sequence[object]]:
    """Return (placeholder, values) of one column. All its text is searched for characters that need escaping in one
    step."""
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
