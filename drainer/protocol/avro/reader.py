"""Decodes Avro to Python values with a schema. Supports the types of TiCDC's schemas. Pure.

| Avro | Python |
|---|---|
| null, boolean | None, bool |
| int, long | int |
| float, double | float |
| bytes, string | bytes, str |
| record | dict |
| union | the branch's value |
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from drainer.protocol.errors import MessageError
from drainer.protocol.json_read import parse

# (data, offset of the value) to (value, offset of the next value). Raises MessageError.
Read = Callable[[bytes, int], tuple[Any, int]]
Document = dict[str, Any]

_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


def parse_schema(text: str) -> Document:
    """Parse the schema of a record. Raises MessageError."""
    found = parse(text.encode("utf-8", "surrogatepass"), "Avro: a schema").document
    if found.get("type") != "record" or not isinstance(found.get("fields"), list):
        raise MessageError(f"Avro: the schema of a record is expected, not {text[:80]}")
    return found


def reader_of(schema: Document) -> Callable[[bytes, int], dict[str, Any]]:
    """Return the reader of a record that must end where the data ends. Raises MessageError for a type that TiCDC does
    not use."""
    read = _record(schema, "")

    def whole(data: bytes, begin: int) -> dict[str, Any]:
        found: dict[str, Any]
        found, end = read(data, begin)
        if end != len(data):
            raise MessageError(f"Avro: {len(data) - end} bytes after the record, which ends at byte {end}")
        return found

    return whole


def branches(kind: object) -> list[Any]:
    """Return the types of a union. A type that is not a union is its own only branch."""
    return kind if isinstance(kind, list) else [kind]


def _of_type(kind: object, where: str) -> Read:
    if isinstance(kind, list):
        return _union([_of_type(branch, where) for branch in kind], where)
    name = kind.get("type") if isinstance(kind, dict) else kind
    if isinstance(kind, dict) and name == "record":
        return _record(kind, where)
    if isinstance(name, dict):
        return _of_type(name, where)
    if not isinstance(name, str) or name not in _PRIMITIVES:
        raise MessageError(f"Avro: the type {name!r} of {where or 'the schema'} is none that TiCDC writes")
    return _PRIMITIVES[name](where)


def _record(schema: Document, where: str) -> Read:
    fields = []
    for field in schema.get("fields") or ():
        if not isinstance(field, dict) or not isinstance(field.get("name"), str) or "type" not in field:
            raise MessageError(f"Avro: no field of a record: {field!r:.80}")
        name = field["name"]
        fields.append((name, _of_type(field["type"], f"{where}.{name}" if where else name)))

    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found = {}
        for name, of in fields:
            found[name], at = of(data, at)
        return found, at

    return read


def _union(reads: Sequence[Read], where: str) -> Read:
    number = _long(where)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        branch, begin = number(data, at)
        if not 0 <= branch < len(reads):
            raise MessageError(f"Avro: {where}: branch {branch} of a union of {len(reads)} at byte {at}")
        return reads[branch](data, begin)

    return read


def _null(where: str) -> Read:
    return lambda data, at: (None, at)


def _boolean(where: str) -> Read:
    def read(data: bytes, at: int) -> tuple[bool, int]:
        if at >= len(data):
            raise _torn(where, at)
        if data[at] > 1:
            raise MessageError(f"Avro: {where}: {data[at]:#04x} is not a boolean, at byte {at}")
        return data[at] == 1, at + 1

    return read


def _whole(where: str, bits: int) -> Read:
    most = 1 << bits

    def read(data: bytes, at: int) -> tuple[int, int]:
        begin, raw, shift = at, 0, 0
        while True:
            if at >= len(data):
                raise _torn(where, begin)
            byte = data[at]
            at += 1
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise MessageError(f"Avro: {where}: a number of more than 10 bytes at byte {begin}")
        if raw >= most:
            raise MessageError(f"Avro: {where}: a number of more than {bits} bits at byte {begin}")
        return (raw >> 1) ^ -(raw & 1), at

    return read


def _int(where: str) -> Read:
    return _whole(where, 32)


def _long(where: str) -> Read:
    return _whole(where, 64)


def _real(form: struct.Struct) -> Callable[[str], Read]:
    def of(where: str) -> Read:
        def read(data: bytes, at: int) -> tuple[float, int]:
            if at + form.size > len(data):
                raise _torn(where, at)
            (value,) = form.unpack_from(data, at)
            return value, at + form.size

        return read

    return of


def _bytes(where: str) -> Read:
    length = _long(where)

    def read(data: bytes, at: int) -> tuple[bytes, int]:
        count, begin = length(data, at)
        if count < 0:
            raise MessageError(f"Avro: {where}: a length of {count} at byte {at}")
        if begin + count > len(data):
            raise _torn(where, at)
        return data[begin : begin + count], begin + count

    return read


def _string(where: str) -> Read:
    raw = _bytes(where)

    def read(data: bytes, at: int) -> tuple[str, int]:
        value, end = raw(data, at)
        try:
            return value.decode(), end
        except UnicodeDecodeError as error:
            raise MessageError(f"Avro: {where}: a text that is not UTF-8, {error.reason} at byte {at}") from None

    return read


def _torn(where: str, at: int) -> MessageError:
    return MessageError(f"Avro: {where}: the message ends within the value that begins at byte {at}")


_PRIMITIVES: Final[dict[str, Callable[[str], Read]]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _real(_FLOAT),
    "double": _real(_DOUBLE),
    "bytes": _bytes,
    "string": _string,
}
