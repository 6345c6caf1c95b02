"""Typed reading of the JSON documents that TiDB writes for jobs and schemas.

Go's rules apply: unknown keys are ignored; an absent key or null is the zero value. A value of another type, or invalid
JSON, raises DecodeError with the field's name.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar

from binlog.errors import DecodeError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Document: TypeAlias = "Mapping[str, Json]"
T = TypeVar("T")


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


@dataclass(slots=True, eq=False)
class Reader:
    """Reads the fields of one object by type. `what` names the object in errors."""

    document: Document
    what: str

    @classmethod
    def of(cls, source: Document | bytes | str, what: str) -> Reader:
        """Read a document or its text. Raises DecodeError if it is not an object."""
        document = parse_document(source, what) if isinstance(source, bytes | str) else expect_document(source, what)
        return cls(document, what)

    def _wrong(self, key: str, expected: str) -> DecodeError:
        found = type(self.document[key]).__name__
        return DecodeError(f"{self.what}.{key}", offset=0, detail=f"{expected} was expected, not {found}")

    def _typed(self, key: str, kind: type[T], absent: T, expected: str) -> T:
        value = self.document.get(key)
        if value is None:
            return absent
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self._wrong(key, expected)
        return value

    def integer(self, key: str) -> int:
        return self._typed(key, int, 0, "a whole number")

    def boolean(self, key: str) -> bool:
        return self._typed(key, bool, False, "true or false")

    def text(self, key: str) -> str:
        return self._typed(key, str, "", "a string")

    def base64(self, key: str) -> bytes | None:
        if self.document.get(key) is None:
            return None
        try:
            return base64.b64decode(self._typed(key, str, "", "base64 text"), validate=True)
        except (binascii.Error, ValueError) as err:
            raise DecodeError(f"{self.what}.{key}", offset=0, detail=f"bad base64: {err}") from None

    def items(self, key: str) -> list[Json]:
        return self._typed(key, list, [], "a list")

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

    def json(self, key: str) -> Json:
        return self.document.get(key)


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


# How objects are read and written.

OMIT: Json = "omitempty: left out unless it has a value"
_Read: TypeAlias = "Callable[[Reader, str], Any]"
_Write: TypeAlias = "Callable[[Any], Json]"


class Typed(NamedTuple):
    """A key whose value is an attribute of the object. `name`: the attribute, if its name differs
    from the key."""

    key: str
    read: _Read
    write: _Write = lambda value: value
    name: str = ""


class Layout:
    """Every key of an object, in the order in which TiDB writes them: each typed, or a pair with TiDB's default.

    Values of keys that are not typed are in the object's attribute `rest` if they differ from the default. The default
    OMIT marks a key that is left out unless it has a value (Go's omitempty). Unknown keys are dropped.
    """

    def __init__(self, *keys: Typed | tuple[str, Json]) -> None:
        self._keys = keys

    def read(self, read: Reader) -> dict[str, Any]:
        """Return the attributes of the object. Raises DecodeError with the name of an invalid field."""
        found: dict[str, Any] = {}
        rest: dict[str, Json] = {}
        for key in self._keys:
            if isinstance(key, Typed):
                found[key.name or key.key] = key.read(read, key.key)
            elif (value := read.document.get(*key)) != key[1]:
                rest[key[0]] = value
        return {**found, "rest": rest} if rest else found

    def write(self, value: Any) -> dict[str, Json]:
        """Return the document of an object."""
        out: dict[str, Json] = {}
        for key in self._keys:
            if isinstance(key, Typed):
                out[key.key] = key.write(getattr(value, key.name or key.key))
            elif (found := value.rest.get(*key)) is not OMIT:
                out[key[0]] = found
        return out


@dataclass(frozen=True, slots=True)
class JsonObject:
    """An object that is read from TiDB's JSON and written back as its `layout` says. `rest`: see Layout."""

    layout: ClassVar[Layout]
    rest: Mapping[str, Json] = field(default_factory=dict, hash=False, kw_only=True)

    @classmethod
    def from_json(cls, source: Document | bytes | str, what: str = "") -> Self:
        """Read an object from a document or its text. Raises DecodeError with the name of an invalid field."""
        return cls(**cls.layout.read(Reader.of(source, what or cls.__name__)))

    def to_json(self) -> dict[str, Json]:
        return self.layout.write(self)


def number_of(key: str, kind: type[IntEnum], name: str = "") -> Typed:
    """Return the key of a member of an enum."""
    return Typed(key, lambda read, key: kind(read.integer(key)), int, name)


def object_of(key: str, from_json: Callable[[Document, str], Any], name: str = "") -> Typed:
    """Return the key of an object or null."""

    def read(read: Reader, key: str) -> Any:
        found = read.child(key)
        return None if found is None else from_json(found, f"{read.what}.{key}")

    return Typed(key, read, lambda value: None if value is None else value.to_json(), name)


def objects_of(key: str, from_json: Callable[[Document, str], Any], name: str = "") -> Typed:
    """Return the key of a list of objects; null if it is empty."""

    def read(read: Reader, key: str) -> Any:
        return tuple(from_json(one, f"{read.what}.{key}[{n}]") for n, one in enumerate(read.documents(key)))

    return Typed(key, read, lambda value: [one.to_json() for one in value] or None, name)


def list_or_null(values: Iterable[Json]) -> Json:
    return list(values) or None
