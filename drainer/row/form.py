"""One column of a destination's row, with the type it had when the row was written. Its values are carriers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from binlog.tidb.datum import Datum
from binlog.tidb.types import FieldType

from drainer.row.carrier import Carrier, carrier, carrier_type
from drainer.row.family import Family, family_of


@dataclass(frozen=True, slots=True)
class Form:
    """`family` follows from `kind`, and is kept because everything asks for it."""

    kind: FieldType
    family: Family

    @classmethod
    def of(cls, kind: FieldType) -> Form:
        """DecodeError for a type that rows cannot carry."""
        return cls(kind, family_of(kind))

    def carrier(self, value: Datum) -> Carrier:
        """DecodeError when it is no value of the column's type."""
        return None if value is None else carrier(self.kind, self.family, value)

    @property
    def carrier_type(self) -> Any:
        """The Arrow type of a column of its carriers."""
        return carrier_type(self.kind, self.family)
