"""Decodes records of Avro to Python values: TiCDC's, whose schemas a registry has, and Simple's."""

from __future__ import annotations

import struct
from io import BytesIO
from typing import Any, Final

import fastavro
from binlog.errors import DecodeError
from fastavro.schema import SchemaParseException

from drainer.protocol.errors import MessageError
from drainer.protocol.json_read import parse

Document = dict[str, Any]

_PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
# What fastavro raises for bytes that are not of the schema.
_NOT_OF_SCHEMA: Final = (
    ArithmeticError,
    AssertionError,
    DecodeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)


def read_record(schema: Any, data: bytes, begin: int, what: str) -> Any:
    """Read the record that begins at `begin` and must end where the data ends. `schema`: as fastavro has parsed it;
    `what`: the message's name in errors. Raises MessageError."""
    source = BytesIO(data)
    source.seek(begin)
    try:
        found = fastavro.schemaless_reader(source, schema, None)
    except _NOT_OF_SCHEMA as error:
        why = f"{type(error).__name__} {error}"
        raise MessageError(f"{what}: not Avro of its schema at byte {source.tell()}: {why}") from None
    if source.tell() != len(data):
        raise MessageError(f"{what}: {len(data) - source.tell()} bytes after the record")
    return found


def parse_schema(text: str) -> Document:
    """Parse the schema of a record. Raises MessageError."""
    found = parse(text.encode("utf-8", "surrogatepass"), "Avro: a schema").document
    if found.get("type") != "record" or not isinstance(found.get("fields"), list):
        raise MessageError(f"Avro: the schema of a record is expected, not {text[:80]}")
    return found


def readable(schema: Document) -> Any:
    """Return the schema for `read_record`. Raises MessageError for a type that TiCDC does not use."""
    try:
        return fastavro.parse_schema(_plain(schema))
    except (SchemaParseException, LookupError, RecursionError, TypeError, ValueError) as error:
        raise MessageError(f"Avro: no schema that TiCDC writes: {type(error).__name__} {error}") from None


def _plain(kind: Any) -> Any:
    """Return a type with only what its bytes depend on. fastavro refuses defaults that TiCDC writes, and would convert
    decimals. A name of another type is refused: a record that has itself as a field would end the process."""
    if isinstance(kind, list):
        return [_plain(branch) for branch in kind]
    if not isinstance(kind, dict):
        if kind not in _PRIMITIVES:
            raise TypeError(f"the type {kind!r:.80}")
        return kind
    if kind["type"] != "record":
        return _plain(kind["type"])
    names = {name: kind[name] for name in ("name", "namespace") if name in kind}
    return {"type": "record", **names, "fields": [_plain_field(field) for field in kind["fields"]]}


def _plain_field(field: Document) -> Document:
    if not isinstance(field["name"], str):
        raise TypeError(f"the name {field['name']!r:.80}")
    return {"name": field["name"], "type": _plain(field["type"])}
