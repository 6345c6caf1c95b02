"""How one column's value stands in a row of a destination: its cell, its place in the text, its literal.

A *cell* is what fills a column's placeholder: for the MySQL family an int for `%d` or bytes for `%b`, for SQLite the
value itself. NULL is None everywhere. `SQLite values`: integers int (above 2^63-1 their text), BIT int likewise,
DECIMAL text, FLOAT and DOUBLE float, strings str (bytes when they are no UTF-8), binary bytes, times text, ENUM and
SET their names, JSON text. Of the dialect "carrier" it is what the datum holds (carrier.py), which columns are made of.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from binlog.errors import DecodeError
from binlog.tidb.datum import Datum
from binlog.tidb.decimal import Decimal
from binlog.tidb.json import BinaryJSON
from binlog.tidb.json import decode_text as json_text
from binlog.tidb.time import date_text, datetime_text, duration_text
from binlog.tidb.types import FieldType, Tp

from drainer.row.carrier import carrier
from drainer.row.family import Family, family_of
from drainer.row.scalar import (
    double_text,
    enum_index,
    enum_name,
    float_text,
    is_utf8,
    set_bits,
    set_names,
    small_int,
    string_literal,
)

Dialect = Literal["mysql", "sqlite", "carrier"]
Cell = object
Convert = Callable[[Datum], Cell]


# What stands in the text of a row; a quoted family adds two quotes to the row's count (see program.py).
_PLACEHOLDERS = {
    Family.TEXT: b"'%b'",
    Family.JSON: b"'%b'",
    Family.BYTES: b"X'%b'",
    Family.DATE: b"'%b'",
    Family.DATETIME: b"'%b'",
    Family.TIME: b"'%b'",
    Family.DECIMAL: b"%b",
    Family.FLOAT: b"%b",
}


def _wrong(kind: FieldType, value: Datum) -> DecodeError:
    return DecodeError(f"{kind.mysql_name} value", offset=0, detail=f"stored as {type(value).__name__}")


def _integer(kind: FieldType, value: Datum) -> int:
    if not isinstance(value, int):
        raise _wrong(kind, value)
    return int(value)


def _double(kind: FieldType, value: Datum) -> float:
    if not isinstance(value, float):
        raise _wrong(kind, value)
    return value


def _raw(kind: FieldType, value: Datum) -> bytes:
    if not isinstance(value, bytes) or isinstance(value, BinaryJSON):
        raise _wrong(kind, value)
    return value


def _bits(kind: FieldType, value: Datum) -> int:
    bits = _integer(kind, value)
    if not 0 <= bits < 1 << max(kind.flen, 1):
        raise DecodeError("bit value", offset=0, detail=f"{bits} does not fit BIT({kind.flen})")
    return bits


def text_of(kind: FieldType, family: Family, value: Datum) -> str:
    """The text of a decimal, float, time or JSON."""
    if family is Family.DECIMAL:
        if not isinstance(value, Decimal):
            raise _wrong(kind, value)
        return str(value)
    if family is Family.FLOAT:
        number = _double(kind, value)
        return float_text(number) if kind.tp is Tp.FLOAT else double_text(number)
    if family is Family.JSON:
        if not isinstance(value, BinaryJSON):
            raise _wrong(kind, value)
        return json_text(value)[0]
    number = _integer(kind, value)
    if family is Family.DATE:
        return date_text(number)
    return datetime_text(number, kind.fsp) if family is Family.DATETIME else duration_text(number, kind.fsp)


def mysql_cell(kind: FieldType, family: Family, value: Datum) -> Cell:
    """The cell of a value that is not NULL. DecodeError when it is no value of the column's type."""
    if family is Family.INT:
        return _integer(kind, value)
    if family is Family.TEXT:
        return _raw(kind, value)
    if family is Family.BYTES:
        return hexlify(_raw(kind, value))
    if family is Family.ENUM:
        return enum_index(_integer(kind, value), len(kind.elems))
    if family is Family.SET:
        return set_bits(_integer(kind, value), len(kind.elems))
    if family is Family.BIT:
        return _bits(kind, value)
    # A JSON string may hold bytes that are no UTF-8; the reader shows them as \ufffd, so this never fails.
    return text_of(kind, family, value).encode()


def sqlite_cell(kind: FieldType, family: Family, value: Datum) -> Cell:
    """As `mysql_cell`."""
    if family is Family.INT:
        return small_int(_integer(kind, value))
    if family is Family.TEXT:
        raw = _raw(kind, value)
        return raw.decode() if is_utf8(raw) else raw
    if family is Family.BYTES:
        return _raw(kind, value)
    if family is Family.ENUM:
        return enum_name(_integer(kind, value), kind.elems)
    if family is Family.SET:
        return set_names(_integer(kind, value), kind.elems)
    if family is Family.BIT:
        return small_int(_bits(kind, value))
    text = text_of(kind, family, value)
    return float(text) if family is Family.FLOAT else text


def mysql_literal(family: Family, cell: Cell) -> bytes:
    """A cell as SQL, safe to join with commas."""
    if cell is None:
        return b"NULL"
    if family in (Family.TEXT, Family.JSON):
        assert isinstance(cell, bytes)
        return string_literal(cell)
    return _PLACEHOLDERS.get(family, b"%d") % (cell,)


_CELLS: Final = {"mysql": mysql_cell, "sqlite": sqlite_cell, "carrier": carrier}


@dataclass(frozen=True, slots=True)
class Form:
    """One column of a destination's row, read with the type it had when the row was written."""

    kind: FieldType
    family: Family
    dialect: Dialect

    @classmethod
    def of(cls, kind: FieldType, dialect: Dialect) -> Form:
        return cls(kind, family_of(kind), dialect)

    def cell(self, value: Datum) -> Cell:
        if value is None:
            return None
        return _CELLS[self.dialect](self.kind, self.family, value)

    def literal(self, cell: Cell) -> object:
        """What stands for the cell in `Literals`: bytes for the MySQL family, the value itself for SQLite."""
        return mysql_literal(self.family, cell) if self.dialect == "mysql" else cell

    @property
    def placeholder(self) -> bytes:
        return _PLACEHOLDERS.get(self.family, b"%d")

    @property
    def quotes(self) -> int:
        return self.placeholder.count(b"'")

    @property
    def needs_escape(self) -> bool:
        """Whether its bytes could end the quotes they stand in."""
        return self.family in (Family.TEXT, Family.JSON)
