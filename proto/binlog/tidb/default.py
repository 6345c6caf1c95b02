"""The value of a column that a row does not contain (D-TR-03), as a flattened datum.

Such a row is older than the column, or its NULL was left out. The value is the first that applies: `origin_default`;
NULL if the column is nullable; the first name of an ENUM; the type's zero value.
"""

from __future__ import annotations

from binlog.errors import BinlogError, DecodeError

from .column import ColumnInfo
from .datum import Datum, Uint
from .flatten import flatten
from .json import BinaryJSON
from .types import FLOATS, STRINGS, TIMES, FieldType, Tp

_JSON_NULL = BinaryJSON(b"\x04\x00")


def missing_value(column: ColumnInfo) -> Datum:
    """Return the value. Raises DecodeError with the column's name if its origin default is not a value of its type.

    A TIMESTAMP's default is in UTC, as its datum is. A time zone is only needed when it is converted to text.
    """
    if column.origin_default_bit is not None and column.type.tp == Tp.BIT:
        return Uint(int.from_bytes(column.origin_default_bit, "big"))
    if column.origin_default_bit is not None and column.type.tp in STRINGS and column.type.is_binary:
        return flatten(column.origin_default_bit, column.type)
    if column.origin_default is not None:
        return _origin_default(column)
    if not column.is_not_null:
        return None
    if column.type.tp == Tp.ENUM:
        return Uint(1 if column.type.elems else 0)
    return zero_value(column.type)


def _origin_default(column: ColumnInfo) -> Datum:
    value = column.origin_default
    if isinstance(value, bool):
        value = int(value)
    if column.type.tp == Tp.BIT and isinstance(value, str):
        return Uint(int.from_bytes(value.encode("utf-8", "surrogateescape"), "big"))
    try:
        return flatten(value, column.type)
    except (ValueError, TypeError, BinlogError) as err:
        raise DecodeError(f"column {column.name}", offset=0, detail=f"bad origin default: {err}") from None


def zero_value(kind: FieldType) -> Datum:
    """Return the value of a NOT NULL column without a default."""
    tp = kind.tp
    if tp in STRINGS:
        return bytes(max(kind.flen, 0)) if tp == Tp.STRING and kind.charset == "binary" else b""
    if tp in FLOATS:
        return 0.0
    if tp == Tp.NEWDECIMAL:
        return flatten(0, kind)
    if tp == Tp.JSON:
        return _JSON_NULL
    if tp in TIMES or tp in (Tp.BIT, Tp.SET, Tp.ENUM) or (kind.is_unsigned and tp not in (Tp.YEAR, Tp.DURATION)):
        return Uint(0)
    return 0
