"""Rows as tuples of SQLite's values. Pure.

Integers and BIT are int, or text if above 2^63-1; DECIMAL text, FLOAT and DOUBLE float, strings str (bytes if they are
not valid UTF-8), binary bytes, times text, ENUM and SET their names, JSON text. NULL is None. A packed tuple is in
marshal's format, in the version whose bytes depend on nothing but the values.
"""

from __future__ import annotations

import marshal
from binascii import unhexlify
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from drainer.batch.work import Key, Row
from drainer.row.family import Family
from drainer.row.form import Form
from drainer.row.scalar import bit_number, enum_name, is_utf8, set_names, small_int
from drainer.row.text import shown_as
from drainer.row.usual import Cells

_MARSHAL_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class SQLiteValues:
    """See row.format.Format."""

    def rows(self, forms: Sequence[Form], columns: Sequence[Sequence[Any]]) -> list[Row]:
        return list(
            zip(*[self.literals(form, values) for form, values in zip(forms, columns, strict=True)], strict=True)
        )

    def packed_rows(self, forms: Sequence[Form], columns: Sequence[Any]) -> Any:
        rows = self.rows(forms, [column.to_pylist() for column in columns])
        return pa.array([self.pack(row) for row in rows], pa.binary())

    def literals(self, form: Form, values: Sequence[Any]) -> list[object]:
        show = value_writer(form)
        return [None if value is None else show(value) for value in values]

    def key_writer(self, forms: Sequence[Form]) -> Callable[[Cells], Key]:
        writers = [value_writer(form) for form in forms]
        return lambda cells: tuple([write(cell) for write, cell in zip(writers, cells, strict=True)])

    def packed_keys(self, forms: Sequence[Form], columns: Sequence[Any]) -> Any:
        return self.packed_rows(forms, columns)

    def compared_key(self, forms: Sequence[Form], compared: Sequence[object]) -> Key:
        return tuple([_of_text(form, cell) for form, cell in zip(forms, compared, strict=True)])

    def pack(self, row: Row) -> bytes:
        return marshal.dumps(row, _MARSHAL_VERSION)  # type: ignore[arg-type]

    def unpack(self, packed: bytes) -> Row:
        row: Row = marshal.loads(packed)
        return row

    def pack_key(self, key: Key) -> bytes:
        return self.pack(key)

    def unpack_key(self, packed: bytes) -> Key:
        return self.unpack(packed)


SQLITE_VALUES: Final = SQLiteValues()


def value_writer(form: Form) -> Callable[[Any], object]:
    """From a carrier that is not NULL."""
    kind, family = form.kind, form.family
    if family is Family.INT:
        return small_int
    if family is Family.TEXT:
        return _text
    if family in (Family.BYTES, Family.DECIMAL):
        return lambda value: value
    if family is Family.ENUM:
        return lambda value: enum_name(value, kind.elems)
    if family is Family.SET:
        return lambda value: set_names(value, kind.elems)
    if family is Family.BIT:
        return lambda value: small_int(bit_number(value, max(kind.flen, 1)))
    show = shown_as(form)
    if family is Family.FLOAT:
        return lambda value: float(show(value))
    return lambda value: show(value).decode()


def _text(raw: bytes) -> str | bytes:
    return raw.decode() if is_utf8(raw) else raw


def _of_text(form: Form, cell: Any) -> object:
    """A value of its text or number (row/text.py)."""
    if cell is None:
        return None
    if form.family in (Family.INT, Family.BIT, Family.ENUM, Family.SET):
        return value_writer(form)(cell)
    if form.family is Family.BYTES:
        return unhexlify(cell)
    return float(cell) if form.family is Family.FLOAT else _text(cell)
