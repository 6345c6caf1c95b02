"""Decodes Canal-JSON: TiCDC's, with and without its extension, and Canal's own, which may have several rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from drainer.protocol.canal.encoder import WATERMARK
from drainer.protocol.errors import MessageError
from drainer.protocol.event import Change, DdlEvent, Event, ResolvedEvent, RowEvent, Value
from drainer.protocol.json_read import Columns, Reader, image_of, of_text, parse
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import ColumnFlag

_CHANGES: Final = {"INSERT": Change.INSERT, "UPDATE": Change.UPDATE, "DELETE": Change.DELETE}


@dataclass(frozen=True, slots=True)
class CanalDecoder:
    """Decodes Canal-JSON. Keeps no state between messages."""

    options: ProtocolOptions

    def decode(self, key: bytes | None, value: bytes | None) -> list[Event]:
        """Decode one message. Without the extension every commit_ts is 0, because the message does not contain it."""
        message = parse(value, "Canal-JSON message", self.options.large_message_handle_compression)
        extension = message.child("_tidb")
        kind = message.text("type")
        if message.boolean("isDdl"):
            return [_ddl(message, extension)]
        if kind == WATERMARK:
            return [ResolvedEvent(message.needed("_tidb").integer("watermarkTs"))]
        if kind not in _CHANGES:
            raise MessageError(f"{message.where}: type {kind!r} is none of {', '.join(_CHANGES)}, {WATERMARK}")
        return [*_rows(message, extension, _CHANGES[kind])]


def _ddl(message: Reader, extension: Reader | None) -> DdlEvent:
    commit_ts = 0 if extension is None else extension.integer("commitTs", 0)
    return DdlEvent(commit_ts, message.text("database"), message.text("table"), message.text("sql"))


def _rows(message: Reader, extension: Reader | None, change: Change) -> list[RowEvent]:
    data, old = message.objects("data"), message.objects("old")
    if not data:
        message.wrong("data", "an array of at least one row")
    if change is Change.UPDATE and len(old) != len(data):
        raise MessageError(f"{message.where}: an update with {len(data)} new rows and {len(old)} old ones")
    columns, schema, table = _columns(message), message.text("database"), message.text("table")
    claim = "" if extension is None else extension.text("claimCheckLocation", "")
    commit_ts = 0 if extension is None else extension.integer("commitTs", 0)
    handle_only = bool(claim) or (extension is not None and extension.boolean("onlyHandleKey", False))
    found, before = [], None
    for n, row in enumerate(data):
        if change is Change.UPDATE:
            before = image_of(old[n], columns, value_of, "mysqlType")
        image = image_of(row, columns, value_of, "mysqlType")
        found.append(
            RowEvent(
                change,
                commit_ts,
                schema,
                table,
                old=image if change is Change.DELETE else before,
                new=None if change is Change.DELETE else image,
                handle_only=handle_only,
                claim=claim,
            )
        )
    return found


def _columns(message: Reader) -> Columns:
    """Return each column's type, and its flags: HANDLE_KEY for those of the primary key."""
    types, key = message.child("mysqlType"), message.document.get("pkNames")
    if types is None:
        return {}
    try:
        found = _flagged(tuple(types.document.items()), tuple(key) if isinstance(key, list) else ())
    except TypeError:  # a member that cannot be hashed is no text
        found = None
    if found is None:
        for name in types.document:
            types.text(name)
        message.wrong("pkNames", "an array of names")
    return found


@lru_cache(4096)  # every message of a table has the same types
def _flagged(types: tuple[tuple[str, object], ...], key: tuple[object, ...]) -> Columns | None:
    handle_key = int(ColumnFlag.HANDLE_KEY)
    found = {name: (kind, handle_key * (name in key)) for name, kind in types if isinstance(kind, str)}
    return found if len(found) == len(types) else None


def _binary(text: str) -> bytes:
    return text.encode("iso-8859-1")


@lru_cache(1024)
def value_of(type_name: str) -> Callable[[str], Value]:
    """Return what converts the values of a column of this type. Each raises ValueError, TypeError or AttributeError."""
    return of_text(type_name, _binary)
