"""Rows of files and of messages as a SQLite file has them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import tzinfo

from binlog.tidb.types import Tp

from drainer.protocol.event import Change, RowEvent, key_of
from drainer.protocol.pb_file.decoder import FileColumn, FileEvent, PlainValue
from drainer.row.scalar import small_int
from drainer.sink.replay_time import to_utc

Cells = Mapping[str, int | float | str | bytes | None]


@dataclass(frozen=True, slots=True)
class RowChange:
    """`removed`: images of rows to remove, one after another; `key`: the names of the table's key, of which each image
    then consists, "()" for none: an image has all columns, and one row is removed. `added`: the new row, empty for
    none. `is_whole`: the columns are those of the table at that time."""

    removed: tuple[Cells, ...]
    added: Cells
    key: tuple[str, ...]
    is_whole: bool


def of_file(event: FileEvent, zone: tzinfo | None, *, safe: bool) -> RowChange:
    """`zone`: that of TIMESTAMPs, None: UTC; `safe`: the new row may exist. Raises MessageError."""
    old = {column.name: _cell(column, column.value, zone) for column in event.columns}
    new = old
    if event.change is Change.UPDATE:
        new = {column.name: _cell(column, column.changed, zone) for column in event.columns}
    removed = () if event.change is Change.INSERT else (old,)
    if event.change is Change.DELETE:
        return RowChange(removed, {}, (), is_whole=True)
    return RowChange((*removed, new) if safe else removed, new, (), is_whole=True)


def _cell(column: FileColumn, value: PlainValue, zone: tzinfo | None) -> int | float | str | bytes | None:
    if isinstance(value, int):
        return small_int(int(value))
    if not isinstance(value, bytes) or "blob" in column.type_name or "binary" in column.type_name:
        return value
    if column.type_code == Tp.TIMESTAMP and zone is not None:
        value = to_utc(value, zone)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def of_message(event: RowEvent) -> RowChange:
    """An insert may be repeated, so it removes the row of its key."""
    new = event.new or {}
    key = tuple(key_of(event) or ())
    if event.new is not None and event.old is None:
        image = {name: new[name] for name in key if name in new}
    else:
        image = {**new, **(event.old or {})}
        if key:
            of_key = event.key if event.key is not None and not event.old else image
            image = {name: of_key[name] for name in key if name in of_key}
    removed = {name: _small(column.value) for name, column in image.items()}
    added = {name: _small(column.value) for name, column in new.items()}
    return RowChange((removed,) if removed else (), added, key, is_whole=False)


def _small(value: int | float | str | bytes | None) -> int | float | str | bytes | None:
    return small_int(value) if isinstance(value, int) else value
