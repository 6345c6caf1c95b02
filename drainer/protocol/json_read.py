"""Reads messages that are JSON documents. Every error names the member that is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import isfinite
from typing import Final, NoReturn

from drainer.protocol.compression import decompress
from drainer.protocol.errors import MessageError
from drainer.protocol.event import ColumnValue, Image, Value
from drainer.protocol.options import Compression

UINT64_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF
_WHOLE: Final = re.compile(r"-?[0-9]{1,20}")
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
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


def parse(value: bytes | None, what: str, how: Compression = "none") -> Reader:
    """Parse a message that is one JSON object. `what`: the message's name in errors; `how`: its compression. Raises
    MessageError."""
    if value is None:
        raise MessageError(f"{what}: no value")
    value = decompress(value, how)
    try:
        text = value.decode()
        document = _DECODER.decode(text)
        if _SURROGATE.search(text):
            json.dumps(document, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise MessageError(f"{what}: not UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise MessageError(f"{what}: no JSON: half of a surrogate pair") from None
    except json.JSONDecodeError as error:
        raise MessageError(f"{what}: no JSON at character {error.pos}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise MessageError(f"{what}: {error}") from None
    if not isinstance(document, dict):
        raise MessageError(f"{what}: a JSON {type(document).__name__} where an object is expected")
    return Reader(document, what)


def _whole(digits: str) -> int | float:
    """Parse a JSON integer. A DOUBLE may be -0, which Python's int cannot express, so that -0 becomes a float."""
    return -0.0 if digits == "-0" else int(digits)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


_DECODER: Final = json.JSONDecoder(parse_int=_whole, parse_constant=_refuse_constant)


@lru_cache(1024)
def _kind(type_name: str) -> str:
    """Return how a value of this type is written: integer, float, binary or text."""
    name = type_name.partition("(")[0].partition(" ")[0].lower()
    if name in _INTEGERS:
        return "integer"
    if name in ("float", "double"):
        return "float"
    return "binary" if "blob" in name or "binary" in name else "text"


class Reader:
    """Reads one object of a document. All methods raise MessageError naming the member."""

    __slots__ = ("document", "where")

    def __init__(self, document: dict[str, object], where: str) -> None:
        self.document = document
        self.where = where

    def wrong(self, name: str, expected: str) -> NoReturn:
        """Raise the MessageError for a member that is missing or has the wrong type."""
        if name not in self.document:
            raise MessageError(f"{self.where}: no member {name!r}, {expected} is expected")
        found = repr(self.document[name])
        shown = found if len(found) <= 80 else found[:77] + "..."
        raise MessageError(f"{self.where}: {name} is {shown}, {expected} is expected")

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string. `default`: returned if the member is absent or null; None means that the member is
        required."""
        found = self.document.get(name)
        if found is None and default is not None:
            return default
        if not isinstance(found, str):
            self.wrong(name, "a string")
        return found

    def typed(self, name: str, type_name: str, binary: Callable[[str], bytes]) -> Value:
        """Return a value that is written as a text. `type_name`: that of the column, such as `int(10) unsigned`;
        `binary`: converts the text of a binary string, and may raise ValueError."""
        text, kind = self.text(name), _kind(type_name)
        try:
            if kind == "integer":
                return whole_number(text)
            if kind == "float":
                return double(text)
            return binary(text) if kind == "binary" else text
        except ValueError:
            self.wrong(name, f"a value of type {type_name}")

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
        return Reader(found, f"{self.where}.{name}")

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
            readers.append(Reader(item, f"{self.where}.{name}[{n}]"))
        return readers


Columns = Mapping[str, tuple[str, int]]  # each column's type, and its flags: HANDLE_KEY for those of a key


def image_of(row: Reader, columns: Columns, value: Callable[[Reader, str, str], Value], described_in: str) -> Image:
    """Return a row's image. `value`: returns the value of a column, from its name and type; `described_in`: what
    describes the columns, for errors. Raises MessageError."""
    found = {}
    for name in row.document:
        if name not in columns:
            raise MessageError(f"{row.where}: {name} is not in {described_in}")
        type_name, flags = columns[name]
        found[name] = ColumnValue(value(row, name, type_name), flags=flags, type_name=type_name)
    return found
