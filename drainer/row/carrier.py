"""What a datum holds, as a column: one Arrow type for each family of column types. Pure.

| family | carrier |
|---|---|
| INT | int64; uint64 where the column is unsigned (a YEAR is int64) |
| DECIMAL | string: canonical text, exactly the column's digits behind the point |
| FLOAT | double, also of a FLOAT |
| TEXT, BYTES | binary: the bytes as stored; TEXT need not be UTF-8 |
| DATE, DATETIME | uint64: TiDB's packed time, 0 for the zero date; a TIMESTAMP in UTC |
| TIME | int64: nanoseconds |
| ENUM, SET, BIT | uint64: the number |
| JSON | binary: type code and body |
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.decimal import Decimal
from binlog.tidb.json import BinaryJSON
from binlog.tidb.types import FieldType

from drainer.row.family import Family, is_signed
from drainer.row.scalar import set_bits

_TYPES: Final = {
    Family.DECIMAL: pa.string(),
    Family.FLOAT: pa.float64(),
    Family.TEXT: pa.binary(),
    Family.BYTES: pa.binary(),
    Family.DATE: pa.uint64(),
    Family.DATETIME: pa.uint64(),
    Family.TIME: pa.int64(),
    Family.ENUM: pa.uint64(),
    Family.SET: pa.uint64(),
    Family.BIT: pa.uint64(),
    Family.JSON: pa.binary(),
}


def carrier_type(kind: FieldType, family: Family) -> Any:
    """The Arrow type of a column's carrier."""
    if family is Family.INT:
        return pa.int64() if is_signed(kind, family) else pa.uint64()
    return _TYPES[family]


def carrier(kind: FieldType, family: Family, value: Datum) -> object:
    """One value that is not NULL. DecodeError when it is no value of the column's type."""
    if family is Family.DECIMAL and isinstance(value, Decimal):
        return str(value)
    if family is Family.FLOAT and isinstance(value, float):
        return value
    if family is Family.JSON and isinstance(value, BinaryJSON):
        return bytes(value)
    if family in (Family.TEXT, Family.BYTES) and isinstance(value, bytes) and not isinstance(value, BinaryJSON):
        return value
    if family in (Family.DECIMAL, Family.FLOAT, Family.JSON, Family.TEXT, Family.BYTES) or not isinstance(value, int):
        raise DecodeError(f"{kind.mysql_name} value", offset=0, detail=f"stored as {type(value).__name__}")
    return _whole(kind, family, int(value))


def _whole(kind: FieldType, family: Family, value: int) -> int:
    if family is Family.SET:
        return set_bits(value, len(kind.elems))
    if family is Family.BIT and not 0 <= value < 1 << max(kind.flen, 1):
        raise DecodeError("bit value", offset=0, detail=f"{value} does not fit BIT({kind.flen})")
    low, high = (-(1 << 63), 1 << 63) if is_signed(kind, family) else (0, 1 << 64)
    if not low <= value < high:
        raise DecodeError(f"{kind.mysql_name} value", offset=0, detail=f"{value} does not fit")
    return value
