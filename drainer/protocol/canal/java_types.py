"""`sqlType` of Canal-JSON: numbers of java.sql.Types."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from binlog.tidb.types import FieldType, Tp

from drainer.protocol.json_fragments import Fragment

BIT, TINYINT, SMALLINT, INTEGER, BIGINT = -7, -6, 5, 4, -5
REAL, DOUBLE, DECIMAL = 7, 8, 3
CHAR, VARCHAR, BLOB, CLOB = 1, 12, 2004, 2005
DATE, TIME, TIMESTAMP = 91, 92, 93

_FIXED: Final = {
    Tp.TINY: TINYINT,
    Tp.SHORT: SMALLINT,
    Tp.INT24: INTEGER,
    Tp.LONG: INTEGER,
    Tp.LONGLONG: BIGINT,
    Tp.FLOAT: REAL,
    Tp.DOUBLE: DOUBLE,
    Tp.NEWDECIMAL: DECIMAL,
    Tp.TIMESTAMP: TIMESTAMP,
    Tp.DATETIME: TIMESTAMP,
    Tp.DATE: DATE,
    Tp.NEWDATE: DATE,
    Tp.DURATION: TIME,
    Tp.YEAR: VARCHAR,
    Tp.ENUM: INTEGER,
    Tp.SET: BIT,
    Tp.BIT: BIT,
    Tp.JSON: VARCHAR,
}
_BLOBS: Final = frozenset({Tp.TINY_BLOB, Tp.MEDIUM_BLOB, Tp.LONG_BLOB, Tp.BLOB})

# An unsigned integer above the signed maximum gets the next larger type. MEDIUMINT does not need this: its type is
# large enough.
_PROMOTED: Final = {
    Tp.TINY: (0x7F, SMALLINT),
    Tp.SHORT: (0x7FFF, INTEGER),
    Tp.LONG: (0x7FFF_FFFF, BIGINT),
    Tp.LONGLONG: (0x7FFF_FFFF_FFFF_FFFF, DECIMAL),
}


def java_type(kind: FieldType) -> int:
    """Return the type number of the column, regardless of the values in its rows."""
    if kind.is_binary:
        return BLOB
    if kind.tp in _BLOBS:
        return CLOB
    if kind.tp is Tp.STRING:
        return CHAR
    return _FIXED.get(kind.tp, VARCHAR)


def promotion_of(kind: FieldType) -> Fragment | None:
    """Return the function that computes the type number for each row, if it depends on the value. None if `java_type`
    is right for all rows."""
    found = _PROMOTED.get(kind.tp) if kind.is_unsigned else None
    if found is None:
        return None
    limit = pa.scalar(found[0], pa.uint64())
    usual, promoted = (pa.scalar(str(number).encode(), pa.binary()) for number in (java_type(kind), found[1]))

    def run(array: Any) -> Any:
        return pc.if_else(pc.fill_null(pc.greater(array, limit), False), promoted, usual)

    return run
