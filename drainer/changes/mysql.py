"""Columns as the text of VALUES tuples for the MySQL family: `(1,'a',NULL)`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from drainer.changes.texts import as_string, data_of, text_of
from drainer.row.family import Family
from drainer.row.form import Form
from drainer.row.scalar import string_literal

_QUOTES: Final = {
    Family.TEXT: (b"'", b"'"),
    Family.JSON: (b"'", b"'"),
    Family.BYTES: (b"X'", b"'"),
    Family.DATE: (b"'", b"'"),
    Family.DATETIME: (b"'", b"'"),
    Family.TIME: (b"'", b"'"),
}
_BACKSLASH, _QUOTE, _ASCII = 92, 39, 128


def tuples(forms: Sequence[Form], columns: Sequence[Any], end: bytes = b")") -> Any:
    """A binary array of tuples, one a row, each behind its opening bracket ended by `end`."""
    parts: list[Any] = []
    constant = b"("
    for number, (form, column) in enumerate(zip(forms, columns, strict=True)):
        before, text, after = _literal(form, column)
        parts += [pa.scalar(constant + (b"," if number else b"") + before, pa.binary()), text]
        constant = after
    parts.append(pa.scalar(constant + end, pa.binary()))
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def compared_tuples(families: Sequence[Family], columns: Sequence[Any]) -> Any:
    """As `tuples`, of columns without a NULL as they are compared in a key (changes.key.compared)."""
    parts: list[Any] = []
    constant = b"("
    for number, (family, column) in enumerate(zip(families, columns, strict=True)):
        text = column if column.type == pa.binary() else pc.cast(pc.cast(column, pa.string()), pa.binary())
        before, text, after = _quoted(family, text)
        parts += [pa.scalar(constant + (b"," if number else b"") + before, pa.binary()), text]
        constant = after
    parts.append(pa.scalar(constant + b")", pa.binary()))
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def literals(form: Form, column: Any) -> Any:
    """A binary array of one column's literals, NULL as `NULL`."""
    before, text, after = _literal(form, column)
    if not before and not after:
        return text
    return pc.binary_join_element_wise(
        pa.scalar(before, pa.binary()), text, pa.scalar(after, pa.binary()), pa.scalar(b"", pa.binary())
    )


def _literal(form: Form, column: Any) -> tuple[bytes, Any, bytes]:
    """(what stands before each, texts without a NULL among them, what stands behind each)."""
    return _quoted(form.family, text_of(form, column))


def _quoted(family: Family, text: Any) -> tuple[bytes, Any, bytes]:
    """As `_literal`, of the texts that stand between quotes."""
    before, after = _QUOTES.get(family, (b"", b""))
    if family in (Family.TEXT, Family.JSON):
        escaped = _escaped(text)
        if escaped is None:
            shown = [b"NULL" if value is None else string_literal(value) for value in text.to_pylist()]
            return b"", pa.array(shown, pa.binary()), b""
        text = escaped
    if not text.null_count:
        return before, text, after
    if before:
        text = pc.binary_join_element_wise(
            pa.scalar(before, pa.binary()), text, pa.scalar(after, pa.binary()), pa.scalar(b"", pa.binary())
        )
    return b"", pc.fill_null(text, pa.scalar(b"NULL", pa.binary())), b""


def _escaped(text: Any) -> Any | None:
    """The insides of quoted strings (row.scalar.escape); None where not all of them are UTF-8."""
    data = data_of(text)
    if data.size and data.max() >= _ASCII:
        try:
            as_string(text).validate(full=True)
        except pa.ArrowInvalid:
            return None
    if (data == _BACKSLASH).any():
        text = pc.replace_substring(text, "\\", "\\\\")
    if (data == _QUOTE).any():
        text = pc.replace_substring(text, "'", "\\'")
    return text
