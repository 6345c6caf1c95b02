"""One column of a destination's row, with the type it had when the row was written. Its values are decoded values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from binlog.tidb.datum import Datum
from binlog.tidb.types import FieldType

from drainer.row.decoded_value import DecodedValue, decoded_type, decoded_value
from drainer.row.type_class import TypeClass, type_class_of


@dataclass(frozen=True, slots=True)
class ColumnType:
    """`type_class` follows from `kind`, and is kept because everything asks for it."""

    kind: FieldType
    type_class: TypeClass

    @classmethod
    def of(cls, kind: FieldType) -> ColumnType:
        """DecodeError for a type that rows cannot carry."""
        return cls(kind, type_class_of(kind))

    def decoded_value(self, value: Datum) -> DecodedValue:
        """DecodeError when it is no value of the column's type."""
        return None if value is None else decoded_value(self.kind, self.type_class, value)

    @property
    def decoded_type(self) -> Any:
        """The Arrow type of a column of its decoded values."""
        return decoded_type(self.kind, self.type_class)
