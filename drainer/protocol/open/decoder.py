"""Reads messages of Open Protocol, from both TiCDC producers (tiflow, pingcap/ticdc), from older ones, and from this
project."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final

from drainer.protocol.compression import decompress
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
)
from drainer.protocol.open.encoder import ADMIN, DDL, RESOLVED, ROW
from drainer.protocol.open.framing import unframe
from drainer.protocol.open.quote import unquote
from drainer.protocol.options import ProtocolOptions
from drainer.protocol.table import ColumnFlag

# Reads JSON objects of messages. Errors say which member is wrong and why. Unknown members are ignored.

Document = Mapping[str, Any]


def parse(data: bytes, what: str) -> Document:
    """Parse a JSON object. `what`: its name in errors. Raises MessageError if it is not a JSON object or not valid
    Unicode."""
    try:
        text = data.decode()
        found = json.loads(text, parse_int=_integer, parse_constant=_refused)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()  # halves of surrogate pairs
    except (ValueError, RecursionError) as error:
        raise MessageError(f"{what} is not JSON: {error}") from None
    return mapping(found, what)


def _integer(digits: str) -> int | float:
    """Parse a number without a point. -0 becomes a float: only a float has a negative zero, and Go writes it without a
    point."""
    return -0.0 if digits == "-0" else int(digits)


def _refused(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def mapping(found: object, what: str) -> Document:
    if not isinstance(found, dict):
        raise MessageError(f"{what} is {_kind(found)}, no object")
    return found


def integer(document: Document, name: str, what: str, *, signed: bool = False, default: int | None = None) -> int:
    """Return a 64-bit integer. `default`: returned if the member is missing or null; None means that the member is
    required."""
    found = document.get(name)
    if found is None and default is not None:
        return default
    if not isinstance(found, int) or isinstance(found, bool):
        raise MessageError(f"{what}: {name} is {_kind(found)}, no integer")
    if not (-(1 << 63) if signed else 0) <= found < 1 << (63 if signed else 64):
        raise MessageError(f"{what}: {name} is {found}, beyond 64 bits")
    return found


def text(document: Document, name: str, what: str, *, default: str | None = None) -> str:
    found = document.get(name)
    if found is None and default is not None:
        return default
    if not isinstance(found, str):
        raise MessageError(f"{what}: {name} is {_kind(found)}, no string")
    return found


def boolean(document: Document, name: str, what: str) -> bool:
    """Return a boolean, False if the member is missing."""
    found = document.get(name, False)
    if not isinstance(found, bool):
        raise MessageError(f"{what}: {name} is {_kind(found)}, neither true nor false")
    return found


def _kind(found: object) -> str:
    if found is None:
        return "missing or null"
    names = {dict: "an object", list: "an array", str: "a string", bool: "true or false"}
    return names.get(type(found), "a number")


# Converts one column of an Open Protocol event to a plain value.
_INTEGERS: Final = frozenset({1, 2, 3, 8, 9, 13, 16, 247, 248})
_FLOATS: Final = frozenset({4, 5})
_STRINGS: Final = frozenset({15, 253, 254})
_BLOBS: Final = frozenset({249, 250, 251, 252})
_TEXTS: Final = frozenset({7, 10, 11, 12, 14, 225, 245, 246})


def image(found: object, what: str, *, base64_text: bool) -> dict[str, ColumnValue]:
    """Convert an image. `base64_text`: CHAR and VARCHAR are base64, as in an old document of the protocol. Raises
    MessageError."""
    members = mapping(found, what)
    return {name: _column(mapping(c, f"{what}.{name}"), f"{what}.{name}", base64_text) for name, c in members.items()}


def _column(column: Document, what: str, base64_text: bool) -> ColumnValue:
    code, flags = integer(column, "t", what), integer(column, "f", what, default=0)
    boolean(column, "h", what)
    if "v" not in column:
        raise MessageError(f"{what} has no v")
    value = column["v"]
    try:
        return ColumnValue(_value(code, flags, value, base64_text), code, flags)
    except (ValueError, OverflowError) as error:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
        raise MessageError(f"{what}: {shown} is no value of a column of type {code}: {error}") from None


def _value(code: int, flags: int, value: Any, base64_text: bool) -> Value:
    """Convert a value. Values of unknown types are returned unchanged. Numbers may also be text, which old producers
    sent. Raises ValueError, OverflowError."""
    if value is None:
        return None
    if isinstance(value, bool | list | dict):
        raise ValueError("neither number nor string")
    if isinstance(value, str):
        return _string(code, flags, value, base64_text)
    if code in _STRINGS or code in _BLOBS or code in _TEXTS:
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
    is_binary = bool(flags & ColumnFlag.BINARY)
    if code in _BLOBS or (code in _STRINGS and base64_text):
        data = b64decode(value, validate=True)
        return data if is_binary else _text_of(data)
    if code in _STRINGS and is_binary:
        return unquote(value)
    return value


def _text_of(data: bytes) -> str | bytes:
    """Decode text. TiDB's latin1 columns may hold any bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


