"""Reads upstream the rows whose messages have their handle key alone (`large-message-handle-option=handle-key-only`).

New values are read as of the row's commit_ts, old ones as of the ts before it, each by the key of its image. They are
written as messages have them, so that the row becomes the binlog that its whole message would become.
"""

from __future__ import annotations

from datetime import tzinfo

from binlog.errors import PumpUnavailable
from binlog.tidb.flatten import flatten
from binlog.tidb.table import TableInfo
from binlog.tidb.time import datetime_text, parse_datetime, to_zone
from binlog.tidb.types import Tp

from drainer.changes.row_packets import is_read_as_names, selected
from drainer.ddl.lexer import quoted
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, ColumnValue, Image, RowEvent, Value
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.registry import PROTOCOLS
from drainer.ranges.upstream import RowKey, Upstream, UpstreamDown, UpstreamError
from drainer.row.column_type import ColumnType, TypeClass
from drainer.row.text import NUMBERS, shown_as
from drainer.sink.replay import to_utc


def whole_row(event: RowEvent, info: TableInfo, upstream: Upstream, options: ProtocolOptions) -> RowEvent:
    """Return the event with the values of all columns. `info`: of its table at its commit_ts. Raises MessageError,
    which names table, key and commit_ts, and PumpUnavailable while upstream does not answer."""
    old, new = event.old, event.new
    key = {**(new or {}), **(old or {})}  # the old image may lack what has not changed
    is_open = PROTOCOLS.get(options.protocol.lower()) == "open"
    try:
        if is_open and options.only_output_updated_columns and event.change is Change.INSERT:
            raise MessageError("and it may be an update: the changefeed must not set only-output-updated-columns")
        old = None if old is None else _read(event, info, key, upstream, event.commit_ts - 1, options.zone)
        new = None if new is None else _read(event, info, new, upstream, event.commit_ts, options.zone)
    except UpstreamDown as error:
        raise PumpUnavailable(str(error)) from error  # the batch is read again
    except (UpstreamError, MessageError, ValueError) as error:
        shown = ", ".join(f"{name} = {one.value!r}" for name, one in key.items())
        raise MessageError(
            f"the {event.change} of `{event.schema}`.`{event.table}` at commit_ts {event.commit_ts} was too large for "
            f"its message, which has the key ({shown:.200}) alone, and its values cannot be read upstream: {error}; or "
            "let TiCDC use claim-check instead of handle-key-only"
        ) from error
    return event._replace(old=old, new=new, handle_only=False)


def _read(event: RowEvent, info: TableInfo, key: Image, upstream: Upstream, ts: int, zone: tzinfo) -> Image:
    """Return the row with this key as of `ts`."""
    columns = {one.name: ColumnType.of(one.type) for one in info.public_columns if not (one.is_virtual or one.hidden)}
    if lacking := key.keys() - columns.keys():
        raise MessageError(f"the table as the DDL history has it lacks {', '.join(sorted(lacking))}")
    of_key = RowKey(tuple(key), tuple(columns[name] for name in key))
    border = of_key.border([_text(columns[name], one.value, zone) for name, one in key.items()], any_date=True)
    if not border:
        raise MessageError("there is no key, or a value of it cannot be a literal")
    equal = [f"{quoted(name)} = {literal}" for name, literal in zip(key, border, strict=True)]
    names = ", ".join(selected(name, of) for name, of in columns.items())
    with upstream.at(ts) as snapshot:
        rows = snapshot.ask(f"SELECT {names} FROM {quoted(event.schema, event.table)} WHERE {' AND '.join(equal)}")
    if len(rows) != 1:
        raise MessageError(f"{len(rows)} rows have this key as of {ts}")
    found = zip(columns.items(), rows[0], strict=True)
    return {**{name: ColumnValue(_value(of, text, zone)) for (name, of), text in found}, **key}


def _text(of: ColumnType, value: Value, zone: tzinfo) -> bytes | None:
    """Return the text that `selected` reads of a value that messages have so."""
    if of.kind.tp is Tp.TIMESTAMP and isinstance(value, str):
        value = to_utc(value, zone)
    decoded = of.decoded_value(flatten(value, of.kind))
    if decoded is not None and of.type_class not in (TypeClass.BYTES, TypeClass.FLOAT):
        decoded = shown_as(of)(decoded)
    return decoded if isinstance(decoded, bytes | None) else repr(decoded).encode()


def _value(of: ColumnType, text: bytes | None, zone: tzinfo) -> Value:
    """Return a value as messages have it, or another form that RowEncoder takes."""
    if text is None or of.type_class in (TypeClass.BYTES, TypeClass.TEXT):
        return text
    if of.type_class in NUMBERS and not is_read_as_names(of):
        return int(text)
    shown = text.decode(errors="replace")
    return datetime_text(to_zone(parse_datetime(shown), zone), of.kind.fsp) if of.kind.tp is Tp.TIMESTAMP else shown
