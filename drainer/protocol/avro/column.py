"""Encodes one column's values as Avro, all rows at a time. Pure."""

from __future__ import annotations

from datetime import tzinfo
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from binlog.errors import DecodeError

from drainer.changes.texts import numbers_of
from drainer.protocol.avro.blocks import Block, Piece, big_endian, fixed, in_union, lengths, varints
from drainer.protocol.avro.schema import Field
from drainer.protocol.column_text import texts_of
from drainer.row.column_type import ColumnType, TypeClass

_INT_MAX: Final = 0x7FFF_FFFF
_ROUND: Final = 1 << 31


def pieces_of(field: Field, column_type: ColumnType, column: Any, zone: tzinfo) -> list[Piece]:
    """Encode an Arrow array of decoded values. Raises DecodeError, which does not name the row, for a value that Avro
    or the column's type cannot hold."""
    if field.null_first is None and column.null_count:
        raise DecodeError("value", offset=0, detail="NULL in a column that is NOT NULL")
    primitive = field.type.primitive
    rest: list[Piece] = []
    if field.type.precision is not None:
        block = _decimal(field, column)
    elif primitive in ("int", "long"):
        block = _whole(primitive, column)
    elif primitive in ("float", "double"):
        block = real(primitive, column)
    elif column_type.type_class is TypeClass.BIT:
        block = _bit(column_type, column)
    else:
        text = texts_of(column_type, column, zone)
        block, rest = lengths(text), [text]
    if field.null_first is None:
        return [block, *rest]
    value, null = (2, 0) if field.null_first else (0, 2)
    return [in_union(block, column, value, null), *rest]


def filled(column: Any, value: int | float = 0) -> Any:
    """Return a NumPy array in which `value` replaces NULL. The union's mask hides these entries."""
    return pc.fill_null(column, value).to_numpy(zero_copy_only=False) if column.null_count else column.to_numpy()


def _whole(primitive: str, column: Any) -> Block:
    values = filled(column)
    if primitive == "int" and len(values) and not -_ROUND <= int(values.min()) <= int(values.max()) <= _INT_MAX:
        raise DecodeError("integer", offset=0, detail="beyond 32 bits")
    return varints(values.view(np.int64))  # an unsigned number above 2^63-1 becomes negative, as in TiCDC


def real(primitive: str, column: Any) -> Block:
    """Encode floating-point numbers. Raises DecodeError for one that is beyond the range of `primitive`."""
    values = filled(column, 0.0)
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(values, "<f4" if primitive == "float" else "<f8")
    if not np.isfinite(values).all():
        raise DecodeError(primitive, offset=0, detail="no number, or beyond its range")
    return fixed(values.view(np.uint8).reshape(len(values), -1))


def _bit(column_type: ColumnType, column: Any) -> Block:
    values = filled(numbers_of(column_type, column))
    return big_endian(values.astype(">u8").view(np.uint8).reshape(len(values), 8), signed=False)


def _decimal(field: Field, column: Any) -> Block:
    """Encode decimals. `column`: their texts. Numbers of up to 18 digits, which are nearly all, are 8 bytes wide here,
    larger ones 16 or 32."""
    precision, scale = field.type.precision, field.type.scale
    assert precision is not None and scale is not None
    wide = precision > 38
    try:
        made = pc.cast(column, pa.decimal256(precision, scale) if wide else pa.decimal128(precision, scale))
    except pa.ArrowInvalid as error:
        raise DecodeError("decimal", offset=0, detail=str(error)) from None
    width = 32 if wide else 16
    octets = np.zeros((len(column), width), np.uint8)
    if len(column):
        octets = np.frombuffer(made.buffers()[1], np.uint8, len(column) * width, made.offset * width)
        octets = octets.reshape(len(column), width)
    if column.null_count:
        octets = octets * made.is_valid().to_numpy(zero_copy_only=False)[:, None]  # NULLs hold arbitrary bytes
    used = 8 if precision <= 18 else width
    return big_endian(octets[:, used - 1 :: -1] if used == width else octets[:, :used][:, ::-1], signed=True)
