"""The header in front of a record: the id of the schema with which it was written, in Confluent's format."""

from __future__ import annotations

from typing import Final

from drainer.protocol.errors import MessageError

HEADER_BYTES: Final = 5
_ID_MAX: Final = 0x7FFF_FFFF


def header_of(schema_id: int) -> bytes:
    """Return a header. Raises ValueError for an id that no registry returns."""
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
