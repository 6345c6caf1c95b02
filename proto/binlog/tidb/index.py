"""An index of a table (model.IndexInfo)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .document import Json, JsonObject, Layout, Reader, Typed, cistr, number_of
from .types import UNSPECIFIED, SchemaState


@dataclass(frozen=True, slots=True)
class IndexColumn:
    """A part of an index. `offset`: the position in the table's columns. `length`: the prefix length, -1 for the full
    column.
    """

    name: str
    offset: int
    length: int = UNSPECIFIED


def _columns(read: Reader, key: str) -> tuple[IndexColumn, ...]:
    parts = [Reader(part, f"{read.what}.{key}") for part in read.documents(key)]
    return tuple(IndexColumn(p.name("name"), p.integer("offset"), p.integer("length")) for p in parts)


def _columns_json(columns: Sequence[IndexColumn]) -> Json:
    return [{"name": cistr(c.name), "offset": c.offset, "length": c.length} for c in columns]


_INDEX = Layout(
    Typed("id", Reader.integer),
    Typed("idx_name", Reader.name, cistr, "name"),
    ("tbl_name", cistr("")),
    Typed("idx_cols", _columns, _columns_json, "columns"),
    number_of("state", SchemaState),
    ("backfill_state", 0),
    Typed("comment", Reader.text),
    Typed("index_type", Reader.integer),
    Typed("is_unique", Reader.boolean, name="unique"),
    Typed("is_primary", Reader.boolean, name="primary"),
    Typed("is_invisible", Reader.boolean, name="invisible"),
    ("is_global", False),
    ("mv_index", False),
)


@dataclass(frozen=True, slots=True)
class IndexInfo(JsonObject):
    """An index."""

    layout = _INDEX
    id: int
    name: str
    columns: tuple[IndexColumn, ...]
    state: SchemaState = SchemaState.PUBLIC
    unique: bool = False
    primary: bool = False
    invisible: bool = False
    comment: str = ""
    index_type: int = 1

    @property
    def is_public(self) -> bool:
        return self.state == SchemaState.PUBLIC
