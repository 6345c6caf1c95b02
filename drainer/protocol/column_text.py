"""One column's carriers (row/carrier.py) as text in the form that several protocols use: dates, decimals, names,
JSON."""

from __future__ import annotations

from collections.abc import Callable
from datetime import tzinfo
from functools import partial
from typing import Any

import pyarrow as pa
from binlog.errors import DecodeError
from binlog.tidb.json import decode_text
from binlog.tidb.time import date_text, datetime_text, duration_text, timestamp_text
from binlog.tidb.types import Tp

from drainer.changes.json_texts import json_texts
from drainer.row.family import Family
from drainer.row.form import Form
from drainer.row.scalar import enum_name, set_names

Text = Callable[[Any], str]


def text_of(form: Form, zone: tzinfo) -> Text:
    """Return a function from a carrier that is not NULL to the text that a MySQL client shows. ENUMs and SETs are shown
    by name, a TIMESTAMP in `zone`. Integers, floats, BITs and binary strings are not supported, because each protocol
    writes them in its own way.

    The function raises DecodeError for a value that a column of this type cannot hold, and for text that is not UTF-8.
    """
    family, kind = form.family, form.kind
    if family is Family.DECIMAL:
        return str
    if family is Family.TEXT:
        return _utf8
    if family is Family.DATE:
        return date_text
    if family is Family.DATETIME:
        if kind.tp is Tp.TIMESTAMP:
            return partial(timestamp_text, fsp=kind.fsp, zone=zone)
        return partial(datetime_text, fsp=kind.fsp)
    if family is Family.TIME:
        return partial(duration_text, fsp=kind.fsp)
    if family is Family.ENUM:
        return partial(enum_name, names=kind.elems)
    if family is Family.SET:
        return partial(set_names, names=kind.elems)
    if family is Family.JSON:
        return lambda value: decode_text(value)[0]
    raise AssertionError(f"{family} has no text that messages share")


def texts_of(form: Form, array: Any, zone: tzinfo) -> list[str | None]:
    """Convert a complete column. Each distinct value of a date, a time, an ENUM or a SET is converted once."""
    text = text_of(form, zone)
    if form.family is Family.JSON:
        found: list[str | None] = json_texts(array).cast(pa.string()).to_pylist()
        return found
    if form.family in (Family.DECIMAL, Family.TEXT):
        return [None if value is None else text(value) for value in array.to_pylist()]
    encoded = array.dictionary_encode()
    names = [None if value is None else text(value) for value in encoded.dictionary.to_pylist()]
    return [None if at is None else names[at] for at in encoded.indices.to_pylist()]


def _utf8(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise DecodeError("text", offset=error.start, detail="not UTF-8") from None
