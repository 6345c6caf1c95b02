"""The text of one decoded value as messages have it, computed alone: production code converts whole columns."""

from __future__ import annotations

from datetime import tzinfo
from typing import Any

from binlog.tidb.time import timestamp_text
from binlog.tidb.types import Tp

from drainer.protocol.column_text import names_of
from drainer.row.column_type import ColumnType, TypeClass, shown_as


def shown_text(column_type: ColumnType, value: Any, zone: tzinfo) -> str:
    """Neither numbers nor binary strings, which each protocol writes in its own way."""
    if column_type.type_class is TypeClass.TEXT:
        return bytes(value).decode()
    if column_type.kind.tp is Tp.TIMESTAMP:
        return timestamp_text(value, column_type.kind.fsp, zone)
    if column_type.type_class in (TypeClass.ENUM, TypeClass.SET):
        return names_of(column_type)(value)
    return bytes(shown_as(column_type)(value)).decode()
