"""Encodes one value as Avro, for calls with a few rows, where arrays cost more than they save. Pure.

Writes the same bytes and refuses the same values as drainer.protocol.avro.column.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import tzinfo
from decimal import Context, Decimal, Inexact, InvalidOperation
from math import isfinite
from typing import Any, Final

from binlog.errors import DecodeError

from drainer.protocol.avro.defaults import twos_complement
from drainer.protocol.avro.schema import Field
from drainer.protocol.column_text import text_of
from drainer.row.family import Family
from drainer.row.form import Form
from drainer.row.scalar import bit_number

Write = Callable[[Any], bytes]

_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_ROUND: Final = 1 << 31
_ONE_BYTE: Final = tuple(bytes((n,)) for n in range(128))
_REALS: Final = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}


def varint(number: int) -> bytes:
    """Encode a number as Avro's int or long. An unsigned 64-bit number is encoded as the signed number with the same
    bits."""
    raw = ((number << 1) ^ -(number >> 63 & 1)) & _MASK
    if raw < 128:
        return _ONE_BYTE[raw]
    found = bytearray()
    while raw > 0x7F:
        found.append(raw & 0x7F | 0x80)
        raw >>= 7
    found.append(raw)
    return bytes(found)


def counted(data: bytes) -> bytes:
    """Return the data with its length in front."""
    return varint(len(data)) + data


def writer_of(field: Field, form: Form, zone: tzinfo) -> Write:
    """Return the function that encodes a carrier, None for NULL. The function raises DecodeError for a value that Avro
    or the column cannot hold."""
    write = _writer(field, form, zone)
    if field.null_first is None:
        return lambda value: _not_null(value) if value is None else write(value)
    branch, null = (b"\2", b"\0") if field.null_first else (b"\0", b"\2")
    return lambda value: null if value is None else branch + write(value)


def _not_null(value: None) -> bytes:
    raise DecodeError("value", offset=0, detail="NULL in a column that is NOT NULL")


def _writer(field: Field, form: Form, zone: tzinfo) -> Write:
    family, primitive = form.family, field.type.primitive
    if field.type.precision is not None:
        return _decimal(field.type.precision, field.type.scale or 0)
    if primitive == "int":
        return _int
    if primitive == "long":
        return varint
    if primitive in _REALS:
        return _real(primitive)
    if family is Family.BIT:
        width = max(form.kind.flen, 1)
        return lambda value: _bit(value, width)
    if family is Family.BYTES:
        return counted
    if family is Family.INT:
        return lambda value: counted(b"%d" % value)
    text = text_of(form, zone)
    return lambda value: counted(text(value).encode())


def _int(value: int) -> bytes:
    if not -_ROUND <= value < _ROUND:
        raise DecodeError("integer", offset=0, detail="beyond 32 bits")
    return varint(value)


def _real(primitive: str) -> Write:
    form = _REALS[primitive]

    def write(value: float) -> bytes:
        try:
            if isfinite(value):
                return form.pack(value)
        except OverflowError:
            pass
        raise DecodeError(primitive, offset=0, detail="no number, or beyond its range")

    return write


def _bit(value: int, width: int) -> bytes:
    bit_number(value, width)
    return counted(value.to_bytes(max(1, (value.bit_length() + 7) >> 3), "big"))


def _decimal(precision: int, scale: int) -> Write:
    context = Context(prec=precision, traps=[Inexact, InvalidOperation])
    unit = Decimal(1).scaleb(-scale)

    def write(text: str) -> bytes:
        try:
            number = int(Decimal(text).quantize(unit, context=context).scaleb(scale, context=context))
        except (InvalidOperation, Inexact, ValueError, OverflowError):
            raise DecodeError("decimal", offset=0, detail=f"{text!r} is no DECIMAL({precision},{scale})") from None
        return counted(twos_complement(number))

    return write
