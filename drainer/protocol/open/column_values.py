"""Converts one column's carriers to JSON values of Open Protocol, a complete column at a time.

Every function converts an Arrow array of carriers to a `binary` array of the same length, with NULL for NULL. The
values are JSON text; strings are without their quotes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, tzinfo
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError
from binlog.tidb.types import Tp

from drainer.changes.json_texts import json_texts
from drainer.changes.texts import as_binary, data_of
from drainer.changes.texts import text_of as column_text
from drainer.protocol.binary_columns import base64
from drainer.protocol.column_text import texts_of
from drainer.protocol.json_fragments import has_escaped
from drainer.protocol.json_text import json_number, json_strings
from drainer.protocol.open.quote import quote
from drainer.row.family import Family
from drainer.row.form import Form

Values = Callable[[Any], Any]

BASE64_TYPES: Final = frozenset({Tp.TINY_BLOB, Tp.MEDIUM_BLOB, Tp.LONG_BLOB, Tp.BLOB})
_NUMBERS: Final = frozenset({Family.INT, Family.FLOAT, Family.ENUM, Family.SET, Family.BIT})
# What strconv.Quote does not escape.
_PLAIN: Final = bytes(set(range(32, 127)) - set(b'"\\<>&'))


def is_quoted(form: Form) -> bool:
    """Return whether the column's values are JSON strings."""
    return form.family not in _NUMBERS


def values_of(form: Form, zone: tzinfo) -> Values:
    """Return the function that converts a column. The function raises DecodeError for a value that a column of its type
    cannot hold, and for text that is not UTF-8."""
    family = form.family
    if form.kind.tp in BASE64_TYPES:
        return base64
    if family is Family.TEXT:
        return _text
    if family is Family.BYTES:
        return _binary
    if family is Family.FLOAT:
        return partial(_float, is_single=form.kind.tp is Tp.FLOAT)
    if family is Family.JSON:
        return _json
    if form.kind.tp is Tp.TIMESTAMP and zone is not UTC:
        return lambda column: pa.array(texts_of(form, column, zone), pa.binary())
    if family in (Family.INT, Family.ENUM, Family.SET, Family.BIT):
        return lambda column: as_binary(column.cast(pa.string()))
    return partial(column_text, form)


def _each(column: Any, made: Callable[[Any], Any]) -> Any:
    return pa.array([None if value is None else made(value) for value in column.to_pylist()], pa.binary())


def _text(column: Any) -> Any:
    try:
        text = column.cast(pa.string())
    except pa.ArrowInvalid:
        raise DecodeError("text", offset=0, detail="not UTF-8") from None
    if not has_escaped(data_of(column)):
        return column
    return _escaped(column, text.drop_null().to_pylist())


def _binary(column: Any) -> Any:
    data = data_of(column).tobytes()
    if not data.translate(None, _PLAIN):
        return column
    return _escaped(column, [quote(value) for value in column.drop_null().to_pylist()])


def _json(column: Any) -> Any:
    return json_texts(column, json_strings)


def _escaped(column: Any, texts: Sequence[str]) -> Any:
    """Escape texts for JSON. `texts`: the text of each value of `column` that is not NULL."""
    try:
        escaped = pa.array(json_strings(texts), pa.string()).cast(pa.binary())
    except UnicodeEncodeError:
        raise DecodeError("text", offset=0, detail="not UTF-8") from None
    if not column.null_count:
        return escaped
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    places = pa.array(np.cumsum(valid) - 1, pa.int64(), mask=~valid)
    return escaped.take(places)


def _float(column: Any, *, is_single: bool) -> Any:
    """Convert floats to the shortest digits, which for a FLOAT identify the 32-bit float. A value that is not finite
    becomes 0, as in TiCDC."""
    finite = pc.is_finite(column)
    if not pc.all(finite).as_py() and len(column):
        column = pc.if_else(finite, column, pa.scalar(0.0))
    digits = as_binary((column.cast(pa.float32(), safe=False) if is_single else column).cast(pa.string()))
    sizes = pc.abs(column)
    large = pc.and_(pc.greater_equal(sizes, 1e9), pc.less(sizes, 1.1e21))  # Arrow writes an exponent from 1e10 on
    if not pc.any(large).as_py():
        return digits
    texts = [None if text is None else _number(text.decode()) for text in digits.to_pylist()]
    return pa.array(texts, pa.binary())


def _number(digits: str) -> str:
    return json_number(digits, abs(float(digits)))
