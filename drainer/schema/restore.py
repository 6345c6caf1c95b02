"""SQL of what a table or view has beside its rows, from its TableInfo. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from binlog.tidb.document import Json
from binlog.tidb.table import TableInfo

from drainer.ddl.lexer import quoted
from drainer.step import Located

_REFERENCE: Final = {1: "RESTRICT", 2: "CASCADE", 3: "SET NULL", 4: "NO ACTION", 5: "SET DEFAULT"}
_SECURITY: Final = {0: "DEFINER", 1: "INVOKER"}


def foreign_key_texts(table: Located) -> Iterator[str]:
    """ALTER TABLE … ADD CONSTRAINT for each of the table's foreign keys."""
    for key in table.info.foreign_keys:
        if not isinstance(key, dict):
            continue
        columns, referred = _names(key.get("cols")), _names(key.get("ref_cols"))
        parent = _name(key.get("ref_table"))
        if not (columns and referred and parent):
            continue
        text = (
            f"ALTER TABLE {quoted(table.schema, table.name)} ADD CONSTRAINT {quoted(_name(key.get('fk_name')))} "
            f"FOREIGN KEY ({columns}) REFERENCES {quoted(_name(key.get('ref_schema')) or table.schema, parent)} "
            f"({referred})"
        )
        for word, field in (("DELETE", "on_delete"), ("UPDATE", "on_update")):
            number = key.get(field)
            if isinstance(number, int) and number in _REFERENCE:
                text += f" ON {word} {_REFERENCE[number]}"
        yield text


def foreign_key_names(info: TableInfo) -> Iterator[tuple[tuple[str, ...], str]]:
    """The columns, in lower case, and the name of each foreign key."""
    for key in info.foreign_keys:
        columns = key.get("cols") if isinstance(key, dict) else None
        if isinstance(key, dict) and isinstance(columns, list):
            yield tuple(_name(column).lower() for column in columns), _name(key.get("fk_name"))


def view_text(table: Located) -> str:
    """CREATE VIEW, '' where the TableInfo does not tell its select. Names in the select are qualified by TiDB."""
    view = table.info.view
    select = view.get("view_select") if view else None
    if view is None or not isinstance(select, str) or not select:
        return ""
    security = _SECURITY.get(view.get("view_security"), "DEFINER")  # type: ignore[arg-type]
    columns = ", ".join(quoted(column.name) for column in table.info.public_columns)
    return f"CREATE OR REPLACE SQL SECURITY {security} VIEW {quoted(table.schema, table.name)} ({columns}) AS {select}"


def _name(value: Json | None) -> str:
    """`{"O": name, "L": …}` or the name itself."""
    if isinstance(value, Mapping):
        value = value.get("O")
    return value if isinstance(value, str) else ""


def _names(value: Json | None) -> str:
    return ", ".join(quoted(_name(part)) for part in value) if isinstance(value, list) else ""
