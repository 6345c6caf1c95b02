"""Ids of registered schemas. The driver fetches them, encoders write them, decoders look up the schemas by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final, NamedTuple

from drainer.protocol.errors import MessageError

# Subject → fingerprint of the schema's text → its id.
SchemaIds = Mapping[str, Mapping[str, int]]


class RequiredSchema(NamedTuple):
    """A schema that must be registered before messages that use it are written."""

    subject: str
    schema: str

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.schema)


def fingerprint(schema: str) -> str:
    """Return a hash of the exact text: schemas that differ in a default or a parameter are different schemas."""
    return sha256(schema.encode()).hexdigest()


def merged(ids: SchemaIds, more: Iterable[tuple[RequiredSchema, int]]) -> SchemaIds:
    """Return a new mapping with the ids of both."""
    found = {subject: dict(of_subject) for subject, of_subject in ids.items()}
    for required, schema_id in more:
        found.setdefault(required.subject, {})[required.fingerprint] = schema_id
    return found


# The header in front of a record of Avro: the id of the schema with which it was written, in Confluent's format.

HEADER_BYTES: Final = 5
_ID_MAX: Final = 0x7FFF_FFFF


def header_of(schema_id: int) -> bytes:
    """Return the header of a record. Raises ValueError for an id that is not from 1 to 2147483647."""
    if not 0 < schema_id <= _ID_MAX:
        raise ValueError(f"{schema_id} is not the id of a schema")
    return b"\0" + schema_id.to_bytes(4, "big")


def read_header(data: bytes) -> int:
    """Return the id of the schema. Raises MessageError."""
    if len(data) < HEADER_BYTES:
        raise MessageError(f"Avro: a header has {HEADER_BYTES} bytes, and the message {len(data)}")
    if data[0]:
        raise MessageError(f"Avro: no header begins with the byte {data[0]:#04x}")
    return int.from_bytes(data[1:HEADER_BYTES], "big")
