"""Reads messages that are JSON documents. Every error names the member that is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final, NoReturn

import orjson

from drainer.protocol.encoder import decompress
from drainer.protocol.errors import MessageError
from drainer.protocol.event import ColumnValue, Image, Value
from drainer.protocol.registry import Compression

UINT64_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF
_WHOLE: Final = re.compile(r"-?[0-9]{1,20}")
# A DOUBLE may be -0, of which orjson makes 0. A text that has this costs some microseconds.
_MINUS_ZERO: Final = re.compile(rb"-0[,\]}\s]")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_INTEGERS: Final = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit", "enum", "set"})


def whole_number(text: str) -> int:
    """Parse an integer. Raises ValueError unless the text is at most 20 ASCII digits with an optional sign."""
    if not (len(text) <= 20 and text.isascii() and text.isdigit()) and not _WHOLE.fullmatch(text):
        raise ValueError(text)
    return int(text)


def double(text: str) -> float:
    """Parse a finite decimal number. Raises ValueError for any other text."""
    value = float(text) if _NUMBER.fullmatch(text) else float("nan")
    if not isfinite(value):
        raise ValueError(text)
    return value


def loads(data: bytes) -> Any:
    """Parse JSON. Raises orjson.JSONDecodeError, which is a ValueError."""
    found = orjson.loads(data)
    try:
        if _MINUS_ZERO.search(data):
            return json.loads(data, parse_int=lambda digits: -0.0 if digits == "-0" else int(digits))
        return found
    except RecursionError:
        raise orjson.JSONDecodeError("too many arrays in each other", "", 0) from None


def parse(value: bytes | None, what: str, how: Compression = "none") -> Reader:
    """Parse a message of one JSON object. `what`: its name in errors; `how`: its compression. Raises MessageError."""
    if value is None:
        raise MessageError(f"{what}: no value")
    value = decompress(value, how)
    try:
        document = loads(value)
    except orjson.JSONDecodeError as error:
        raise MessageError(f"{what}: no JSON at character {error.pos}: {error.msg}") from None
    if not isinstance(document, dict):
        raise MessageError(f"{what}: a JSON {type(document).__name__} where an object is expected")
    return Reader(document, what)


def of_text(type_name: str, binary: Callable[[str], bytes]) -> Callable[[str], Value]:
    """Return what converts the text of a column's value. `type_name`: that of the column, such as `int(10) unsigned`;
    `binary`: converts the text of a binary string. Each raises ValueError, TypeError or AttributeError."""
    name = type_name.partition("(")[0].partition(" ")[0].lower()
    if name in _INTEGERS:
        return whole_number
    if name in ("float", "double"):
        return double
    return binary if "blob" in name or "binary" in name else _text


def _text(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError
    return text


class Reader:
    """Reads one object of a document. All methods raise MessageError naming the member."""

    __slots__ = ("_inside", "_name", "document")

    def __init__(self, document: dict[str, object], name: str, inside: Reader | None = None) -> None:
        """`name`: of the object, in the one that it is `inside`."""
        self.document, self._name, self._inside = document, name, inside

    @property
    def where(self) -> str:
        """The place of the object, for errors."""
        return self._name if self._inside is None else f"{self._inside.where}.{self._name}"

    def wrong(self, name: str, expected: str) -> NoReturn:
        """Raise the MessageError for a member that is missing or has the wrong type."""
        if name not in self.document:
            raise MessageError(f"{self.where}: no member {name!r}, {expected} is expected")
        found = repr(self.document[name])
        shown = found if len(found) <= 80 else found[:77] + "..."
        raise MessageError(f"{self.where}: {name} is {shown}, {expected} is expected")

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string. `default`: returned if the member is absent or null; None: the member is required."""
        found = self.document.get(name)
        if found is None and default is not None:
            return default
        if not isinstance(found, str):
            self.wrong(name, "a string")
        return found

    def integer(self, name: str, default: int | None = None, *, signed: bool = False) -> int:
        """Return an integer from 0 to 2^64-1, or, if `signed`, from -2^63 to 2^63-1. `default` as in `text`."""
        found = self.document.get(name)
        if found is None and default is not None:
            return default
        low, high = (-(1 << 63), (1 << 63) - 1) if signed else (0, UINT64_MAX)
        if isinstance(found, bool) or not isinstance(found, int) or not low <= found <= high:
            self.wrong(name, f"a number from {'-2^63 to 2^63' if signed else '0 to 2^64'}-1")
        return found

    def boolean(self, name: str, default: bool | None = None) -> bool:
        found = self.document.get(name)
        if found is None and default is not None:
            return default
        if not isinstance(found, bool):
            self.wrong(name, "true or false")
        return found

    def child(self, name: str) -> Reader | None:
        """Return an object, or None if the member is absent or null."""
        found = self.document.get(name)
        if found is None:
            return None
        if not isinstance(found, dict):
            self.wrong(name, "an object")
        return Reader(found, name, self)

    def needed(self, name: str) -> Reader:
        """Return an object that is required."""
        return self.child(name) or self.wrong(name, "an object")

    def objects(self, name: str) -> list[Reader]:
        """Return the objects of an array. Empty if the member is absent or null."""
        found = self.document.get(name)
        if found is None:
            return []
        if not isinstance(found, list):
            self.wrong(name, "an array of objects")
        readers = []
        for n, item in enumerate(found):
            if not isinstance(item, dict):
                raise MessageError(f"{self.where}.{name}[{n}]: not an object")
            readers.append(Reader(item, f"{name}[{n}]", self))
        return readers


Columns = Mapping[str, tuple[str, int]]  # each column's type, and its flags: HANDLE_KEY for those of a key


def image_of(row: Reader, columns: Columns, value_of: Callable[[str], Callable[[Any], Value]], described: str) -> Image:
    """Return a row's image. `value_of`: returns what converts values that are not NULL, from the name of their type;
    `described`: what describes the columns, for errors. Raises MessageError."""
    found = {}
    for name, value in row.document.items():
        if name not in columns:
            raise MessageError(f"{row.where}: {name} is not in {described}")
        type_name, flags = columns[name]
        try:
            found[name] = ColumnValue(None if value is None else value_of(type_name)(value), 0, flags, type_name)
        except (ValueError, TypeError, AttributeError):
            row.wrong(name, f"a value of type {type_name}")
    return found
