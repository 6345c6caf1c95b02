"""A column of a table (model.ColumnInfo)."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from .document import Json, JsonObject, Layout, Reader, Typed, cistr, list_or_null, number_of
from .types import FieldType, Flag, SchemaState, Tp

_WRITABLE = frozenset({SchemaState.PUBLIC, SchemaState.WRITE_ONLY, SchemaState.WRITE_REORGANIZATION})


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


# The keys are Go's field names. flen and decimal are kept as they are (-1: unspecified).
_FIELD_TYPE = Layout(
    number_of("Tp", Tp, "tp"),
    Typed("Flag", Reader.integer, int, "flag"),
    Typed("Flen", Reader.integer, name="flen"),
    Typed("Decimal", Reader.integer, name="decimal"),
    Typed("Charset", Reader.text, name="charset"),
    Typed("Collate", Reader.text, name="collate"),
    Typed("Elems", Reader.texts, list_or_null, "elems"),
    Typed("ElemsIsBinaryLit", lambda read, key: tuple(map(bool, read.items(key))), list_or_null, "elems_binary"),
    Typed("Array", Reader.boolean, name="array"),
)


def _field_type(read: Reader, key: str) -> FieldType:
    return FieldType(**_FIELD_TYPE.read(Reader(read.child(key) or {}, f"{read.what}.{key}")))


_COLUMN = Layout(
    Typed("id", Reader.integer),
    Typed("name", Reader.name, cistr),
    Typed("offset", Reader.integer),
    Typed("origin_default", Reader.json),
    Typed("origin_default_bit", Reader.base64, _base64),
    Typed("default", Reader.json),
    Typed("default_bit", Reader.base64, _base64),
    Typed("default_is_expr", Reader.boolean),
    Typed("generated_expr_string", Reader.text, name="generated_expr"),
    Typed("generated_stored", Reader.boolean),
    ("dependences", None),
    Typed("type", _field_type, _FIELD_TYPE.write),
    number_of("state", SchemaState),
    Typed("comment", Reader.text),
    Typed("hidden", Reader.boolean),
    ("change_state_info", None),
    Typed("version", Reader.integer),
)


@dataclass(frozen=True, slots=True)
class ColumnInfo(JsonObject):
    """A column. `origin_default`: the value of rows that are older than the column.

    `*_bit`: the bytes of a BIT's default. In jobs of the SDK also those of a BINARY or VARBINARY default that is not
    UTF-8.
    """

    layout = _COLUMN
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
