"""One column's decoded values (row/decoded_value.py) as text in the form that several protocols use: dates, decimals,
names, JSON."""

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
from drainer.row.column_type import ColumnType
from drainer.row.scalar import enum_name, set_names
from drainer.row.type_class import TypeClass

Text = Callable[[Any], str]


def text_of(column_type: ColumnType, zone: tzinfo) -> Text:
    """Return a function from a decoded value that is not NULL to the text that a MySQL client shows. ENUMs and SETs are
    shown by name, a TIMESTAMP in `zone`. Integers, floats, BITs and binary strings are not supported, because each
    protocol writes them in its own way.

    The function raises DecodeError for a value that a column of this type cannot hold, and for text that is not UTF-8.
    """
    type_class, kind = column_type.type_class, column_type.kind
    if type_class is TypeClass.DECIMAL:
        return str
    if type_class is TypeClass.TEXT:
        return _utf8
    if type_class is TypeClass.DATE:
        return date_text
    if type_class is TypeClass.DATETIME:
        if kind.tp is Tp.TIMESTAMP:
            return partial(timestamp_text, fsp=kind.fsp, zone=zone)
        return partial(datetime_text, fsp=kind.fsp)
    if type_class is TypeClass.TIME:
        return partial(duration_text, fsp=kind.fsp)
    if type_class is TypeClass.ENUM:
        return partial(enum_name, names=kind.elems)
    if type_class is TypeClass.SET:
        return partial(set_names, names=kind.elems)
    if type_class is TypeClass.JSON:
        return lambda value: decode_text(value)[0]
    raise AssertionError(f"{type_class} has no text that messages share")


def texts_of(column_type: ColumnType, array: Any, zone: tzinfo) -> list[str | None]:
    """Convert a complete column. Each distinct value of a date, a time, an ENUM or a SET is converted once."""
    text = text_of(column_type, zone)
    if column_type.type_class is TypeClass.JSON:
        found: list[str | None] = json_texts(array).cast(pa.string()).to_pylist()
        return found
    if column_type.type_class in (TypeClass.DECIMAL, TypeClass.TEXT):
        return [None if value is None else text(value) for value in array.to_pylist()]
    encoded = array.dictionary_encode()
    names = [None if value is None else text(value) for value in encoded.dictionary.to_pylist()]
    return [None if at is None else names[at] for at in encoded.indices.to_pylist()]


def _utf8(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise DecodeError("text", offset=error.start, detail="not UTF-8") from None
