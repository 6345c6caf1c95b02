"""A column of a table (model.ColumnInfo)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .document import Document, Json, Order, Reader, cistr, in_order, unknown_rest
from .types import FieldType, Flag, SchemaState, Tp

_WRITABLE = frozenset({SchemaState.PUBLIC, SchemaState.WRITE_ONLY, SchemaState.WRITE_REORGANIZATION})


def field_type_from_json(document: Document, what: str = "type") -> FieldType:
    """Read a FieldType, whose keys are Go's field names. flen and decimal are kept as they are (-1: unspecified)."""
    read = Reader(document, what)
    return FieldType(
        tp=Tp(read.integer("Tp")),
        flag=read.integer("Flag"),
        flen=read.integer("Flen"),
        decimal=read.integer("Decimal"),
        charset=read.text("Charset"),
        collate=read.text("Collate"),
        elems=read.texts("Elems"),
        elems_binary=tuple(bool(item) for item in read.items("ElemsIsBinaryLit")),
        array=read.boolean("Array"),
    )


def field_type_to_json(kind: FieldType) -> dict[str, Json]:
    return {
        "Tp": int(kind.tp),
        "Flag": int(kind.flag),
        "Flen": kind.flen,
        "Decimal": kind.decimal,
        "Charset": kind.charset,
        "Collate": kind.collate,
        "Elems": list(kind.elems) or None,
        "ElemsIsBinaryLit": list(kind.elems_binary) or None,
        "Array": kind.array,
    }


_COLUMN_ORDER: Order = (
    ("id", 0),
    ("name", None),
    ("offset", 0),
    ("origin_default", None),
    ("origin_default_bit", None),
    ("default", None),
    ("default_bit", None),
    ("default_is_expr", False),
    ("generated_expr_string", ""),
    ("generated_stored", False),
    ("dependences", None),
    ("type", None),
    ("state", 0),
    ("comment", ""),
    ("hidden", False),
    ("change_state_info", None),
    ("version", 0),
)


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """A column. `origin_default`: the value of rows that are older than the column.

    `*_bit`: the bytes of a BIT's default. In jobs of the SDK also those of a BINARY or VARBINARY default that is not
    UTF-8.
    """

    id: int
    name: str
    offset: int
    type: FieldType
    state: SchemaState = SchemaState.PUBLIC
    origin_default: Json = None
    origin_default_bit: bytes | None = None
    default: Json = None
    default_bit: bytes | None = None
    default_is_expr: bool = False
    generated_expr: str = ""
    generated_stored: bool = False
    comment: str = ""
    hidden: bool = False
    version: int = 2
    rest: Mapping[str, Json] = field(default_factory=dict, hash=False)

    @property
    def is_public(self) -> bool:
        return self.state == SchemaState.PUBLIC

    @property
    def is_writable(self) -> bool:
        """Whether inserts and updates contain the column: it is public, or is being added."""
        return self.state in _WRITABLE

    @property
    def is_generated(self) -> bool:
        return self.generated_expr != ""

    @property
    def is_virtual(self) -> bool:
        return self.generated_expr != "" and not self.generated_stored

    @property
    def is_unsigned(self) -> bool:
        return bool(self.type.flag & Flag.UNSIGNED)

    @property
    def is_not_null(self) -> bool:
        return bool(self.type.flag & Flag.NOT_NULL)

    @property
    def is_primary(self) -> bool:
        return bool(self.type.flag & Flag.PRI_KEY)

    @classmethod
    def from_json(cls, document: Document, what: str = "column") -> ColumnInfo:
        """Read a column. Raises DecodeError with the name of an invalid field."""
        read = Reader(document, what)
        known = cls(
            id=read.integer("id"),
            name=read.name("name"),
            offset=read.integer("offset"),
            type=field_type_from_json(read.child("type") or {}, f"{what}.type"),
            state=SchemaState(read.integer("state")),
            origin_default=document.get("origin_default"),
            origin_default_bit=read.base64("origin_default_bit"),
            default=document.get("default"),
            default_bit=read.base64("default_bit"),
            default_is_expr=read.boolean("default_is_expr"),
            generated_expr=read.text("generated_expr_string"),
            generated_stored=read.boolean("generated_stored"),
            comment=read.text("comment"),
            hidden=read.boolean("hidden"),
            version=read.integer("version"),
        )
        rest = unknown_rest(_COLUMN_ORDER, known._typed(), document)
        return replace(known, rest=rest) if rest else known

    def _typed(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "name": cistr(self.name),
            "offset": self.offset,
            "origin_default": self.origin_default,
            "origin_default_bit": _base64(self.origin_default_bit),
            "default": self.default,
            "default_bit": _base64(self.default_bit),
            "default_is_expr": self.default_is_expr,
            "generated_expr_string": self.generated_expr,
            "generated_stored": self.generated_stored,
            "type": field_type_to_json(self.type),
            "state": int(self.state),
            "comment": self.comment,
            "hidden": self.hidden,
            "version": self.version,
        }

    def to_json(self) -> dict[str, Json]:
        return in_order(_COLUMN_ORDER, self._typed(), self.rest)


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
