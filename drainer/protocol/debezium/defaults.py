"""Defaults of columns in a Connect schema."""

from __future__ import annotations

from math import isfinite
from typing import Final

import pyarrow as pa
from binlog.errors import DecodeError
from binlog.tidb.time import parse_datetime, parse_duration
from binlog.tidb.types import Tp

from drainer.protocol.debezium.values import EPOCH, value_of
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.table import Column
from drainer.row.family import Family
from drainer.row.form import Form

NO_DEFAULT: Final = object()
_NOW: Final = "CURRENT_TIMESTAMP"


def default_of(column: Column, options: ProtocolOptions) -> object:
    """Return the default. NO_DEFAULT if the column has none, if it is an expression, or if Connect's type cannot
    express it."""
    info, form = column.info, column.form
    if info.default is None or info.default_is_expr:
        return NO_DEFAULT
    if form.family is Family.BIT:
        return _shown(form, int.from_bytes(info.default_bit, "big"), options) if info.default_bit else NO_DEFAULT
    if not isinstance(info.default, str | int | float):
        return NO_DEFAULT
    try:
        return _default(form, str(info.default), options)
    except (ValueError, OverflowError, DecodeError):
        return NO_DEFAULT


def _default(form: Form, text: str, options: ProtocolOptions) -> object:
    kind = form.kind
    match form.family:
        case Family.INT:
            number = int(text)
            if kind.tp is Tp.YEAR and number < 100:
                return number + (2000 if number < 70 else 1900)
            return _shown(form, number, options)
        case Family.FLOAT | Family.DECIMAL:
            value = float(text)
            return value if isfinite(value) else NO_DEFAULT
        case Family.DATETIME if text.upper().startswith(_NOW):
            if kind.tp is Tp.DATETIME:
                return 0
            return EPOCH.decode() if kind.is_not_null else NO_DEFAULT
        case Family.DATE | Family.DATETIME:
            return _shown(form, parse_datetime(text, kind.fsp), options)
        case Family.TIME:
            return parse_duration(text) // 1000
        case _:
            return text


def _shown(form: Form, carrier: int, options: ProtocolOptions) -> object:
    """Return the default as the value of a row would be written."""
    value = value_of(form, options)
    (shown,) = value.fragment(pa.array([carrier], form.carrier_type)).to_pylist()
    if shown is None:
        return NO_DEFAULT
    found: str = shown.decode()
    if value.quoted:
        return found
    return found == "true" if found in ("true", "false") else int(found)
