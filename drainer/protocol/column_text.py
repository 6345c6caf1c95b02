"""One column's carriers (row/carrier.py) as text that messages share: dates, decimals, names, JSON."""

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
    """Of a carrier that is not NULL: the text that a MySQL client shows; ENUMs and SETs by name, a TIMESTAMP in `zone`.
    Not for integers, floats, BITs and binary strings, which each protocol writes in its own way.

    What it gives raises DecodeError for what no column of that type holds, and for text that is not UTF-8."""
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
    """Of a whole column. Each distinct value of a date, a time, an ENUM or a SET is made into text once."""
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
