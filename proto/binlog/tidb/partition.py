"""The partitioning of a table (model.PartitionInfo)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .document import OMIT, Document, Json, Order, Reader, cistr, in_order, parse_cistr, unknown_rest
from .types import OpenEnum


class PartitionType(OpenEnum):
    """The kind of partitioning."""

    NONE = 0
    RANGE = 1
    HASH = 2
    LIST = 3
    KEY = 4
    SYSTEM_TIME = 5


_DEFINITION_ORDER: Order = (
    ("id", 0),
    ("name", None),
    ("less_than", None),
    ("in_values", None),
    ("policy_ref_info", None),
    ("comment", OMIT),
)


@dataclass(frozen=True, slots=True)
class PartitionDefinition:
    """One partition. `id`: the physical table id in KV keys (rows in binlogs have the table's own id)."""

    id: int
    name: str
    less_than: tuple[str, ...] = ()
    in_values: tuple[tuple[str, ...], ...] = ()
    rest: Mapping[str, Json] = field(default_factory=dict, hash=False)

    @classmethod
    def from_json(cls, document: Document, what: str = "partition") -> PartitionDefinition:
        read = Reader(document, what)
        rows = [Reader({"in_values": row}, what).texts("in_values") for row in read.items("in_values")]
        known = cls(read.integer("id"), read.name("name"), read.texts("less_than"), tuple(rows))
        rest = unknown_rest(_DEFINITION_ORDER, known._typed(), document)
        return replace(known, rest=rest) if rest else known

    def _typed(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "name": cistr(self.name),
            "less_than": list(self.less_than) or None,
            "in_values": [list(row) for row in self.in_values] or None,
        }

    def to_json(self) -> dict[str, Json]:
        return in_order(_DEFINITION_ORDER, self._typed(), self.rest)


_PARTITION_ORDER: Order = (
    ("type", 0),
    ("expr", ""),
    ("columns", None),
    ("enable", False),
    ("is_empty_columns", OMIT),
    ("definitions", None),
    ("adding_definitions", None),
    ("dropping_definitions", None),
    ("NewPartitionIDs", OMIT),
    ("states", None),
    ("num", 0),
    ("ddl_state", 0),
    ("new_table_id", OMIT),
    ("ddl_type", OMIT),
    ("ddl_expr", OMIT),
    ("ddl_columns", OMIT),
)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The partitioning. `expr`: the expression of RANGE, HASH or LIST. `columns`: the names of RANGE COLUMNS, LIST
    COLUMNS or KEY.
    """

    type: PartitionType
    expr: str = ""
    columns: tuple[str, ...] = ()
    enable: bool = True
    definitions: tuple[PartitionDefinition, ...] = ()
    num: int = 0
    rest: Mapping[str, Json] = field(default_factory=dict, hash=False)

    @classmethod
    def from_json(cls, document: Document, what: str = "partition") -> PartitionInfo:
        read = Reader(document, what)
        definitions = enumerate(read.documents("definitions"))
        known = cls(
            type=PartitionType(read.integer("type")),
            expr=read.text("expr"),
            columns=tuple(parse_cistr(name, f"{what}.columns") for name in read.items("columns")),
            enable=read.boolean("enable"),
            definitions=tuple(PartitionDefinition.from_json(d, f"{what}.definitions[{n}]") for n, d in definitions),
            num=read.integer("num"),
        )
        rest = unknown_rest(_PARTITION_ORDER, known._typed(), document)
        return replace(known, rest=rest) if rest else known

    def _typed(self) -> dict[str, Json]:
        return {
            "type": int(self.type),
            "expr": self.expr,
            "columns": [cistr(name) for name in self.columns] or None,
            "enable": self.enable,
            "definitions": [d.to_json() for d in self.definitions] or None,
            "num": self.num,
        }

    def to_json(self) -> dict[str, Json]:
        return in_order(_PARTITION_ORDER, self._typed(), self.rest)
