"""JSON objects of messages, member by member, with errors that say what is wrong. Unknown members are ignored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from drainer.protocol.errors import MessageError

Document = Mapping[str, Any]


def parse(data: bytes, what: str) -> Document:
    """`what` names it in errors. Raises MessageError for what is no JSON object, and for text that is not Unicode."""
    try:
        text = data.decode()
        found = json.loads(text, parse_int=_integer, parse_constant=_refused)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()  # halves of surrogate pairs
    except (ValueError, RecursionError) as error:
        raise MessageError(f"{what} is no JSON: {error}") from None
    return mapping(found, what)


def _integer(digits: str) -> int | float:
    """Only a float has a negative zero, and Go writes it without a point."""
    return -0.0 if digits == "-0" else int(digits)


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def mapping(found: object, what: str) -> Document:
    if not isinstance(found, dict):
        raise MessageError(f"{what} is {_kind(found)}, no object")
    return found


def integer(document: Document, name: str, what: str, *, signed: bool = False, default: int | None = None) -> int:
    """Of 64 bits. `default`: where the member is missing or null; None: it must be there."""
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
    """False where it is missing."""
    found = document.get(name, False)
    if not isinstance(found, bool):
        raise MessageError(f"{what}: {name} is {_kind(found)}, neither true nor false")
    return found


def _kind(found: object) -> str:
    if found is None:
        return "missing or null"
    names = {dict: "an object", list: "an array", str: "a string", bool: "true or false"}
    return names.get(type(found), "a number")
