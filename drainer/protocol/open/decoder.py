"""Reads messages of Open Protocol, from both TiCDC producers (tiflow, pingcap/ticdc), from older ones, and from this
project."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final

from drainer.protocol.errors import MessageError
from drainer.protocol.event import (
    AdminEvent,
    Change,
    ColumnValue,
    DdlEvent,
    Event,
    ResolvedEvent,
    RowEvent,
    Value,
    text_or_bytes,
)
from drainer.protocol.json_read import Reader, parse
from drainer.protocol.open.encoder import ADMIN, DDL, RESOLVED, ROW
from drainer.protocol.open.framing import unframe, unquote
from drainer.protocol.registry import ProtocolOptions
from drainer.protocol.table import ColumnFlag

# Converts one column of an Open Protocol event to a plain value.
_INTEGERS: Final = frozenset({1, 2, 3, 8, 9, 13, 16, 247, 248})
_FLOATS: Final = frozenset({4, 5})
_BINARY: Final = int(ColumnFlag.BINARY)  # a number: the operators of an enum's members are slow
STRINGS: Final = frozenset({15, 253, 254})
_BLOBS: Final = frozenset({249, 250, 251, 252})
_TEXTS: Final = frozenset({7, 10, 11, 12, 14, 225, 245, 246})


def image(row: Reader, *, base64_text: bool) -> dict[str, ColumnValue]:
    """Convert an image. `base64_text`: CHAR and VARCHAR are base64, as in an old document. Raises MessageError."""
    return {name: _column(row.needed(name), base64_text) for name in row.document}


def _column(column: Reader, base64_text: bool) -> ColumnValue:
    code, flags = column.integer("t"), column.integer("f", 0)
    column.boolean("h", False)
    if "v" not in column.document:
        column.wrong("v", "a value")
    value = column.document["v"]
    try:
        return ColumnValue(value_of_code(code, flags, value, base64_text), code, flags)
    except (ValueError, OverflowError) as error:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
        raise MessageError(f"{column.where}: {shown} is no value of a column of type {code}: {error}") from None


def value_of_code(code: int, flags: int, value: Any, base64_text: bool) -> Value:
    """Convert a value. Values of unknown types are returned unchanged. Numbers may also be text, which old producers
    sent. Raises ValueError, OverflowError."""
    if value is None:
        return None
    if isinstance(value, bool | list | dict):
        raise ValueError("neither number nor string")
    if isinstance(value, str):
        return _string(code, flags, value, base64_text)
    if code in STRINGS or code in _BLOBS or code in _TEXTS:
        raise ValueError("no string")
    if code in _FLOATS:
        value = float(value)
    if isinstance(value, float):
        if code in _INTEGERS or not isfinite(value):
            raise ValueError("no integer" if code in _INTEGERS else "not finite")
        return value
    if code in _INTEGERS and not -(1 << 63) <= value < 1 << 64:
        raise ValueError("beyond 64 bits")
    number: int = value
    return number


def _string(code: int, flags: int, value: str, base64_text: bool) -> Value:
    is_binary = bool(flags & _BINARY)
    if code in _BLOBS or (code in STRINGS and base64_text):
        data = b64decode(value, validate=True)
        return data if is_binary else text_or_bytes(data)
    if code in STRINGS and is_binary:
        return unquote(value)
    return value


_IMAGES: Final = ("u", "p", "d")


class OpenDecoder:
    """See drainer.protocol.encoder.Decoder. Uses the options for compression and old values. An event with only new
    values is an insert, or, if updates may be sent without old values, an UPSERT."""

    def __init__(self, options: ProtocolOptions) -> None:
        self._options = options
        whole = options.output_old_value and not options.only_output_updated_columns
        self._alone = Change.INSERT if whole else Change.UPSERT
        self._readers: Mapping[int, Callable[[Reader, bytes], Event | None]] = {
            ROW: self._row,
            DDL: self._ddl,
            RESOLVED: _resolved,
            ADMIN: _admin,
        }

    def decode(self, key: bytes | None, value: bytes | None) -> list[Event]:
        found = []
        for number, (its_key, its_value) in enumerate(unframe(key, value)):
            try:
                event = self.event(its_key, its_value)
            except MessageError as error:
                raise MessageError(f"open-protocol, event {number} of the message: {error}") from None
            if event is not None:
                found.append(event)
        return found

    def event(self, key: bytes, value: bytes) -> Event | None:
        """Decode one event of a message. None: a row without columns. Raises MessageError."""
        head = parse(key, "key")
        kind = head.integer("t")
        if kind not in self._readers:
            raise MessageError(f"key: an event of type {kind} is not known")
        return self._readers[kind](head, value)

    def _body(self, value: bytes) -> Reader:
        return parse(value, "value", self._options.large_message_handle_compression)

    def _row(self, key: Reader, value: bytes) -> RowEvent | None:
        """Return the row's event. None if all of the row's columns were filtered out."""
        found: dict[str, dict[str, ColumnValue]] = {}
        body = self._body(value)
        for name in body.document:
            row = body.child(name) if name in _IMAGES else None
            if row is not None:
                found[name] = image(row, base64_text=self._options.open_varchar_base64)
        new, old, deleted = found.get("u"), found.get("p"), found.get("d")
        if not new and not old and not deleted:
            return None
        if bool(new) == bool(deleted) or (old and not new):
            raise MessageError(f"value: a row has {' and '.join(found)}, not u, u and p, or d")
        change = Change.DELETE if deleted else self._alone if old is None else Change.UPDATE
        claim = key.text("ccl", "")
        return RowEvent(
            change=change,
            commit_ts=key.integer("ts"),
            schema=key.text("scm", ""),
            table=key.text("tbl", ""),
            old=deleted if deleted else old,
            new=new,
            row_id=key.integer("rid", 0, signed=True),
            partition_id=key.integer("ptn", 0, signed=True),
            handle_only=key.boolean("ohk", False) or bool(claim),
            claim=claim,
        )

    def _ddl(self, key: Reader, value: bytes) -> DdlEvent:
        body = self._body(value)
        return DdlEvent(
            commit_ts=key.integer("ts"),
            schema=key.text("scm", ""),
            table=key.text("tbl", ""),
            query=body.text("q"),
            type_code=body.integer("t"),
        )


def _resolved(key: Reader, value: bytes) -> ResolvedEvent:
    if value:
        raise MessageError(f"value: a resolved event has none, this one has {len(value)} bytes")
    return ResolvedEvent(key.integer("ts"))


def _admin(key: Reader, value: bytes) -> AdminEvent:
    return AdminEvent(parse(value, "value").integer("partition"), key.integer("ts", 0))
