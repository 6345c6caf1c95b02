"""An index of a table (model.IndexInfo)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .document import Document, Json, Order, Reader, cistr, in_order, unknown_rest
from .types import UNSPECIFIED, SchemaState

_INDEX_ORDER: Order = (
    ("id", 0),
    ("idx_name", None),
    ("tbl_name", {"O": "", "L": ""}),
    ("idx_cols", None),
    ("state", 0),
    ("backfill_state", 0),
    ("comment", ""),
    ("index_type", 1),
    ("is_unique", False),
    ("is_primary", False),
    ("is_invisible", False),
    ("is_global", False),
    ("mv_index", False),
)


@dataclass(frozen=True, slots=True)
class IndexColumn:
    """A part of an index. `offset`: the position in the table's columns. `length`: the prefix length, -1 for the full
    column.
    """

    name: str
    offset: int
    length: int = UNSPECIFIED


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """An index."""

    id: int
    name: str
    columns: tuple[IndexColumn, ...]
    state: SchemaState = SchemaState.PUBLIC
    unique: bool = False
    primary: bool = False
    invisible: bool = False
    comment: str = ""
    index_type: int = 1
    rest: Mapping[str, Json] = field(default_factory=dict, hash=False)

    @property
    def is_public(self) -> bool:
        return self.state == SchemaState.PUBLIC

    @classmethod
    def from_json(cls, document: Document, what: str = "index") -> IndexInfo:
        read = Reader(document, what)
        parts = [Reader(part, f"{what}.idx_cols") for part in read.documents("idx_cols")]
        known = cls(
            id=read.integer("id"),
            name=read.name("idx_name"),
            columns=tuple(IndexColumn(p.name("name"), p.integer("offset"), p.integer("length")) for p in parts),
            state=SchemaState(read.integer("state")),
            unique=read.boolean("is_unique"),
            primary=read.boolean("is_primary"),
            invisible=read.boolean("is_invisible"),
            comment=read.text("comment"),
            index_type=read.integer("index_type"),
        )
        rest = unknown_rest(_INDEX_ORDER, known._typed(), document)
        return replace(known, rest=rest) if rest else known

    def _typed(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "idx_name": cistr(self.name),
            "idx_cols": [{"name": cistr(c.name), "offset": c.offset, "length": c.length} for c in self.columns],
            "state": int(self.state),
            "comment": self.comment,
            "index_type": self.index_type,
            "is_unique": self.unique,
            "is_primary": self.primary,
            "is_invisible": self.invisible,
        }

    def to_json(self) -> dict[str, Json]:
        return in_order(_INDEX_ORDER, self._typed(), self.rest)
