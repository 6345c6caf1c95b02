"""The Avro type of a column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from binlog.tidb.types import Tp

from drainer.protocol.options import ProtocolOptions
from drainer.row.column_type import ColumnType
from drainer.row.type_class import TypeClass

Primitive = Literal["int", "long", "float", "double", "string", "bytes", "boolean"]

_DECIMAL_PRECISION: Final = 10  # for a DECIMAL whose type does not state it
_NAMES: Final = {
    TypeClass.DECIMAL: "DECIMAL",
    TypeClass.TEXT: "TEXT",
    TypeClass.BYTES: "BLOB",
    TypeClass.DATE: "DATE",
    TypeClass.TIME: "TIME",
    TypeClass.ENUM: "ENUM",
    TypeClass.SET: "SET",
    TypeClass.BIT: "BIT",
    TypeClass.JSON: "JSON",
}


@dataclass(frozen=True, slots=True)
class AvroType:
    """An Avro type. `parameters`: the members of `connect.parameters`, sorted by name. `precision` and `scale`: those
    of a decimal whose bytes are its unscaled number, else None."""

    primitive: Primitive
    parameters: tuple[tuple[str, str], ...]
    precision: int | None = None
    scale: int | None = None

    @property
    def document(self) -> dict[str, object]:
        """Return the type as a document, with members in TiCDC's order."""
        found: dict[str, object] = {"type": self.primitive, "connect.parameters": dict(self.parameters)}
        if self.precision is not None:
            found |= {"logicalType": "decimal", "precision": self.precision, "scale": self.scale}
        return found


def avro_type(column_type: ColumnType, options: ProtocolOptions) -> AvroType:
    """Return the Avro type of a column's values."""
    type_class, kind = column_type.type_class, column_type.kind
    name = ("tidb_type", _tidb_type(column_type))
    if type_class is TypeClass.DECIMAL and options.avro_decimal_handling_mode == "precise":
        precision = kind.flen if kind.flen >= 0 else _DECIMAL_PRECISION
        return AvroType("bytes", (name,), precision, max(kind.decimal, 0))
    if type_class is TypeClass.BIT:
        return AvroType("bytes", (("length", str(kind.flen if kind.flen >= 0 else 1)), name))
    if type_class in (TypeClass.ENUM, TypeClass.SET):
        return AvroType("string", (("allowed", allowed_text(kind.elems)), name))
    return AvroType(_primitive(column_type, options), (name,))


def _primitive(column_type: ColumnType, options: ProtocolOptions) -> Primitive:
    type_class, kind = column_type.type_class, column_type.kind
    if type_class is TypeClass.INT:
        if kind.tp is Tp.LONGLONG:
            as_text = kind.is_unsigned and options.avro_bigint_unsigned_handling_mode == "string"
            return "string" if as_text else "long"
        return "long" if kind.tp is Tp.LONG and kind.is_unsigned else "int"
    if type_class is TypeClass.FLOAT:
        return "float" if kind.tp is Tp.FLOAT else "double"
    return "bytes" if type_class is TypeClass.BYTES else "string"


def _tidb_type(column_type: ColumnType) -> str:
    type_class, kind = column_type.type_class, column_type.kind
    if kind.tp is Tp.VECTOR:
        return "TiDBVECTORFloat32"
    if type_class is TypeClass.INT:
        if kind.tp is Tp.YEAR:
            return "YEAR"
        name = "BIGINT" if kind.tp is Tp.LONGLONG else "INT"
        return f"{name} UNSIGNED" if kind.is_unsigned else name
    if type_class is TypeClass.FLOAT:
        return "FLOAT" if kind.tp is Tp.FLOAT else "DOUBLE"
    if type_class is TypeClass.DATETIME:
        return "TIMESTAMP" if kind.tp is Tp.TIMESTAMP else "DATETIME"
    return _NAMES[type_class]


def allowed_text(names: tuple[str, ...]) -> str:
    """Return the names of an ENUM or SET as one text. Only commas inside names are escaped, so this is all that
    `allowed_names` can undo."""
    return ",".join(name.replace(",", "\\,").replace("\\'", "'").replace("''", "'") for name in names)


def allowed_names(text: str) -> tuple[str, ...]:
    """Split `allowed_text` into names. An empty text may stand for no name or for one empty name; the result is one
    empty name."""
    return tuple(name.replace("\0", ",") for name in text.replace("\\,", "\0").split(","))
