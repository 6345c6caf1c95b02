"""The Avro type of a column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from binlog.tidb.types import Tp

from drainer.protocol.options import ProtocolOptions
from drainer.row.family import Family
from drainer.row.form import Form

Primitive = Literal["int", "long", "float", "double", "string", "bytes", "boolean"]

_DECIMAL_PRECISION: Final = 10  # for a DECIMAL whose type does not state it
_NAMES: Final = {
    Family.DECIMAL: "DECIMAL",
    Family.TEXT: "TEXT",
    Family.BYTES: "BLOB",
    Family.DATE: "DATE",
    Family.TIME: "TIME",
    Family.ENUM: "ENUM",
    Family.SET: "SET",
    Family.BIT: "BIT",
    Family.JSON: "JSON",
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


def avro_type(form: Form, options: ProtocolOptions) -> AvroType:
    """Return the Avro type of a column's values."""
    family, kind = form.family, form.kind
    name = ("tidb_type", _tidb_type(form))
    if family is Family.DECIMAL and options.avro_decimal_handling_mode == "precise":
        precision = kind.flen if kind.flen >= 0 else _DECIMAL_PRECISION
        return AvroType("bytes", (name,), precision, max(kind.decimal, 0))
    if family is Family.BIT:
        return AvroType("bytes", (("length", str(kind.flen if kind.flen >= 0 else 1)), name))
    if family in (Family.ENUM, Family.SET):
        return AvroType("string", (("allowed", allowed_text(kind.elems)), name))
    return AvroType(_primitive(form, options), (name,))


def _primitive(form: Form, options: ProtocolOptions) -> Primitive:
    family, kind = form.family, form.kind
    if family is Family.INT:
        if kind.tp is Tp.LONGLONG:
            as_text = kind.is_unsigned and options.avro_bigint_unsigned_handling_mode == "string"
            return "string" if as_text else "long"
        return "long" if kind.tp is Tp.LONG and kind.is_unsigned else "int"
    if family is Family.FLOAT:
        return "float" if kind.tp is Tp.FLOAT else "double"
    return "bytes" if family is Family.BYTES else "string"


def _tidb_type(form: Form) -> str:
    family, kind = form.family, form.kind
    if kind.tp is Tp.VECTOR:
        return "TiDBVECTORFloat32"
    if family is Family.INT:
        if kind.tp is Tp.YEAR:
            return "YEAR"
        name = "BIGINT" if kind.tp is Tp.LONGLONG else "INT"
        return f"{name} UNSIGNED" if kind.is_unsigned else name
    if family is Family.FLOAT:
        return "FLOAT" if kind.tp is Tp.FLOAT else "DOUBLE"
    if family is Family.DATETIME:
        return "TIMESTAMP" if kind.tp is Tp.TIMESTAMP else "DATETIME"
    return _NAMES[family]


def allowed_text(names: tuple[str, ...]) -> str:
    """Return the names of an ENUM or SET as one text. Only commas inside names are escaped, so this is all that
    `allowed_names` can undo."""
    return ",".join(name.replace(",", "\\,").replace("\\'", "'").replace("''", "'") for name in names)


def allowed_names(text: str) -> tuple[str, ...]:
    """Split `allowed_text` into names. An empty text may stand for no name or for one empty name; the result is one
    empty name."""
    return tuple(name.replace("\0", ",") for name in text.replace("\\,", "\0").split(","))
