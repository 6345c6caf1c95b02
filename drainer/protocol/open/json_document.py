"""Reads JSON objects of messages. Errors say which member is wrong and why. Unknown members are ignored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from drainer.protocol.errors import MessageError

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
