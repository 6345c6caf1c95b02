"""A column's type as text: its basic name, and its complete description as in TiDB's SHOW COLUMNS."""

from __future__ import annotations

from typing import Final

from binlog.tidb.types import FLOATS, INTEGERS, FieldType, Flag, Tp

# (length, decimals) that TiDB shows if a type does not state them.
_DEFAULTS: Final = {
    Tp.BIT: (1, 0),
    Tp.TINY: (4, 0),
    Tp.SHORT: (6, 0),
    Tp.INT24: (9, 0),
    Tp.LONG: (11, 0),
    Tp.LONGLONG: (20, 0),
    Tp.DOUBLE: (22, -1),
    Tp.FLOAT: (12, -1),
    Tp.NEWDECIMAL: (10, 0),
    Tp.YEAR: (4, 0),
    Tp.STRING: (1, 0),
    Tp.VARCHAR: (5, 0),
    Tp.VAR_STRING: (5, 0),
}
_FRACTIONS: Final = frozenset({Tp.TIMESTAMP, Tp.DATETIME, Tp.DURATION})
_LENGTHS: Final = INTEGERS | {Tp.BIT, Tp.STRING, Tp.VARCHAR, Tp.VAR_STRING}


def default_length(kind: FieldType) -> tuple[int, int]:
    """Return the default (length, decimals) of a type. (-1, 0) if the type has none."""
    return _DEFAULTS.get(kind.tp, (-1, 0))


def basic_type(kind: FieldType) -> str:
    """Return the type without lengths: `int unsigned`, `varbinary`, `text`, …"""
    return kind.mysql_name + _attributes(kind)


def full_type(kind: FieldType) -> str:
    """Return the type with lengths: `int(10) unsigned`, `decimal(5,2)`, `enum('a','b')`, `datetime(3)`, …"""
    return kind.mysql_name + _size(kind) + _attributes(kind)


def _attributes(kind: FieldType) -> str:
    unsigned = kind.is_unsigned and kind.tp not in (Tp.BIT, Tp.YEAR)
    zerofill = bool(kind.flag & Flag.ZEROFILL) and kind.tp is not Tp.YEAR
    return (" unsigned" if unsigned else "") + (" zerofill" if zerofill else "")


def _size(kind: FieldType) -> str:
    default, default_decimals = default_length(kind)
    length = default if kind.flen < 0 else kind.flen
    decimals = default_decimals if kind.decimal < 0 else kind.decimal
    if kind.tp in (Tp.ENUM, Tp.SET):
        names = [name.replace("\\", "\\\\").replace("'", "''") for name in kind.elems]
        return "(" + ",".join(f"'{name}'" for name in names) + ")"
    if kind.tp in _FRACTIONS:
        return f"({kind.decimal})" if kind.decimal > 0 else ""
    if kind.tp in FLOATS:
        return f"({length},{decimals})" if kind.decimal > 0 else ""
    if kind.tp is Tp.NEWDECIMAL:
        return f"({length},{decimals})"
    return f"({length})" if kind.tp in _LENGTHS else ""
