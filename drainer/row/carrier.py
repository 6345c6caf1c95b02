"""The intermediate form of a decoded value: for each family of types one Python type and one Arrow type. Pure.

| family | Python | Arrow |
|---|---|---|
| INT | int | int64; uint64 where the column is unsigned (a YEAR is int64) |
| DECIMAL | str: canonical text with exactly the row's fractional digits | string |
| FLOAT | float, also of a FLOAT | double |
| TEXT, BYTES | bytes as stored; TEXT need not be UTF-8 | binary |
| DATE, DATETIME | int: TiDB's packed time, 0 for the zero date; a TIMESTAMP in UTC | uint64 |
| TIME | int: nanoseconds | int64 |
| ENUM, SET, BIT | int: the number | uint64 |
| JSON | bytes: type code and body | binary |

NULL is None. Values are not checked here: a month 15, or a number beyond a SET's names, is found when the value is
written.
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

Carrier = int | float | str | bytes | None

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
_OTHER_THAN_INTEGERS: Final = frozenset({Family.DECIMAL, Family.FLOAT, Family.TEXT, Family.BYTES, Family.JSON})


def carrier_type(kind: FieldType, family: Family) -> Any:
    """The Arrow type of a column's carriers."""
    if family is Family.INT:
        return pa.int64() if is_signed(kind, family) else pa.uint64()
    return _TYPES[family]


def carrier(kind: FieldType, family: Family, value: Datum) -> Carrier:
    """Return the carrier of one value that is not NULL. Raises DecodeError if the value is stored like those of another
    family."""
    if family is Family.DECIMAL and isinstance(value, Decimal):
        return str(value)
    if family is Family.FLOAT and isinstance(value, float):
        return value
    if family is Family.JSON and isinstance(value, BinaryJSON):
        return bytes(value)
    if family in (Family.TEXT, Family.BYTES) and isinstance(value, bytes) and not isinstance(value, BinaryJSON):
        return value
    if family in _OTHER_THAN_INTEGERS or not isinstance(value, int):
        raise DecodeError(f"{kind.mysql_name} value", offset=0, detail=f"stored as {type(value).__name__}")
    return int(value)
