"""The header in front of a record: the id of the schema with which it was written."""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from drainer.protocol.errors import MessageError
from drainer.protocol.schema_ids import SchemaId

CONFLUENT_HEADER: Final = 5
GLUE_HEADER: Final = 18
_ID_MAX: Final = 0x7FFF_FFFF
_GLUE_LEAD: Final = 3
_GLUE_COMPRESSIONS: Final = {0: "none", 5: "zlib"}


class Envelope(NamedTuple):
    """A parsed header. `begin`: the offset at which the record begins."""

    schema_id: SchemaId
    begin: int


def header_of(schema_id: SchemaId) -> bytes:
    """Return a header: 5 bytes in Confluent's format, 18 in Glue's (not compressed). Raises ValueError for an id that
    no registry returns."""
    if isinstance(schema_id, UUID):
        return bytes((_GLUE_LEAD, 0)) + schema_id.bytes
    if not 0 < schema_id <= _ID_MAX:
        raise ValueError(f"{schema_id} is not the id of a schema")
    return b"\0" + schema_id.to_bytes(4, "big")


def read_header(data: bytes) -> Envelope:
    """Parse a header. Raises MessageError."""
    if not data:
        raise MessageError("Avro: no header, the message is empty")
    if data[0] == 0:
        if len(data) < CONFLUENT_HEADER:
            raise MessageError(f"Avro: a header has {CONFLUENT_HEADER} bytes, and the message {len(data)}")
        return Envelope(int.from_bytes(data[1:CONFLUENT_HEADER], "big"), CONFLUENT_HEADER)
    if data[0] == _GLUE_LEAD:
        if len(data) < GLUE_HEADER:
            raise MessageError(f"Avro: a header of Glue's has {GLUE_HEADER} bytes, and the message {len(data)}")
        if data[1]:
            how = _GLUE_COMPRESSIONS.get(data[1], f"code {data[1]}")
            raise MessageError(f"Avro: compressed by Glue's library ({how}), which is not supported")
        return Envelope(UUID(bytes=data[2:GLUE_HEADER]), GLUE_HEADER)
    raise MessageError(f"Avro: no header begins with the byte {data[0]:#04x}")
