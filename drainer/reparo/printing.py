"""Transactions and DDLs as lines for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from binlog.cluster import tso
from binlog.tidb.types import Tp

from drainer.protocol.event import Change
from drainer.protocol.pb_file.decoder import FileBinlog, FileColumn, FileEvent, PlainValue

_TEXTS = frozenset({Tp.DATE, Tp.NEWDATE, Tp.DATETIME, Tp.TIMESTAMP, Tp.DURATION, Tp.NEWDECIMAL})


def lines(binlog: FileBinlog, events: Iterator[FileEvent]) -> Iterator[str]:
    """Return one line for a DDL, or one for each row: time, commit_ts, the kind of change, the table and its
    columns."""
    when = f"{tso.format_local(binlog.commit_ts)}  {binlog.commit_ts}"
    if binlog.query is not None:
        yield f"{when}  ddl     {' '.join(binlog.query.split())}"
        return
    for event in events:
        columns = "  ".join(_column(column, event.change) for column in event.columns)
        yield f"{when}  {event.change:<6}  {event.schema}.{event.table}  {columns}"


def _column(column: FileColumn, change: Change) -> str:
    old = _value(column, column.value)
    if change is not Change.UPDATE or column.value == column.changed:
        return f"{column.name}={old}"
    return f"{column.name}={old} → {_value(column, column.changed)}"


def _value(column: FileColumn, value: PlainValue) -> str:
    if value is None:
        return "NULL"
    if not isinstance(value, bytes):
        return str(value)
    if "blob" in column.type_name or "binary" in column.type_name:
        return f"0x{value.hex()}" if value else "''"
    text = value.decode("utf-8", "backslashreplace")
    return text if column.type_code in _TEXTS else repr(text)
