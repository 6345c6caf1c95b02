"""Foreign keys and CHECK constraints of a TableInfo. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from binlog.tidb.document import Json
from binlog.tidb.table import TableInfo
from binlog.tidb.types import SchemaState

_ACTIONS: Final = {1: "RESTRICT", 2: "CASCADE", 3: "SET NULL", 4: "NO ACTION", 5: "SET DEFAULT"}
_GENERATED_NAME: Final = re.compile(r"fk_\d+")


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A foreign key. `parent_schema` '': that of the table; `on_delete`, `on_update`: SQL action or ''."""

    id: int
    name: str
    columns: tuple[str, ...]
    parent_schema: str
    parent: str
    parent_columns: tuple[str, ...]
    on_delete: str = ""
    on_update: str = ""

    @property
    def is_name_generated(self) -> bool:
        """Whether TiDB may have generated the name: it uses fk_1 in every table, but MySQL needs it unique per
        database."""
        return _GENERATED_NAME.fullmatch(self.name) is not None


@dataclass(frozen=True, slots=True)
class Check:
    """A CHECK constraint; in a TableInfo only with tidb_enable_check_constraint."""

    id: int
    name: str
    expression: str
    enforced: bool = True


def foreign_keys(info: TableInfo) -> tuple[ForeignKey, ...]:
    """The public foreign keys with a parent and columns."""
    found = (_foreign_key(key) for key in info.foreign_keys if isinstance(key, Mapping) and _is_public(key))
    return tuple(key for key in found if key.columns and key.parent and key.parent_columns)


def _foreign_key(key: Mapping[str, Json]) -> ForeignKey:
    return ForeignKey(
        _number(key.get("id")),
        name_of(key.get("fk_name")),
        _names(key.get("cols")),
        name_of(key.get("ref_schema")),
        name_of(key.get("ref_table")),
        _names(key.get("ref_cols")),
        _ACTIONS.get(_number(key.get("on_delete")), ""),
        _ACTIONS.get(_number(key.get("on_update")), ""),
    )


def checks(info: TableInfo) -> tuple[Check, ...]:
    """The public CHECK constraints."""
    found = info.rest.get("constraint_info")
    return tuple(
        Check(
            _number(one.get("id")), name_of(one.get("constraint_name")), str(one.get("expr_string") or ""),
            enforced=one.get("enforced") is not False,
        )
        for one in (found if isinstance(found, list) else ())
        if isinstance(one, Mapping) and _is_public(one) and one.get("expr_string")
    )  # fmt: skip


def _is_public(one: Mapping[str, Json]) -> bool:
    return one.get("state") in (None, int(SchemaState.PUBLIC))


def _number(value: Json | None) -> int:
    return value if isinstance(value, int) else 0


def name_of(value: Json | None) -> str:
    """`{"O": name, "L": …}` or the name itself."""
    if isinstance(value, Mapping):
        value = value.get("O")
    return value if isinstance(value, str) else ""


def _names(value: Json | None) -> tuple[str, ...]:
    return tuple(name_of(part) for part in value) if isinstance(value, list) else ()