_IMAGES: Final = ("u", "p", "d")


class OpenDecoder:
    """See drainer.protocol.encoder.Decoder. Uses the options for compression and old values. An event with only new
    values is an insert, or, if updates may be sent without old values, an UPSERT."""

    def __init__(self, options: ProtocolOptions) -> None:
        self._options = options
        whole = options.output_old_value and not options.only_output_updated_columns
        self._alone = Change.INSERT if whole else Change.UPSERT
        self._readers: Mapping[int, Callable[[Document, bytes], Event | None]] = {
            ROW: self._row,
            DDL: self._ddl,
            RESOLVED: _resolved,
            ADMIN: _admin,
        }

    def decode(self, key: bytes | None, value: bytes | None) -> list[Event]:
        found = []
        for number, (its_key, its_value) in enumerate(unframe(key, value)):
            try:
                event = self._event(its_key, its_value)
            except MessageError as error:
                raise MessageError(f"open-protocol, event {number} of the message: {error}") from None
            if event is not None:
                found.append(event)
        return found

    def _event(self, key: bytes, value: bytes) -> Event | None:
        head = parse(key, "key")
        kind = integer(head, "t", "key")
        if kind not in self._readers:
            raise MessageError(f"key: an event of type {kind} is not known")
        return self._readers[kind](head, value)

    def _body(self, value: bytes) -> Document:
        return parse(decompress(value, self._options.large_message_handle_compression), "value")

    def _row(self, key: Document, value: bytes) -> RowEvent | None:
        """Return the row's event. None if all of the row's columns were filtered out."""
        found: dict[str, dict[str, ColumnValue]] = {}
        for name, given in self._body(value).items():
            if name in _IMAGES and given is not None:
                found[name] = image(given, name, base64_text=self._options.open_varchar_base64)
        new, old, deleted = found.get("u"), found.get("p"), found.get("d")
        if not new and not old and not deleted:
            return None
        if bool(new) == bool(deleted) or (old and not new):
            raise MessageError(f"value: a row has {' and '.join(found)}, not u, u and p, or d")
        change = Change.DELETE if deleted else self._alone if old is None else Change.UPDATE
        claim = text(key, "ccl", "key", default="")
        return RowEvent(
            change=change,
            commit_ts=integer(key, "ts", "key"),
            schema=text(key, "scm", "key", default=""),
            table=text(key, "tbl", "key", default=""),
            old=deleted if deleted else old,
            new=new,
            row_id=integer(key, "rid", "key", signed=True, default=0),
            partition_id=integer(key, "ptn", "key", signed=True, default=0),
            handle_only=boolean(key, "ohk", "key") or bool(claim),
            claim=claim,
        )

    def _ddl(self, key: Document, value: bytes) -> DdlEvent:
        body = self._body(value)
        return DdlEvent(
            commit_ts=integer(key, "ts", "key"),
            schema=text(key, "scm", "key", default=""),
            table=text(key, "tbl", "key", default=""),
            query=text(body, "q", "value"),
            type_code=integer(body, "t", "value"),
        )


def _resolved(key: Document, value: bytes) -> ResolvedEvent:
    if value:
        raise MessageError(f"value: a resolved event has none, this one has {len(value)} bytes")
    return ResolvedEvent(integer(key, "ts", "key"))


def _admin(key: Document, value: bytes) -> AdminEvent:
    return AdminEvent(integer(parse(value, "value"), "partition", "value"), integer(key, "ts", "key", default=0))


def make_decoder(options: ProtocolOptions) -> OpenDecoder:
    return OpenDecoder(options)
