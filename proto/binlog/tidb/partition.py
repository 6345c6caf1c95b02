"""The partitioning of a table (model.PartitionInfo)."""

from __future__ import annotations

from dataclasses import dataclass

from .document import (
    OMIT,
    JsonObject,
    Layout,
    Reader,
    Typed,
    cistr,
    list_or_null,
    number_of,
    objects_of,
    parse_cistr,
)
from .types import OpenEnum


class PartitionType(OpenEnum):
    """The kind of partitioning."""

    NONE = 0
    RANGE = 1
    HASH = 2
    LIST = 3
    KEY = 4
    SYSTEM_TIME = 5


def _in_values(read: Reader, key: str) -> tuple[tuple[str, ...], ...]:
    return tuple(Reader({key: row}, read.what).texts(key) for row in read.items(key))


_DEFINITION = Layout(
    Typed("id", Reader.integer),
    Typed("name", Reader.name, cistr),
    Typed("less_than", Reader.texts, list_or_null),
    Typed("in_values", _in_values, lambda rows: [list(row) for row in rows] or None),
    ("policy_ref_info", None),
    ("comment", OMIT),
)


@dataclass(frozen=True, slots=True)
class PartitionDefinition(JsonObject):
    """One partition. `id`: the physical table id in KV keys (rows in binlogs have the table's own id)."""

    layout = _DEFINITION
    id: int
    name: str
    less_than: tuple[str, ...] = ()
    in_values: tuple[tuple[str, ...], ...] = ()


def _columns(read: Reader, key: str) -> tuple[str, ...]:
    return tuple(parse_cistr(name, f"{read.what}.{key}") for name in read.items(key))


_PARTITION = Layout(
    number_of("type", PartitionType),
    Typed("expr", Reader.text),
    Typed("columns", _columns, lambda names: [cistr(name) for name in names] or None),
    Typed("enable", Reader.boolean),
    ("is_empty_columns", OMIT),
    objects_of("definitions", PartitionDefinition.from_json),
    ("adding_definitions", None),
    ("dropping_definitions", None),
    ("NewPartitionIDs", OMIT),
    ("states", None),
    Typed("num", Reader.integer),
    ("ddl_state", 0),
    ("new_table_id", OMIT),
    ("ddl_type", OMIT),
    ("ddl_expr", OMIT),
    ("ddl_columns", OMIT),
)


@dataclass(frozen=True, slots=True)
class PartitionInfo(JsonObject):
    """The partitioning. `expr`: the expression of RANGE, HASH or LIST. `columns`: the names of RANGE COLUMNS, LIST
    COLUMNS or KEY.
    """

    layout = _PARTITION
    type: PartitionType
    expr: str = ""
    columns: tuple[str, ...] = ()
    enable: bool = True
    definitions: tuple[PartitionDefinition, ...] = ()
    num: int = 0
