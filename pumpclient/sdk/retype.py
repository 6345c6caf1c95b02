"""Decides which changes of a column's type keep every value exactly. Pure.

The SDK reads no rows, so it cannot check whether existing rows fit another type. Rows written with an older table
handle also arrive after the ALTER. So a type may only change to one that can hold every value of the old type.
"""

from __future__ import annotations

from enum import Enum

from binlog.tidb.types import INTEGERS, STRINGS, FieldType, Tp

from pumpclient.sdk.types import TEXT_BYTES

_BYTES = {Tp.TINY: 1, Tp.SHORT: 2, Tp.INT24: 3, Tp.LONG: 4, Tp.LONGLONG: 8}
_TIMES = frozenset({Tp.DATETIME, Tp.TIMESTAMP, Tp.DURATION})
_WIDE_CHARSETS = {"ascii": {"utf8", "utf8mb4"}, "utf8": {"utf8mb4"}}


class Retype(Enum):
    """SAME: both types have the same encoding; the column keeps its id. CAST: the column gets a new id, as in TiDB."""

    SAME = "same"
    CAST = "cast"


def retype(old: FieldType, new: FieldType) -> Retype | None:
    """Return how to change type `old` to `new`; None if a value may not fit or would change."""
    if old.tp in _BYTES and new.tp in _BYTES:
        return _integers(old, new)
    if old.tp in _BYTES:
        return Retype.CAST if _integer_fits(old, new) else None
    if old.tp is Tp.NEWDECIMAL and new.tp is Tp.NEWDECIMAL:
        return _decimals(old, new)
    if old.tp in STRINGS and new.tp in STRINGS:
        return _strings(old, new)
    if old.tp in (Tp.ENUM, Tp.SET) and new.tp is old.tp:
        return Retype.SAME if new.elems[: len(old.elems)] == old.elems and new.charset == old.charset else None
    if old.tp is Tp.BIT and new.tp is Tp.BIT:
        return Retype.SAME if new.flen >= old.flen else None
    if old.tp is Tp.DATE and new.tp is Tp.DATETIME:
        return Retype.CAST
    if old.tp in _TIMES and new.tp is old.tp:
        return None if new.fsp < old.fsp else Retype.SAME if new.fsp == old.fsp else Retype.CAST
    shape = (old.tp, old.flen, old.decimal, old.is_unsigned)
    return Retype.SAME if shape == (new.tp, new.flen, new.decimal, new.is_unsigned) else None


def _integers(old: FieldType, new: FieldType) -> Retype | None:
    wider = _BYTES[new.tp] - _BYTES[old.tp]
    if old.is_unsigned == new.is_unsigned:
        return Retype.SAME if wider >= 0 else None
    return Retype.CAST if old.is_unsigned and wider > 0 else None


def _integer_fits(old: FieldType, new: FieldType) -> bool:
    greatest = (1 << 8 * _BYTES[old.tp] - (not old.is_unsigned)) - 1
    digits = len(str(greatest))
    if new.tp is Tp.NEWDECIMAL:
        return new.flen - max(new.decimal, 0) >= digits and (old.is_unsigned or not new.is_unsigned)
    if new.tp is Tp.DOUBLE:
        return greatest < 1 << 53 and new.decimal < 0 and (old.is_unsigned or not new.is_unsigned)
    if new.tp in STRINGS and not new.is_binary:
        return _length_max(new) >= digits + (not old.is_unsigned)
    return False


def _decimals(old: FieldType, new: FieldType) -> Retype | None:
    if new.is_unsigned and not old.is_unsigned:
        return None
    shape = (old.flen, old.decimal, old.is_unsigned)
    if shape == (new.flen, new.decimal, new.is_unsigned):
        return Retype.SAME
    fits = new.decimal >= old.decimal and new.flen - new.decimal >= old.flen - old.decimal
    return Retype.CAST if fits else None


def _length_max(kind: FieldType) -> int:
    """Maximum length: characters of a CHAR or VARCHAR, bytes of the other types."""
    return TEXT_BYTES.get(kind.tp, kind.flen)


def _strings(old: FieldType, new: FieldType) -> Retype | None:
    if old.is_binary != new.is_binary:
        return None
    if not old.is_binary and new.charset != old.charset and new.charset not in _WIDE_CHARSETS.get(old.charset, ()):
        return None
    if old.tp is new.tp:
        padded = old.tp is Tp.STRING and old.is_binary  # a longer BINARY pads its values with more bytes
        fits = new.flen == old.flen if padded else _length_max(new) >= _length_max(old)
        return Retype.SAME if fits else None
    if new.tp is Tp.STRING:
        return None  # CHAR drops spaces at the end, BINARY adds zero bytes
    to_bytes = not old.is_binary and old.tp not in TEXT_BYTES and new.tp in TEXT_BYTES
    if _length_max(new) < _length_max(old) * (4 if to_bytes else 1):
        return None
    return Retype.SAME if old.tp in TEXT_BYTES and new.tp in TEXT_BYTES else Retype.CAST


assert _BYTES.keys() == INTEGERS - {Tp.YEAR}
