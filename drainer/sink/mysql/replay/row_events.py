"""Rows of messages and of files with values as a server in UTC takes them. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import tzinfo
from typing import Final

import numpy as np
from binlog.tidb.types import Tp

from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, Image, RowEvent, Value
from drainer.protocol.pb_file.decoder import FileColumn, FileEvent, PlainValue
from drainer.sink.mysql.replay.statements import TableThere
from drainer.sink.replay_time import to_utc

_TYPES: Final = {"decimal": Tp.NEWDECIMAL, "float": Tp.FLOAT, "json": Tp.JSON, "timestamp": Tp.TIMESTAMP}


def file_event(row: RowEvent, there: TableThere) -> FileEvent:
    """Convert the row of a message. Types are those of the destination's columns, because not every protocol has
    upstream's. Raises MessageError."""
    new = row.new or {}
    old: Image = {**new, **(row.old or row.key or {})}
    if row.change is Change.DELETE or row.new is None:
        columns = [_column(name, one.value, None, there) for name, one in old.items()]
        return FileEvent(row.schema, row.table, Change.DELETE, tuple(columns))
    if row.old is None:  # an insert, or an update whose message has only the new row
        columns = [_column(name, one.value, None, there) for name, one in new.items()]
        return FileEvent(row.schema, row.table, Change.INSERT, tuple(columns))
    columns = [_column(name, old[name].value, one.value, there) for name, one in new.items()]
    return FileEvent(row.schema, row.table, Change.UPDATE, tuple(columns))


def _column(name: str, value: Value, changed: Value, there: TableThere) -> FileColumn:
    kind = there.types.get(name.lower())
    if kind is None:
        raise MessageError(f"the destination has no column `{name}`")
    code = _TYPES.get(kind, 0)
    return FileColumn(name, code, kind, _plain(value, code), _plain(changed, code))


def _plain(value: Value, code: int) -> PlainValue:
    """The shortest digits of a single are those of another double, which for the largest one is out of range."""
    if code == Tp.FLOAT and isinstance(value, float):
        return float(np.float32(value))
    return value.encode() if isinstance(value, str) else value


def in_utc(event: FileEvent, zone: tzinfo) -> FileEvent:
    """Convert TIMESTAMPs from this zone. Raises MessageError for what is no time."""

    def moved(value: PlainValue) -> PlainValue:
        return to_utc(value, zone) if isinstance(value, bytes) else value

    columns = [
        replace(column, value=moved(column.value), changed=moved(column.changed))
        if column.type_code == Tp.TIMESTAMP
        else column
        for column in event.columns
    ]
    return replace(event, columns=tuple(columns))
