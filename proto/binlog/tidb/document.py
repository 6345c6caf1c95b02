"""Typed reading of the JSON documents that TiDB writes for jobs and schemas.

Go's rules apply: unknown keys are ignored; an absent key or null is the zero value. A value of another type, or invalid
JSON, raises DecodeError with the field's name.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import TypeAlias

from binlog.errors import DecodeError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Document: TypeAlias = "Mapping[str, Json]"
Order: TypeAlias = "tuple[tuple[str, Json], ...]"  # every key TiDB writes, in its order, with its default


def parse_document(text: bytes | str, what: str) -> Document:
    """Return the object in `text`. Raises DecodeError with `what` and the byte (or character) of the error."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as err:
        raise DecodeError(what, offset=err.pos, detail=err.msg) from None
    except (ValueError, RecursionError) as err:  # not UTF-8, a number of thousands of digits, or too many brackets
        raise DecodeError(what, offset=0, detail=str(err)) from None
    return expect_document(found, what)


def expect_document(value: object, what: str) -> Document:
    if not isinstance(value, dict):
        raise DecodeError(what, offset=0, detail=f"an object was expected, not {type(value).__name__}")
    return value


class Reader:
    """Reads the fields of one object by type. `what` names the object in errors."""

    __slots__ = ("document", "what")

    def __init__(self, document: Document, what: str) -> None:
        self.document = document
        self.what = what

    def _wrong(self, key: str, expected: str) -> DecodeError:
        found = type(self.document[key]).__name__
        return DecodeError(f"{self.what}.{key}", offset=0, detail=f"{expected} was expected, not {found}")

    def integer(self, key: str) -> int:
        value = self.document.get(key)
        if value is None:
            return 0
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(key, "a whole number")
        return value

    def boolean(self, key: str) -> bool:
        value = self.document.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def text(self, key: str) -> str:
        value = self.document.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    def base64(self, key: str) -> bytes | None:
        value = self.document.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self._wrong(key, "base64 text")
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as err:
            raise DecodeError(f"{self.what}.{key}", offset=0, detail=f"bad base64: {err}") from None

    def items(self, key: str) -> list[Json]:
        value = self.document.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._wrong(key, "a list")
        return value

    def documents(self, key: str) -> list[Document]:
        return [expect_document(item, f"{self.what}.{key}[{n}]") for n, item in enumerate(self.items(key))]

    def texts(self, key: str) -> tuple[str, ...]:
        found = self.items(key)
        if not all(isinstance(item, str) for item in found):
            raise self._wrong(key, "a list of strings")
        return tuple(str(item) for item in found)

    def child(self, key: str) -> Document | None:
        value = self.document.get(key)
        return None if value is None else expect_document(value, f"{self.what}.{key}")

    def name(self, key: str) -> str:
        return parse_cistr(self.document.get(key), f"{self.what}.{key}")


def parse_cistr(value: object, what: str) -> str:
    """Return a name as written, from {"O", "L"} or a bare string. Absent: the empty name."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return Reader(expect_document(value, what), what).text("O")


def cistr(name: str) -> Json:
    """Return a name in TiDB's form: original and lower case."""
    return {"O": name, "L": name.lower()}


def dump_document(document: Mapping[str, Json]) -> bytes:
    """Serialize as Go's encoding/json does: no spaces, and `<`, `>`, `&`, U+2028 and U+2029 escaped."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        if char in text:
            text = text.replace(char, f"\\u{ord(char):04x}")
    return text.encode("utf-8", "replace")


def in_order(
    order: tuple[tuple[str, Json], ...], typed: Mapping[str, Json], rest: Mapping[str, Json]
) -> dict[str, Json]:
    """Return an object with TiDB's key order. A value is taken from `typed`, else from `rest`, else from `order`'s
    default.

    The default OMIT marks a key that is left out unless it has a value (Go's omitempty).
    """
    out: dict[str, Json] = {}
    for key, default in order:
        value = typed[key] if key in typed else rest.get(key, default)
        if value is OMIT:
            continue
        out[key] = value
    return out


def unknown_rest(order: Order, typed: Mapping[str, Json], document: Document) -> dict[str, Json]:
    """Return the values in `document` for known but untyped keys that differ from the defaults."""
    return {
        key: document[key]
        for key, default in order
        if key not in typed and key in document and document[key] != default
    }


OMIT: Json = "omitempty: left out unless it has a value"
